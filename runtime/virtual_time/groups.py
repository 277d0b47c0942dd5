"""The group generator in virtual time: the system of service and workers that is explored, with seconds for its events.

A worker's request and its answer take no time, since the real request leaves a round ahead. A group begins when its
last member has computed and is out of older groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.runtime.virtual_time.machine import Meeting, Step, Timing, VirtualMachine
from partreduce.runtime.virtual_time.record import Observed
from partreduce.runtime.virtual_time.staleness import MAX_WORKERS, Hearsay
from partreduce.runtime.virtual_time.timeline import Timeline
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.system import GroupSystem
from partreduce.schedulers.protocols.group_generator.worker import Computed, Enter, NextRound
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.generated import Generated
from partreduce.topo.timing import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from partreduce.runtime.virtual_time.case import Case

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

    Args:
        compute: (worker, round) → seconds that it computes; asked once for each.
        group: members → seconds that their operation takes.
        on_round: called with every round that a worker has ended, in order of time. Groups that are still owed to a
            worker after its last round belong to no round.
    """

    def __init__(
        self,
        compute: Callable[[int, int], float],
        group: Callable[[tuple[int, ...]], float],
        on_round: Callable[[WorkerRound], None],
    ) -> None:
        self.compute, self.group, self.on_round = compute, group, on_round
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
        self.on_round(
            WorkerRound(
                step.process,
                own.rounds,
                computing.work_start,
                computing.work_end,
                step.start,
                step.end,
                own.seq,
                members,
            )
        )


def group_machine(
    setting: GeneratorSetting, timing: GroupTiming, *, rounds: int, costs: tuple[int, ...] = (), seed: int = 0
) -> VirtualMachine:
    """The system with draws from the setting's seed, each worker doing so many rounds, under a timing."""
    system = GroupSystem(setting, rounds=rounds, collective=False, ways=None, costs=costs)
    return VirtualMachine(system, timing, seed=seed)


def run_groups(case: Case) -> Timeline:
    """Every worker's rounds under the group generator. O(num_rounds · n) requests of O(n) each."""
    strategy, cluster = case.schedule.strategy, case.schedule.cluster
    assert isinstance(strategy, Generated), "the registry chose this function"
    count, num_rounds, paces = cluster.num_workers, case.num_rounds, case.paces()
    size, seconds = case.size(), case.seconds()
    records = np.full((4, num_rounds, count), np.nan)
    nic_bytes, done_rounds = np.zeros(cluster.num_nodes), np.zeros(count, dtype=np.int64)
    heard = Hearsay(paces) if count <= MAX_WORKERS else None
    left: dict[int, int] = {}

    @cache
    def loaded(members: tuple[int, ...]) -> tuple[float, loads.Loads]:
        phase = Phase.from_groups(count, [members])
        one = loads.of_phase(phase, cluster, case.hardware, model_bytes=size, form=case.form.value)
        return float(one.seconds()[0]), one

    def group(members: tuple[int, ...]) -> float:
        seconds, one = loaded(members)
        np.add.at(nic_bytes, one.node, one.bytes_)  # asked once for each group that begins
        return seconds

    def record(done: WorkerRound) -> None:
        records[:, done.round, done.worker] = done.begun, done.computed, done.start, done.end
        done_rounds[done.worker] += 1
        if not done.members or heard is None:
            return
        left[done.seq] = left.get(done.seq, len(done.members)) - 1
        if not left[done.seq]:  # the last member leaves, at the instant of all
            del left[done.seq]
            heard.meet(done.members, done_rounds)

    timing = GroupTiming(lambda worker, round_: float(seconds[round_, worker]), group, record)
    # At run time a worker reports the least of its last rounds, so that a disturbance does not make it a slow one.
    costs = tuple(max(1, round(least / COST_UNIT)) for least in seconds.min(axis=0).tolist())
    setting = GeneratorSetting.of(strategy, cluster)
    group_machine(setting, timing, rounds=num_rounds, costs=costs, seed=case.seed).run()
    assert not np.isnan(records).any(), "the protocol never halts before the end: see docs/explorer.md"
    begun, computed, start, end = records
    observed = Observed.of(nic_bytes, None if heard is None else heard.ages)
    return Timeline(paces, begun, computed, start, end, end, overlap=False, free_running=True, observed=observed)
