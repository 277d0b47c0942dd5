"""Rehearse: train every contestant in one process, without network or clock, at the learning rates of one grid.

    python -m benchmarks.lab.rehearse                     # digits and text
    python -m benchmarks.lab.rehearse --only digits --contestants "flat ring;AD-PSGD"
    python -m benchmarks.lab.rehearse --workers-per-node 1 --contestants "flat ring;pipeline"

The order of updates is that of the schedule; for strategies whose order depends on timing it is that of their protocol
in virtual time, all workers equally fast and the network free. Models, shards and batches are those of the lab's first
repetition. Writes `rates.json` beside this file: steps to the target by rate, under the contestant's name and the hash
of its schedule, since a name does not say what the planner recommends today. The lab trains at the best rate, and
rehearses what it does not find there. Takes minutes, needs no root.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks import compact
from benchmarks.kit import one_thread, parser
from benchmarks.lab.batches import Batches
from benchmarks.lab.contestants import Contestant, contestants
from benchmarks.lab.gates import Clock
from benchmarks.lab.job import Job
from benchmarks.lab.outer_steps import Coded, by_turns
from benchmarks.lab.plan import Planner
from benchmarks.lab.setting import GRID, REHEARSED_TARGETS, Setting, case_of
from benchmarks.lab.tasks import evaluated, make_model, samples_of
from partreduce.schedulers.protocols.adpsgd import pairing_of
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.registry import build
from partreduce.schedulers.simulator.groups import GroupTiming, WorkerRound, group_machine
from partreduce.schedulers.simulator.machine import VirtualMachine
from partreduce.schedulers.simulator.pairs import PairTiming
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import GradientReduction, Pipeline
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.pairwise import Pairwise

ByRate = dict[str, float | None]
RATES = Path(__file__).with_name("rates.json")
EVERY = 4
CASES = {"digits": 96, "text": 160, "deep text": 400}
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
        pairing_of(strategy, rehearsal.count),
        PairTiming(np.ones((MOST_ROUNDS, rehearsal.count)), is_delayed=True),
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
    RATES.write_text(compact.text(content))
    return by_rate


def best_rate(by_rate: ByRate) -> float | None:
    """The rate with the fewest steps, None if none reached the target."""
    reached = {float(rate): steps for rate, steps in by_rate.items() if steps is not None}
    return min(reached, key=lambda rate: (reached[rate], rate)) if reached else None


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--only", help=f"cases separated by commas, of {', '.join(CASES)}")
    arguments.add_argument("--contestants", help="names separated by semicolons")
    arguments.add_argument("--nodes", type=int, default=4)
    arguments.add_argument("--workers-per-node", type=int, default=4)
    chosen = arguments.parse_args()
    one_thread()
    cluster, planned = Cluster.regular(chosen.nodes, chosen.workers_per_node), Planner({})
    listed = [c for c in contestants(planned, planned.coded) if c.rehearsed_as == c.name]
    wanted = chosen.contestants.split(";") if chosen.contestants else [c.name for c in listed if not c.named_only]
    for task in chosen.only.split(",") if chosen.only else CASES:
        setting = Setting(name=task, rate="80mbit", task=task)
        for contestant in listed:
            if contestant.name not in wanted or contestant.make is None:
                continue
            schedule = contestant.make(cluster, setting) or contestant.make(cluster, replace(setting, slow=SLOW))
            if schedule is not None and can_be_rehearsed(schedule):
                rehearse(contestant, schedule, task=task, cluster=cluster)
    return 0


if __name__ == "__main__":
    sys.exit(main())
