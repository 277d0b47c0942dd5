"""Partial averaging in groups in virtual time: the protocol object, with seconds for computing, words and group sums.

What takes time is as for a quorum of all (`partial.py`), but for the sums: a group's sum begins when its last member's
thread has entered the round, and takes what it takes in lockstep, where all groups of a phase share the links. A worker
that rests in a round has nothing to sum.

A run of `num_rounds` lets every worker go until it has taken the results of so many rounds; threads may be in different
rounds. A call publishes what its worker computed since the one before, pace steps of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.runtime.virtual_time.in_turn import InTurn
from partreduce.runtime.virtual_time.machine import Meeting, Step, VirtualMachine
from partreduce.runtime.virtual_time.partial import PartialTiming
from partreduce.runtime.virtual_time.partial_waits import BeginWithout
from partreduce.schedulers.protocols.partial import Begin, Finish
from partreduce.schedulers.protocols.partial_groups import GroupsState, PartialGroups, partial_groups_of
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.quorum import Quorum
from partreduce.topo.timing import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy.typing as npt

    from partreduce.runtime.virtual_time.case import Case
    from partreduce.runtime.virtual_time.timeline import Timeline
    from partreduce.schedulers.protocols.base import Outcome


class WaitingGroups(PartialGroups):
    """The protocol whose threads wait for their own worker's progress, from when they may enter a round (grace)."""

    def ready(self, process: int, state: GroupsState) -> Sequence[Hashable]:  # type: ignore[override]
        """As the protocol, with what waits by its own name."""
        found = super().ready(process, state)
        if not self.setting.grace or state.buffer or state.resting:
            return found
        return [BeginWithout() if event == Begin() else event for event in found]

    def step(self, process: int, state: GroupsState, event: object) -> Outcome[GroupsState]:
        """As the protocol."""
        return super().step(process, state, Begin() if isinstance(event, BeginWithout) else event)


class GroupsTiming(PartialTiming):
    """How long the calls and the rounds of a `PartialGroups` take; records them.

    Args:
        seconds: that each worker computes for each of its calls, shape (num_rounds, num_workers).
        way: (source, to) → seconds that word is on its way.
        group_of: (worker, round) → the members of its group.
        sum_seconds: (worker, round) → seconds of its group's sum.
        grace: seconds that a thread waits for progress of its own worker.

    Its records are those of a `PartialTiming`; `summed` is when the first group's sum of a round began and the last
    one's ended, and `sums` (2, num_rounds, num_workers) when those of each worker's group did.
    """

    def __init__(
        self,
        seconds: npt.NDArray[np.float64],
        way: Callable[[int, int], float],
        group_of: Callable[[int, int], tuple[int, ...]],
        sum_seconds: Callable[[int, int], float],
        *,
        grace: float = 0.0,
    ) -> None:
        super().__init__(seconds, way, sum_seconds=0.0, grace=grace)
        self._group_of, self._sum_of = group_of, sum_seconds
        self.sums = np.full((2, *seconds.shape), np.nan)

    def meeting(self, process: int, state: GroupsState, event: Hashable) -> Meeting | None:  # type: ignore[override]
        """A group's sum is one operation of its members."""
        if not isinstance(event, Finish):
            return None
        members = self._group_of(process, state.done)
        return Meeting((state.done, members[0]), members, self._sum_of(process, state.done))

    def happened(self, step: Step) -> None:
        """As of all, and when each worker's group was at work."""
        super().happened(step)
        row = step.before.done
        if isinstance(step.event, Finish) and row < self.sums.shape[1]:
            self.sums[:, row, step.process] = step.start, step.end
            self.summed[:, row] = np.nanmin(self.sums[0, row]), np.nanmax(self.sums[1, row])

    @property
    def sum_starts(self) -> npt.NDArray[np.float64]:
        """Those of each worker's group."""
        return np.asarray(self.sums[0])


def run_quorum_of_groups(case: Case) -> Timeline:
    """Every worker's rounds under a quorum of each group. O(num_rounds · n · size of a group) messages."""
    schedule, cluster = case.schedule, case.schedule.cluster
    setting = schedule.strategy.when
    assert isinstance(setting, Quorum), "the registry chose this function"
    machine, size = partial_groups_of(schedule), case.size()
    waiting = WaitingGroups(setting, machine.num_workers, machine.group_of, collective=False)
    everybody = Phase.from_groups(cluster.num_workers, [range(cluster.num_workers)])
    phases = (everybody, *(schedule.phase(index) for index in range(schedule.phased.period)))
    loaded = [loads.of_phase(phase, cluster, case.hardware, model_bytes=size, form=case.form.value) for phase in phases]
    labels = [phase.labels() for phase in phases]  # (num_workers,) each, -1 for who rests
    seconds_of = [np.append(one.seconds(), 0.0) for one in loaded]  # of each group, and of who rests

    def place(round_: int) -> int:
        """Which of the phases a round is."""
        late = round_ - schedule.prologue
        return 0 if late < 0 else 1 + late % schedule.phased.period

    def sum_seconds(worker: int, round_: int) -> float:
        phase = place(round_)
        return float(seconds_of[phase][labels[phase][worker]])

    way, grace = InTurn(cluster, case.hardware).latency, setting.grace * 1e-6
    timing = GroupsTiming(case.seconds(), way, machine.group_of, sum_seconds, grace=grace)
    VirtualMachine(waiting, timing, seed=case.seed, keep_notes=False).run()
    nic_bytes = np.zeros(cluster.num_nodes)
    for round_ in range(case.num_rounds):
        one = loaded[place(round_)]
        np.add.at(nic_bytes, one.node, one.bytes_)
    return timing.timeline(case.paces(), nic_bytes)
