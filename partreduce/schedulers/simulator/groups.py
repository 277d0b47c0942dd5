"""Run the group generator in virtual time: the explored system of service and workers, with seconds for its events.

A worker's request and its answer take no time, since the real request leaves a round ahead. A group begins when its
last member has computed and is out of older groups, and shares the links with the groups that run then (`network`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.worker import Computed, Enter, GroupSystem, NextRound
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.machine import Meeting, Recorder, Step, Timing, VirtualMachine
from partreduce.schedulers.simulator.network import Network
from partreduce.schedulers.simulator.staleness import MAX_WORKERS, IndirectAge, Meets
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.timing import loads
from partreduce.topo.timing.loads import Loads

COST_UNIT = 1e-6
"""Seconds in which workers tell the generator what a round takes them to compute, as at run time."""


@dataclass(frozen=True, slots=True)
class WorkerRound:
    """A round of one worker: it computed from `begun` to `computed`, and its group ran from `start` to `end`.

    `members` is empty, and `start` equals `end`, in a round without a group; what lies between is waiting.
    """

    worker: int
    round: int
    begun: float
    computed: float
    start: float
    end: float
    seq: int
    members: tuple[int, ...]


class GroupTiming(Timing):
    """How long the rounds and the groups of a `GroupSystem` take.

    `compute` says the seconds that a worker computes in a round, once for each; `group` how long the operation of some
    members takes, or what it puts on `network`. `on_round` is called with every round that a worker has ended, in order
    of time. Groups that are still owed to a worker after its last round belong to no round.
    """

    def __init__(
        self,
        compute: Callable[[int, int], float],
        group: Callable[[tuple[int, ...]], float | Loads],
        on_round: Callable[[WorkerRound], None],
        network: Network | None = None,
    ) -> None:
        self.compute, self.group, self.on_round, self.network = compute, group, on_round, network
        self._late: dict[int, Step] = {}

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float:  # noqa: ANN401, ARG002
        """A round's computing; nothing where it was computed before the worker asked, or where no round is left."""
        return 0.0 if state.ask.computed or state.ask.last else self.compute(process, state.rounds)

    def meeting(self, process: int, state: Any, event: Hashable) -> Meeting | None:  # noqa: ANN401, ARG002
        """Entering a group is one operation of all its members."""
        if not isinstance(event, Enter):
            return None
        return Meeting(state.seq, state.members, self.group(state.members))

    def happened(self, step: Step) -> None:
        """A round is over when its group is, or when the next begins without one."""
        if isinstance(step.event, Computed):
            self._late[step.process] = step
        if not isinstance(step.event, Enter | NextRound) or step.before.ask.last:
            return
        own = step.before
        computing = self._late.pop(step.process, step)
        members = own.members if isinstance(step.event, Enter) else ()
        times = computing.work_start, computing.work_end, step.start, step.end
        self.on_round(WorkerRound(step.process, own.rounds, *times, own.seq, members))


def group_machine(
    setting: GeneratorSetting, timing: GroupTiming, *, rounds: int, costs: tuple[int, ...] = (), seed: int = 0
) -> VirtualMachine:
    """The system with draws from the setting's seed, each worker doing so many rounds, under a timing."""
    system = GroupSystem(setting, rounds=rounds, collective=False, ways=None, costs=costs)
    return VirtualMachine(system, timing, seed=seed)


def run_groups(case: Case) -> Timeline:
    """Every worker's rounds under the group generator. O(num_rounds · n) requests of O(n) each, and groups at once."""
    strategy, cluster = case.schedule.strategy, case.schedule.cluster
    assert isinstance(strategy, DynamicGroups), "the registry chose this function"
    count, size, seconds = cluster.num_workers, case.size(), case.seconds()
    record, done_rounds = Recorder(seconds), np.zeros(count, dtype=np.int64)
    heard = IndirectAge(case.worker_steps()) if count <= MAX_WORKERS else None
    told: tuple[Meets, ...] = case.listeners if heard is None else (heard, *case.listeners)
    left: dict[int, int] = {}

    @cache
    def group(members: tuple[int, ...]) -> Loads:
        phase = Phase.from_groups(count, [members])
        return loads.of_phase(phase, cluster, case.hardware, model_bytes=size, algorithm=case.algorithm.value)

    def note(done: WorkerRound) -> None:
        row = done.round, done.worker
        record.begun[row], record.computed[row], record.start[row] = done.begun, done.computed, done.start
        record.end[row] = record.finish[row] = done.end
        done_rounds[done.worker] += 1
        if not done.members:
            return
        left[done.seq] = left.get(done.seq, len(done.members)) - 1
        if not left[done.seq]:  # the last member leaves, at the instant of all
            del left[done.seq]
            for listener in told:
                listener.meet(done.members, done_rounds)

    network = Network(cluster, case.hardware)
    timing = GroupTiming(lambda worker, round_: float(seconds[round_, worker]), group, note, network)
    # At run time a worker reports the least of its last rounds, so that a disturbance does not make it a slow one.
    costs = tuple(max(1, round(least / COST_UNIT)) for least in seconds.min(axis=0).tolist())
    setting = GeneratorSetting.of(strategy, cluster)
    group_machine(setting, timing, rounds=case.num_rounds, costs=costs, seed=case.seed).run()
    return record.timeline(case, network.nic_bytes, None if heard is None else heard.ages)
