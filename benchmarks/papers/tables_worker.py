"""One worker of a session: trains by several ways of exchanging tables in turns, and leaves times, bytes and losses.

Ours are schedules that name routes; the two systems that Parallax is compared with are written down as plainly as they
work: TF-PS and Horovod. Both give the gradients' mean over all workers, as every other way here; they differ in what
travels. Neither looks at which workers share a node. Servers may also send as our tables do, in rounds of pairs.
Turns stand side by side in the same processes, so that a drift of the machine's load hits all ways alike. Between
turns all workers meet, outside the clock; losses are taken there, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import partreduce
from benchmarks import kit
from benchmarks.lab.setting import Job
from benchmarks.lab.worker import bytes_out, use_environment
from benchmarks.transport import Meet, joined
from partreduce.runtime.transport.communicators import Communicator, pairwise_exchange

WORDS = 40_000
"""Rows of a table: the most frequent words, and row 0 for all others."""
BEFORE = 3
"""Words that stand before the one to be told."""
COLUMNS = 128
HIDDEN = 96
DRAWN = 256
"""Words that a target is told apart from, the same for all workers of a step, as on one device."""
BATCH = 200
HELD_OUT = 50
"""Every so many places of the text are never trained on."""
HELD_OUT = 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step of one worker reads: rows of the tables, shapes as its model wants them, and what it is to say."""

    inputs: torch.Tensor
    labels: torch.Tensor
    drawn: torch.Tensor


class Language(nn.Module):
    """The next word from the three before it; loss by words drawn as often as their rank says (sampled softmax).

    `encoder` and `decoder` are the tables, (40,000, 128) each; the rest are 49,376 numbers, 0.2 MB: about half
    as many as a worker's touched rows have.
    """

    def __init__(self, *, sparse: bool, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Embedding(WORDS, COLUMNS, sparse=sparse)
        self.decoder = nn.Embedding(WORDS, COLUMNS, sparse=sparse)
        with torch.no_grad():
            self.encoder.weight.mul_(0.1)
            self.decoder.weight.mul_(0.1)
        self.inner = nn.Sequential(nn.Linear(BEFORE * COLUMNS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, COLUMNS))

    def tables(self) -> dict[str, nn.Parameter]:
        """By the names of their parameters in the model."""
        return {"encoder.weight": self.encoder.weight, "decoder.weight": self.decoder.weight}

    def dense(self) -> list[nn.Parameter]:
        return list(self.inner.parameters())

    def touched(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The distinct rows of each table that a batch reads, ascending: words before, and words that may come next."""
        after = torch.cat([batch.labels, batch.drawn])
        return {"encoder.weight": batch.inputs.unique(), "decoder.weight": after.unique()}

    def forward(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch: cross-entropy of the target among the words drawn for the step."""
        before = self.encoder(batch.inputs).flatten(1)  # (count, 3 * 128)
        guess = self.inner(before)  # (count, 128)
        rows = self.decoder(torch.cat([batch.labels, batch.drawn]))  # (count + drawn, 128)
        count = len(batch.labels)
        right = (guess * rows[:count]).sum(1, keepdim=True) - _log_share(batch.labels)[:, None]
        wrong = guess @ rows[count:].T - _log_share(batch.drawn)  # (count, drawn)
        wrong = wrong.masked_fill(batch.drawn == batch.labels[:, None], -1e9)
        return functional.cross_entropy(torch.cat([right, wrong], 1), torch.zeros(count, dtype=torch.long))


def _log_share(words: torch.Tensor) -> torch.Tensor:
    """How likely a word is to be drawn, in logarithms: ln((k + 2) / (k + 1)) / ln(words + 1) for the k-th."""
    return torch.log(torch.log1p(1 / (words + 1.0)) / np.log(WORDS + 1.0))


class LanguageData:
    """Batches of the text."""

    def __init__(self, codes: np.ndarray) -> None:
        self.codes = codes

    def batch(self, seed: int, step: int, worker: int, size: int = BATCH) -> Batch:
        """Windows at random places of the text that are not held out."""
        draw = np.random.default_rng((seed, step, worker))
        places = draw.integers(0, (len(self.codes) - BEFORE - 1) // HELD_OUT, size) * HELD_OUT
        return self._at(places + draw.integers(1, HELD_OUT, size), _drawn((seed, step), DRAWN))

    def judged(self, worker: int, size: int) -> Batch:
        draw = np.random.default_rng((7, worker))
        places = draw.integers(0, (len(self.codes) - BEFORE - 1) // HELD_OUT, size) * HELD_OUT
        return self._at(places, _drawn((7,), HELD_OUT))

    def _at(self, places: np.ndarray, drawn: np.ndarray) -> Batch:
        windows = self.codes[places[:, None] + np.arange(BEFORE + 1)].astype(np.int64)  # (count, 4)
        return Batch(torch.from_numpy(windows[:, :-1]), torch.from_numpy(windows[:, -1]), torch.from_numpy(drawn))


def _drawn(seed: tuple[int, ...], count: int) -> np.ndarray:
    """Words by their rank, the k-th as often as `_log_share` says, each once."""
    draw = np.random.default_rng(seed).random(2 * count)
    return np.unique(np.exp(draw * np.log(WORDS + 1.0)).astype(np.int64) - 1)[:count]


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


TF_PS, TF_PS_IN_PAIRS, HOROVOD = "TF-PS", "TF-PS, in rounds of pairs", "Horovod"
TF_PS_CUT = "TF-PS, dense parameters cut evenly"
SERVERS = (TF_PS, TF_PS_IN_PAIRS, TF_PS_CUT)
BASELINES = (*SERVERS, HOROVOD)
TABLE_RATE, RATE = 0.2, 0.01
"""Learning rates of Adagrad for tables and for the rest."""
TIMEOUT = 60.0


class Way(Protocol):
    """A model and what makes it step."""

    model: Language

    def before(self, batch: Batch) -> None:
        """Fetch what forward reads, where that does not happen by itself."""

    def step(self) -> None:
        """Exchange gradients and step."""


def way_of(name: str, job: Job, group: Communicator) -> Way:
    """The way of that name; ours reads its schedule. Models are the same on all workers."""

    def optimizer(parameters: list[torch.nn.Parameter], is_table: bool) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=TABLE_RATE if is_table else RATE)

    model = Language(sparse=True)
    if name == HOROVOD:
        return Gathered(group, model, optimizer)
    if name in SERVERS:
        hosts = range(0, job.num_workers, job.workers_per_node)
        return Servers(group, model, optimizer, hosts, in_pairs=name == TF_PS_IN_PAIRS, cut=name == TF_PS_CUT)
    return Routed(model, job.options["schedules"][name])


class Routed:
    """A schedule of ours, with the lines that its users write; models are equal from the start, and nothing is sent."""

    def __init__(self, model: Language, schedule: str) -> None:
        groups = [{"params": list(model.tables().values()), "lr": TABLE_RATE}, {"params": model.dense(), "lr": RATE}]
        adagrad = torch.optim.Adagrad(groups)
        codec = json.loads(Path(schedule).read_text())["strategy"].get("transport", {}).get("codec", "none")
        initial = "keep" if codec == "none" else "broadcast"  # coded averages of parameters want it
        self.optimizer = partreduce.DistributedOptimizer(adagrad, model, schedule, timeout=TIMEOUT, initial=initial)
        self.model = model

    def before(self, batch: Batch) -> None:
        """Lookups fetch rows by themselves."""

    def step(self) -> None:
        self.optimizer.step()


READY, SHAPED = "ready", "shaped"
"""Files by which a session's workers and its starter agree when links become slow."""
JUDGED = 96
"""Samples of each worker in a judgment."""
START_SECONDS = 90.0


def measure(job: Job, node: int) -> None:
    """Everything a worker does; an alarm ends the process if it hangs, whatever it hangs in."""
    kit.end_after(job.limit)
    rank = use_environment(job, node)
    world, meet = joined()
    group = world.create(tuple(range(world.size)), name="papers")
    data = LanguageData(np.load(job.options["text"], mmap_mode="r"))
    runs = {name: _Run(job, rank, data, way_of(name, job, group), meet) for name in job.options["ways"]}
    for run in runs.values():  # the first step connects, and is not timed
        run.steps(1)
    _wait_for_links(job, rank, meet)
    end = time.monotonic() + job.options["seconds"]
    for _ in range(job.options["turns"]):
        for run in runs.values():
            if meet(float(time.monotonic() > end)) == 0:
                run.turn()
        _write(job, rank, runs)
    for run in runs.values():
        if job.options["target"] and not run.is_over:
            run.judge()
    _write(job, rank, runs)
    meet(0.0)


def _wait_for_links(job: Job, rank: int, meet: Meet) -> None:
    """Until now links were fast; whoever started the session shapes them when all have come so far."""
    meet(0.0)
    if rank == 0:
        (job.path / READY).touch()
    end = time.monotonic() + START_SECONDS
    while not (job.path / SHAPED).exists() and time.monotonic() < end:
        time.sleep(0.02)
    meet(0.0)


class _Run:
    """One way under way; a turn is [steps before, start, end, bytes out of the node, loss before or none]."""

    def __init__(self, job: Job, rank: int, data: LanguageData, way: Way, meet: Meet) -> None:
        self.job, self.rank, self.data, self.way, self.meet = job, rank, data, way, meet
        self.done, self.is_over = 0, False
        self.turns: list[list[float | None]] = []

    def turn(self) -> None:
        """Judge, and take the steps of one turn unless the target was reached."""
        loss = self.judge() if self.job.options["target"] and not self.is_over else None
        if self.is_over:
            return
        self.meet(0.0)
        before, sent, begun = self.done, bytes_out(), time.monotonic()
        self.steps(self.job.options["steps"])
        ended = time.monotonic()
        self.meet(0.0)
        if loss is not None:
            self.turns.pop()
        self.turns.append([before, begun, ended, bytes_out() - sent, loss])

    def steps(self, count: int) -> None:
        """Train. Computing sleeps a third forward, the rest back."""
        for _ in range(count):
            batch = self.data.batch(self.job.seed, self.done, self.rank)
            self.way.model.zero_grad()
            self.way.before(batch)
            loss = self.way.model(batch)
            time.sleep(self.job.compute / 3)
            loss.backward()
            time.sleep(2 * self.job.compute / 3)
            self.way.step()
            self.done += 1

    def judge(self) -> float:
        """The mean of all workers' losses over samples that nobody trains on, as a turn that took no time."""
        batch = self.data.judged(self.rank, JUDGED)
        self.way.model.zero_grad()
        self.way.before(batch)
        with torch.no_grad():
            loss = float(self.way.model(batch))
        mean = self.meet(loss) / self.job.num_workers
        self.turns.append([self.done, 0.0, 0.0, 0, mean])
        self.is_over = mean <= self.job.options["target"]
        return mean


def _write(job: Job, rank: int, runs: dict[str, _Run]) -> None:
    part = job.path / f"tables-{rank:03d}.part"
    part.write_text(json.dumps({name: run.turns for name, run in runs.items()}))
    part.replace(job.path / f"tables-{rank:03d}.json")
