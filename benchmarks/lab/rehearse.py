"""Rehearse: train every contestant in one process, without network or clock, at the learning rates of one grid.

The order of updates is that of the schedule; for strategies whose order depends on timing it is that of their protocol
in virtual time, all workers equally fast and the network free. Models, shards and batches are those of the lab's first
repetition. `rates.json` beside this file has the steps to the target by rate, under the contestant's name and the hash
of its schedule, since a name does not say what the planner recommends today. The lab trains at the best rate, and
rehearses what it does not find there.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import kit
from benchmarks.lab.contestants import Contestant
from benchmarks.lab.setting import GRID, REHEARSED_TARGETS, Job, case_of
from benchmarks.lab.tasks import Batches, Clock, evaluated, make_model, samples_of
from partreduce.runtime.codecs import BlockCodec
from partreduce.schedulers.protocols.adpsgd import pairing_of
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.registry import build
from partreduce.schedulers.simulator.asynchronous import GroupTiming, PairTiming, WorkerRound, group_machine
from partreduce.schedulers.simulator.machine import VirtualMachine
from partreduce.topo.cluster import Cluster
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, GradientReduction, Pipeline
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.payload import assign, moves

if TYPE_CHECKING:
    from partreduce.topo.strategies.axes import Transport


def by_turns(rehearsal: Any, schedule: Schedule) -> Callable[[int], None]:  # noqa: ANN401 - as rehearse.by_schedule
    """The steps of a schedule with outer steps or fragments, of as many steps per round for all workers."""
    strategy, steps_per_round = schedule.strategy, schedule.steps_per_round_of(0)
    matrices = [
        torch.from_numpy(mixing_matrix(strategy.phase(t, schedule.cluster))).float() for t in range(strategy.period)
    ]
    count, numbers = strategy.payload.num_fragments, numbers_of(rehearsal, schedule)
    parts = [_Part(rehearsal, numbers == fragment, schedule) for fragment in range(count)]
    due = moves(count, steps_per_round, strategy.sync.late_steps)

    def advance(step: int) -> None:
        rehearsal.take([1] * rehearsal.count)
        matrix = matrices[step // steps_per_round % len(matrices)]
        for move in due:
            if step % steps_per_round + 1 == move.taken and move.merges:
                parts[move.fragment].merge(float(strategy.sync.kept))
            elif step % steps_per_round + 1 == move.taken:
                parts[move.fragment].send(matrix)

    return advance


def numbers_of(rehearsal: Any, schedule: Schedule) -> torch.Tensor:  # noqa: ANN401 - as above
    """The fragment of each number of a model."""
    named: list[tuple[str, int]] = rehearsal.named
    found = assign(schedule.strategy.payload.fragments, [((name,), size) for name, size in named])
    return torch.repeat_interleave(torch.tensor(found), torch.tensor([size for _, size in named]))


class _Part:
    """One fragment of all workers' models, with each worker's anchor and momentum, equal where all have them in common.

    All arrays are (workers, numbers).
    """

    def __init__(self, rehearsal: Any, mine: torch.Tensor, schedule: Schedule) -> None:  # noqa: ANN401 - as above
        places = mine.nonzero().flatten()
        first, end = int(places[0]), int(places[-1]) + 1
        self._mine = slice(first, end) if end - first == len(places) else mine  # a slice needs no copy
        self._rehearsal, self._outer = rehearsal, schedule.strategy.payload.outer
        self._coded = Coded.of(schedule)
        self._outer_params = rehearsal.models[:, self._mine].clone()
        self._momenta = torch.zeros_like(self._outer_params)
        self._sent: torch.Tensor | None = None

    def send(self, matrix: torch.Tensor) -> None:
        """Take the groups' means; those who are in one then make an outer step if it is of all, or of own anchors."""
        models = self._rehearsal.models[:, self._mine]
        if self._coded is None or not (matrix > 0).all():  # codes travel between nodes, and smaller groups are inside
            self._sent = matrix @ models
        else:
            self._sent = self._outer_params + self._coded.mean(models - self._outer_params)
        meets = matrix.diagonal() < 1
        self._steps = (meets & ((matrix > 0).all() | torch.tensor(self._outer.has_own_outer_params)))[:, None]

    def merge(self, kept: float) -> None:
        if self._sent is None:  # the first round may merge what no round has sent
            return
        coming, mine = (self._step(self._sent) if self._steps.any() else self._sent), self._mine
        if kept:
            coming = kept * self._rehearsal.models[:, mine] + (1 - kept) * coming
        self._rehearsal.models[:, mine] = coming

    def _step(self, sent: torch.Tensor) -> torch.Tensor:
        """The outer step of those who make one; where all then are, and the means of the others."""
        moved, momentum = sent - self._outer_params, float(self._outer.momentum)
        following = momentum * self._momenta + moved
        change = moved + momentum * following if self._outer.nesterov else following
        self._momenta = torch.where(self._steps, following, self._momenta)
        self._outer_params = torch.where(
            self._steps, self._outer_params + float(self._outer.lr) * change, self._outer_params
        )
        return torch.where(self._steps, self._outer_params, sent)


class Coded:
    """Means of what all workers have, as the runtime sends them: codes of node sums are added, and so is the sum's.

    Where there are no nodes to add up in, each worker's own movement is coded. With error feedback what a rounding took
    is added to the next sum.
    """

    def __init__(self, transport: Transport, cluster: Cluster) -> None:
        self._transport, self._count = transport, cluster.num_workers
        self._each = cluster.workers_per_node if transport.algorithm is AllReduceAlgorithm.HIERARCHICAL else 1
        self._codec = BlockCodec(str(transport.codec), transport.block)
        self._left: list[torch.Tensor | None] = [None] * (self._count + 1)

    @classmethod
    def of(cls, schedule: Schedule) -> Coded | None:
        """None where numbers are sent as they are."""
        transport = schedule.strategy.transport
        return cls(transport, schedule.cluster) if transport.codec.has_blocks else None

    def mean(self, moved: torch.Tensor) -> torch.Tensor:
        """Of movements (workers, numbers); (numbers,)."""
        parts = moved.view(self._count // self._each, self._each, -1).sum(1)
        total = torch.stack([self._rounded(part, place) for place, part in enumerate(parts)]).sum(0)
        return self._rounded(total, self._count) / self._count

    def _rounded(self, values: torch.Tensor, place: int) -> torch.Tensor:
        left = self._left[place]
        if left is not None:
            values = values + left
        code = torch.empty(
            block_bytes(str(self._transport.codec), len(values), self._transport.block), dtype=torch.uint8
        )
        decoded = torch.empty_like(values)
        self._codec.encode(values, code)
        self._codec.decode(code, decoded)
        if self._transport.error_feedback:
            self._left[place] = values - decoded
        return decoded


os.environ.setdefault("OMP_NUM_THREADS", "1")


ByRate = dict[str, float | None]
RATES = Path(__file__).with_name("rates.json")
EVERY = 4
CASES = {"digits": 96, "text": 160}
"""Tasks, and the most steps that are taken."""
MOST_ROUNDS = 1 + 2 * max(CASES.values())
"""More rounds than any worker begins."""
SLOW = ((6, 5.0),)
"""For contestants that need somebody slow."""


class Rehearsal:
    """Sixteen (or so) models in one process; `losses` are those of the mean model."""

    def __init__(self, *, task: str, cluster: Cluster, rate: float, seed: int = 0) -> None:
        count, samples = cluster.num_workers, samples_of(task)
        nodes = cluster.num_nodes
        job = Job(num_nodes=nodes, workers_per_node=count // nodes, task=task, seed=seed)
        self.samples, self.count, self.rate = samples, count, rate
        self._model = make_model(task, samples, Clock(), seed)
        self.named = [(name, part.numel()) for name, part in self._model.named_parameters()]
        self._parts = list(self._model.parameters())
        start = torch.nn.utils.parameters_to_vector(self._parts).detach()
        self.models = start.expand(count, -1).clone()
        self._batches = [Batches(job, rank, samples) for rank in range(count)]
        self._evaluated = evaluated(samples)

    def gradient(self, rank: int, at: torch.Tensor) -> torch.Tensor:
        """A worker's next gradient, at any parameters."""
        batch, _ = self._batches[rank].draw()
        torch.nn.utils.vector_to_parameters(at, self._parts)
        self._model.eval()  # gates are open then; the models have no layers that differ
        loss = torch.nn.functional.cross_entropy(self._model(self.samples.inputs[batch]), self.samples.labels[batch])
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, self._parts)])

    def gradients(self) -> torch.Tensor:
        """Each worker's next one, at its own model."""
        return torch.stack([self.gradient(rank, self.models[rank]) for rank in range(self.count)])

    def step(self, rank: int) -> None:
        self.models[rank] -= self.rate * self.gradient(rank, self.models[rank])

    def take(self, counts: Sequence[int]) -> None:
        """So many steps of each worker by itself."""
        for rank, count in enumerate(counts):
            for _ in range(count):
                self.step(rank)

    def loss(self, model: torch.Tensor) -> float:
        """Over all samples that the lab evaluates."""
        torch.nn.utils.vector_to_parameters(model, self._parts)
        with torch.no_grad():
            outputs = self._model.eval()(self._evaluated.inputs)
            return float(torch.nn.functional.cross_entropy(outputs, self._evaluated.labels))


def steps_to(
    target: float,
    rehearsal: Any,  # noqa: ANN401 - a Rehearsal, or what has its `models` and `loss`
    advance: Callable[[int], None],
    most: int,
    *,
    every: int = EVERY,
) -> float | None:
    """Steps until the mean model's loss, interpolated between evaluations, falls to the target; None if it does not.

    `advance(step)` takes one step of every worker.
    """
    before = rehearsal.loss(rehearsal.models.mean(0))
    for step in range(1, most + 1):
        advance(step - 1)
        if step % every:
            continue
        loss = rehearsal.loss(rehearsal.models.mean(0))
        if not np.isfinite(loss):
            return None
        if loss <= target:
            return round(step - every + every * (before - target) / (before - loss), 2)
        before = loss
    return None


def by_schedule(rehearsal: Any, schedule: Schedule) -> Callable[[int], None]:  # noqa: ANN401 - as above
    """The steps of a schedule with fixed phases: steps per round, overlap, step-normalized averaging."""
    matrices = [torch.from_numpy(mixing_matrix(step)).float() for step in schedule.steps()]
    overlap = schedule.strategy.mixes_late
    worker_steps = schedule.worker_steps()
    longest = int(worker_steps.max())
    normalized = schedule.strategy.averaging is Averaging.STEP_NORMALIZED
    factors = torch.tensor(
        float(worker_steps.mean()) / worker_steps if normalized else np.ones(len(worker_steps))
    ).float()[:, None]
    begun = rehearsal.models.clone()  # the models when the round began

    def advance(step: int) -> None:
        rehearsal.take(schedule.stepping_at(step).tolist())
        models = rehearsal.models
        if (step + 1) % longest:
            return
        matrix = matrices[step // longest % len(matrices)]
        if normalized:
            models.sub_(begun).mul_(factors).add_(begun)
        if overlap:
            models += matrix @ begun - begun
        else:
            torch.mm(matrix, models.clone(), out=models)
        if normalized or overlap:
            begun.copy_(models)

    return advance


def by_gradients(rehearsal: Rehearsal, schedule: Schedule) -> Callable[[int], None]:
    """Equal models take the mean of all workers' gradients; Pipe-SGD's some steps late once its warm-up is over."""
    sync, coded, on_their_way = schedule.strategy.sync, Coded.of(schedule), deque[torch.Tensor]()
    lag, warm_up, sums = (
        (sync.lag, sync.warm_up, sync.total is GradientReduction.SUM) if isinstance(sync, Pipeline) else (0, 0, False)
    )

    def advance(step: int) -> None:
        gradients = rehearsal.gradients()
        mean = gradients.mean(0) if coded is None else coded.mean(gradients)
        on_their_way.append(mean * rehearsal.count if sums else mean)
        if len(on_their_way) > (lag if step >= warm_up else 0):
            rehearsal.models -= rehearsal.rate * on_their_way.popleft()

    return advance


def pairwise(rehearsal: Rehearsal, strategy: Pairwise) -> Callable[[int], None]:
    """AD-PSGD with its averaging beside the computing: a gradient is as old as the mean that was taken meanwhile."""
    machine = VirtualMachine(
        pairing_of(strategy, rehearsal.count), PairTiming(np.ones((MOST_ROUNDS, rehearsal.count)), is_delayed=True)
    )

    def advance(step: int) -> None:
        steps = [rehearsal.rate * rehearsal.gradient(rank, rehearsal.models[rank]) for rank in range(rehearsal.count)]
        for note in machine.run(until=step + 1.0):
            if note.process in strategy.active and note.what[0] == "averaged":
                pair = [note.process, note.what[1]]
                rehearsal.models[pair] = rehearsal.models[pair].mean(0)
        for rank, change in enumerate(steps):
            rehearsal.models[rank] -= change

    return advance


def asynchronous_server(rehearsal: Rehearsal) -> Callable[[int], None]:
    """Workers push one after another; each gradient is as old as the other workers' pushes since its own last one."""
    server = rehearsal.models[0].clone()
    fetched = rehearsal.models.clone()

    def advance(_: int) -> None:
        for rank in range(rehearsal.count):
            server.sub_(rehearsal.rate * rehearsal.gradient(rank, fetched[rank]))
            fetched[rank] = server
        rehearsal.models[:] = server

    return advance


def _equally_fast(setting: GeneratorSetting, ended: Callable[[WorkerRound], None]) -> VirtualMachine:
    return group_machine(setting, GroupTiming(lambda *_: 1.0, lambda _: 0.0, ended), rounds=MOST_ROUNDS)


def generated(
    rehearsal: Rehearsal,
    strategy: DynamicGroups,
    cluster: Cluster,
    machine_of: Callable[[GeneratorSetting, Callable[[WorkerRound], None]], VirtualMachine] = _equally_fast,
) -> Callable[[int], None]:
    """The groups that the generator hands out; a step is one of every worker on average."""
    steps, met = 0, set[int]()

    def ended(done: WorkerRound) -> None:
        """The first member to leave a group takes the step of all members and the mean; the others have both then."""
        nonlocal steps
        steps += 1
        if not done.members:
            rehearsal.step(done.worker)
        elif done.seq not in met:
            met.add(done.seq)
            members = list(done.members)
            for rank in members:
                rehearsal.step(rank)
            rehearsal.models[members] = rehearsal.models[members].mean(0)

    machine = machine_of(GeneratorSetting.of(strategy, cluster), ended)

    def advance(step: int) -> None:
        while steps < (step + 1) * rehearsal.count:
            machine.run(max_events=1)

    return advance


def can_be_rehearsed(schedule: Schedule) -> bool:
    """Whether `advance_of` knows its steps: workers that keep a gap or a quorum need times for that."""
    return not schedule.strategy.sync.protocol


def advance_of(rehearsal: Rehearsal, schedule: Schedule) -> Callable[[int], None]:
    strategy: Any = schedule.strategy
    if strategy.kind == "pairwise":
        return pairwise(rehearsal, strategy)
    if strategy.kind == "dynamic_groups":
        return generated(rehearsal, strategy, schedule.cluster)
    if strategy.kind == "server":
        exact = build("allreduce", schedule.cluster)
        return by_schedule(rehearsal, exact) if strategy.synchronous else asynchronous_server(rehearsal)
    if strategy.takes_turns or not strategy.payload.outer.is_plain:
        return by_turns(rehearsal, schedule)
    if strategy.averages_gradients:
        return by_gradients(rehearsal, schedule)
    return by_schedule(rehearsal, schedule)


def rates_key(contestant: Contestant, schedule: Schedule) -> str:
    """Under what the steps of a contestant are kept: its name and a hash of its schedule."""
    return f"{contestant.name} {schedule_sha256(Schedule(contestant.name, schedule.cluster, schedule.strategy))[:12]}"


def known_rates(case: str) -> dict[str, ByRate]:
    """What was rehearsed of a case (setting.case_of), by `rates_key`."""
    found: dict[str, ByRate] = json.loads(RATES.read_text()).get(case, {}) if RATES.exists() else {}
    return found


def rehearse(contestant: Contestant, schedule: Schedule, *, task: str, cluster: Cluster) -> ByRate:
    """A contestant's steps to the target by rate, which `rates.json` then holds."""
    begun, by_rate = time.monotonic(), ByRate()
    for rate in GRID[contestant.grid]:
        rehearsal = Rehearsal(task=task, cluster=cluster, rate=rate)
        by_rate[f"{rate:g}"] = steps_to(
            REHEARSED_TARGETS[task], rehearsal, advance_of(rehearsal, schedule), CASES[task]
        )
        if best_rate(by_rate) not in (None, rate):
            break  # a still smaller rate is slower yet
    print(f"{task} {contestant.name:32} {by_rate}  {time.monotonic() - begun:.0f} s", flush=True)
    content = json.loads(RATES.read_text()) if RATES.exists() else {}
    content.setdefault(case_of(task, cluster.num_workers), {})[rates_key(contestant, schedule)] = by_rate
    RATES.write_text(kit.compact(content))
    return by_rate


def best_rate(by_rate: ByRate) -> float | None:
    """The rate with the fewest steps, None if none reached the target."""
    reached = {float(rate): steps for rate, steps in by_rate.items() if steps is not None}
    return min(reached, key=lambda rate: (reached[rate], rate)) if reached else None
