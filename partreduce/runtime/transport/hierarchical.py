"""Sum a group by the algorithm `hierarchical`: reduce shards inside each node, then across nodes, then distribute.

It applies to groups with the same number l ≥ 2 of workers on each of m ≥ 2 nodes; any other group keeps its ring. Every
worker sends 2(m−1)/m of its l-th of the tensor out of its node, and 2(l−1)/l of the tensor inside; a ring sends
2(k−1)/k of the tensor over whichever link comes next. A long tensor goes in parts, and while a part is on its way
across the nodes the next one is exchanged inside (the two stages are pipelined, as `topo.timing.cost` takes them).

Each shard is added up by one worker of a node in order of places, and its sum is copied: all members end with the same
bits, and so does every run.

Shards are exchanged by all_to_all. gloo's own reduce-scatter (torch 2.13) sends as much as an all-reduce and never says
that it has ended; with it and all_gather inside the nodes, sums of 4x4 workers took 1.04 to 1.17 times as long, over
links of 80 Mbit/s to 1 Gbit/s.

A codec applies to everything, or only to messages between nodes; codes from other nodes are distributed as codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from partreduce.runtime.codecs import Coding, unit_of
from partreduce.runtime.transport.communicators import Communicator, Sums
from partreduce.runtime.transport.multistage_allreduce import (
    Bounds,
    CodedStages,
    Stage,
    Stages,
    block_bounds,
    code_size,
    in_parts,
    num_coded_parts,
)
from partreduce.runtime.transport.work import Work
from partreduce.topo.strategies.axes import CodecScope

SMALL_BYTES = 1024
"""Shorter tensors, such as tags, go around the ring of the whole group: three stages would only add latencies."""
PART_BYTES = 8 * 2**20
"""A longer tensor without a codec goes in parts of at most about this size; one array of it is kept for each group."""


def levels_of(
    members: Sequence[int], nodes: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(members on the node of `rank`, the members with its place on their nodes); None where the form is the ring.

    Args:
        members: of the group, ascending, `rank` among them.
        nodes: the node of every worker.
        rank: this worker.
    """
    on_node: dict[int, list[int]] = {}
    for member in members:
        on_node.setdefault(nodes[member], []).append(member)
    inside = on_node[nodes[rank]]
    if len(on_node) < 2 or len(inside) < 2 or any(len(part) != len(inside) for part in on_node.values()):
        return None
    place = inside.index(rank)
    return tuple(inside), tuple(sorted(part[place] for part in on_node.values()))


class HierarchicalCommunicator(Communicator):
    """A group with the same number of members on each of its nodes.

    Sums run in order of calls, `staged` by a thread or a stream of the group; only they use the two inner groups.
    Everything else, and short sums, is done by the group of all members.
    """

    def __init__(
        self, whole: Communicator, inside: Communicator, across: Communicator, staged: Callable[[Stages], Sums]
    ) -> None:
        (backend,) = whole.close()
        super().__init__(whole.members, whole.members[whole.place], backend, whole.timeout)
        self.sums = staged(_Levels(inside, across))
        self._levels = inside, across

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        """Start a sum over the group, in place; see Communicator. A short tensor is never coded."""
        if tensor.nbytes < SMALL_BYTES or tensor.numel() < self._levels[0].size:
            return super().all_reduce(tensor)
        self._live()
        return self.sums.start(tensor, coding)

    def close(self) -> list[object]:
        """Let go of what lies below and return it; sums that wait or run end with an error."""
        self.sums.close()
        return [*super().close(), *(backend for level in self._levels for backend in level.close())]


class _Levels(Stages):
    """The stages of a sum: inside the node, across nodes, inside the node again."""

    def __init__(self, inside: Communicator, across: Communicator) -> None:
        super().__init__()
        self.inside, self.across = inside, across
        self._coded = CodedStages(self.wait, at_once=True)

    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        """A part crosses the nodes while others are exchanged inside, encoded and decoded."""
        self._coded.on(tensor.device)
        if coding is None:
            in_parts(tensor, -(-tensor.nbytes // PART_BYTES), 1, lambda part, _index: self._plain(part))
        else:
            number = num_coded_parts(tensor.nbytes, self.inside.size * self.across.size)
            in_parts(tensor, number, unit_of(coding), lambda part, index: self._in_codes(part, index, coding))

    def _plain(self, part: torch.Tensor) -> Iterator[None]:
        bounds = block_bounds(len(part), self.inside.size, 1)
        own = self._add_rows(part, bounds, *self._collect(part, bounds, "rows"))
        crossing = self.across.all_reduce(own)
        yield
        self.wait(crossing)
        rows = self._rows(own, "rows")
        rows.copy_(own.expand_as(rows))
        self.wait(self.inside.all_to_all(part, rows.view(-1), lengths_of(bounds), [len(own)] * self.inside.size))

    def _collect(self, part: torch.Tensor, bounds: Bounds, room: str) -> tuple[torch.Tensor, Work]:
        """This worker's shard of a part on its way from all of the node, [members, numbers]."""
        start, end = bounds[self.inside.place]
        rows = self._rows(part[start:end], room)
        sizes = [end - start] * self.inside.size
        return rows, self.inside.all_to_all(rows.view(-1), part, sizes, lengths_of(bounds))

    def _add_rows(self, part: torch.Tensor, bounds: Bounds, rows: torch.Tensor, work: Work) -> torch.Tensor:
        """The same, summed in order of places where it stands in the part."""
        self.wait(work)
        start, end = bounds[self.inside.place]
        own = part[start:end]
        torch.add(rows[0], rows[1], out=own)
        for row in rows[2:]:
            own.add_(row)
        return own

    def _in_codes(self, part: torch.Tensor, index: int, coding: Coding) -> Iterator[None]:
        """Codes cross the nodes, and are handed out inside as they came: no worker rounds once more."""
        stages, unit, inside, across = self._coded, unit_of(coding), self.inside, self.across
        within, crosses = Stage.of("inside", index), Stage.of("across", index)
        bounds = block_bounds(len(part), inside.size, unit)
        if coding.transport.where is CodecScope.ACROSS_NODES:
            collected = self._collect(part, bounds, f"{within.room} rows")
            yield
            own = self._add_rows(part, bounds, *collected)
        else:
            scatter = stages.scatter(inside, part, coding, within)
            yield
            own = stages.total(scatter, coding)
        crossing = stages.scatter(across, own, coding, crosses)
        yield
        finer = [block_bounds(end - start, across.size, unit) for start, end in bounds]
        size = max(code_size(shard, coding) for shard in finer)
        code = stages.own_code(stages.total(crossing, coding), size, coding, crosses)
        gather = stages.gather(across, code, crosses)
        yield
        row = stages.gathered(gather)  # [nodes, bytes]
        gather = stages.gather(inside, row.view(-1), within)
        yield
        codes = stages.gathered(gather).view(inside.size, across.size, size)
        for (start, stop), shard, mine in zip(bounds, finer, codes, strict=True):
            stages.decode(shard, list(mine), part[start:stop], coding)

    def _rows(self, own: torch.Tensor, room: str) -> torch.Tensor:
        """Room for one shard of each member of the node; used again by every stage."""
        rows = self._coded.room(room, self.inside.size * own.nbytes)
        return rows.view(own.dtype).view(self.inside.size, len(own))


def lengths_of(bounds: Bounds) -> list[int]:
    """The length of each part."""
    return [end - start for start, end in bounds]
