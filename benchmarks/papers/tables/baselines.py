"""The two systems that Parallax is compared with, written down as plainly as they work: TF-PS and Horovod.

Both give the gradients' mean over all workers, as every other way here; they differ in what travels. Neither looks at
which workers share a node. Servers may also send as our tables do, in rounds of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.papers.tables.models import Batch, Language
from partreduce.runtime.transport.communicators import Communicator, pairwise_exchange

torch.sparse.check_sparse_tensor_invariants.disable()  # what is said by itself, with a warning, where nobody says it

Optimizer = Callable[[list[nn.Parameter], bool], torch.optim.Optimizer]
"""Makes an optimizer of parameters, which are tables or not."""


class Servers:
    """TF-PS: all parameters lie on servers; a worker fetches what its step reads and sends its gradients back.

    A host of parameters is a worker that also serves. Tables are cut: row r lies on host r mod hosts. Dense parameters
    are dealt whole, each to the next host in turn, as TensorFlow's `replica_device_setter` does, or `cut` evenly.
    Optimizers run where the parameters lie. As published everybody sends to all hosts at once; with `in_pairs` in
    rounds of pairs.
    """

    def __init__(
        self,
        group: Communicator,
        model: Language,
        optimizer: Optimizer,
        hosts: Sequence[int],
        *,
        in_pairs: bool = False,
        cut: bool = False,
    ) -> None:
        self.group, self.model, self.hosts, self.in_pairs = group, model, list(hosts), in_pairs
        self.place = self.hosts.index(group.place) if group.place in self.hosts else None
        dealt = [model.dense()[place :: len(self.hosts)] for place in range(len(self.hosts))]
        self.order = [p for share in dealt for p in share]
        self.flat = torch.cat([p.detach().flatten() for p in self.order])
        whole = [sum(p.numel() for p in share) for share in dealt]
        self.pieces = self.flat.tensor_split(len(self.hosts)) if cut else self.flat.split(whole)
        self.lengths = [0] * group.size
        for host, piece in zip(self.hosts, self.pieces, strict=True):
            self.lengths[host] = len(piece)
        self.own: dict[str, nn.Parameter] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        if self.place is not None:
            piece = nn.Parameter(self.pieces[self.place].clone())
            rows = {
                name: nn.Parameter(p.detach()[self.place :: len(self.hosts)].clone())
                for name, p in model.tables().items()
            }
            self.own = {"": piece, **rows}
            self.optimizers = [optimizer([piece], False), optimizer(list(rows.values()), True)]
        self._asked: dict[str, tuple[torch.Tensor, list[int], torch.Tensor, list[int]]] = {}

    def before(self, batch: Batch) -> None:
        """Fetch the dense parameters and the rows that the batch reads."""
        rest = torch.empty_like(self.flat)
        mine = self.own[""].detach().repeat(self.group.size) if self.place is not None else self.flat[:0]
        self._hand(rest, mine, self.lengths, [len(mine) // self.group.size] * self.group.size)
        for parameter, values in zip(self.order, rest.split([p.numel() for p in self.order]), strict=True):
            parameter.data.copy_(values.view_as(parameter))
        for name, rows in self.model.touched(batch).items():
            table = self.model.tables()[name]
            place = rows % len(self.hosts)  # (count,)
            order = torch.argsort(place, stable=True)
            sends = self._by_host(torch.bincount(place, minlength=len(self.hosts)).tolist())
            asked, receives = self._hand_out(rows[order], sends)
            self._asked[name] = rows[order], sends, asked, receives
            values = torch.zeros(0, table.shape[1])
            if self.place is not None:
                values = self.own[name].detach()[asked // len(self.hosts)]
            fetched = self._rows_back(values, sends, receives, table.shape[1])
            table.data[rows[order]] = fetched

    def step(self) -> None:
        """Send gradients to where the parameters lie, and let their optimizers step with the means."""
        size = self.group.size
        gradient = torch.cat([_grad(p).flatten() for p in self.order])
        own = len(self.own[""]) if self.place is not None else 0
        came = torch.empty(size * own)
        self._hand(came, gradient, [own] * size, self.lengths)
        if self.place is not None:
            self.own[""].grad = came.view(size, own).mean(0)
        for name, (rows, sends, asked, receives) in self._asked.items():
            table = self.model.tables()[name]
            values = _rows_of(table, rows)
            columns = table.shape[1]
            back = torch.empty(len(asked), columns)
            self._hand(back.view(-1), values.reshape(-1), [columns * n for n in receives], [columns * n for n in sends])
            if self.place is not None:
                parameter = self.own[name]
                where = (asked // len(self.hosts))[None]
                parameter.grad = torch.sparse_coo_tensor(where, back / size, parameter.shape).coalesce()
            table.grad = None
        for optimizer in self.optimizers:
            optimizer.step()

    def _by_host(self, counts: list[int]) -> list[int]:
        made = [0] * self.group.size
        for host, count in zip(self.hosts, counts, strict=True):
            made[host] = count
        return made

    def _hand_out(self, rows: torch.Tensor, sends: list[int]) -> tuple[torch.Tensor, list[int]]:
        """Say to every host how many of its rows, and which; returns what others ask of this one."""
        said, heard = torch.tensor(sends), torch.empty(self.group.size, dtype=torch.long)
        ones = [1] * self.group.size
        self.group.all_to_all(heard, said, ones, ones).wait()
        receives = heard.tolist()
        asked = torch.empty(sum(receives), dtype=rows.dtype)
        self._hand(asked, rows, receives, sends)
        return asked, receives

    def _rows_back(self, values: torch.Tensor, sends: list[int], receives: list[int], columns: int) -> torch.Tensor:
        """Rows that were asked for, to whom asked."""
        fetched = torch.empty(sum(sends), columns)
        self._hand(fetched.view(-1), values.reshape(-1), [columns * n for n in sends], [columns * n for n in receives])
        return fetched

    def _hand(self, target: torch.Tensor, source: torch.Tensor, receives: list[int], sends: list[int]) -> None:
        """Numbers to each member and from each, in order of places."""
        if not self.in_pairs:
            self.group.all_to_all(target, source, receives, sends).wait()
            return
        for work in pairwise_exchange(self.group, target, source, receives, sends):
            work.wait()


class Gathered:
    """Horovod: dense gradients by a ring all-reduce; of tables everybody gets everybody's touched rows."""

    def __init__(self, group: Communicator, model: Language, optimizer: Optimizer) -> None:
        self.group, self.model = group, model
        self.optimizers = [optimizer(model.dense(), False), optimizer(list(model.tables().values()), True)]

    def before(self, batch: Batch) -> None:
        """Everything is there."""

    def step(self) -> None:
        size, dense = self.group.size, self.model.dense()
        flat = torch.cat([_grad(p).flatten() for p in dense])
        self.group.all_reduce(flat).wait()
        for parameter, mean in zip(dense, (flat / size).split([p.numel() for p in dense]), strict=True):
            parameter.grad = mean.view_as(parameter)
        for table in self.model.tables().values():
            gradient = _grad(table).coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            counts = torch.empty(size, dtype=torch.long)
            self.group.all_gather(counts, torch.tensor([len(rows)])).wait()
            most = int(counts.max())
            all_rows, all_values = torch.empty(size * most, dtype=torch.long), torch.empty(size * most, values.shape[1])
            self.group.all_gather(all_rows, _filled(rows, most)).wait()
            self.group.all_gather(all_values, _filled(values, most)).wait()
            there = torch.arange(most) < counts[:, None]  # (size, most)
            kept_rows, kept = all_rows[there.flatten()], all_values[there.flatten()]
            table.grad = torch.sparse_coo_tensor(kept_rows[None], kept / size, table.shape).coalesce()
        for optimizer in self.optimizers:
            optimizer.step()


def _filled(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """With zeros up to the length that all have."""
    return torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])


def _grad(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None, "every parameter takes part in every step"
    return parameter.grad


def _rows_of(table: nn.Parameter, rows: torch.Tensor) -> torch.Tensor:
    """A sparse gradient's rows, in the order asked for."""
    gradient = _grad(table).coalesce()
    place = torch.searchsorted(gradient.indices()[0].contiguous(), rows)
    return gradient.values()[place]
