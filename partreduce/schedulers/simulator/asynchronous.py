"""Simulate protocols without fixed rounds: groups of the group generator, and AD-PSGD's pairs.

A worker's request for a group and its answer take no time, since the real request is sent a round ahead. A group begins
when its last member has computed and is out of older groups. A passive worker of a pair only computes: it answers
during its computing and never waits; a request and its answer carry the model. All-reduces and models share the links
with all concurrent ones (`network`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.adpsgd import Answer, Choose, pairing_of
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.schedulers.protocols.group_generator.worker import Computed, Enter, GroupSystem, NextRound
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.machine import Meeting, Recorder, Step, VirtualMachine
from partreduce.schedulers.simulator.network import Network
from partreduce.schedulers.simulator.staleness import IndirectAge
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.timing import loads
from partreduce.topo.timing.loads import Loads

COST_UNIT = 1e-6
"""The unit, in seconds, in which workers report the compute time of a round to the generator, as at run time."""


class GroupTiming(Recorder):
    """The durations of the rounds and groups of the group generator's protocol (`GroupSystem`).

    `group` returns the seconds of a group's operation, or its load on `network`. When a worker ends a round,
    `on_round(worker, number of the group, members)` is called, in order of time; members are empty in a round without a
    group. Groups that a worker joins after its last round belong to no round.
    """

    def __init__(
        self,
        seconds: npt.NDArray[np.float64],
        group: Callable[[tuple[int, ...]], float | Loads],
        on_round: Callable[[int, int, tuple[int, ...]], None],
        network: Network | None = None,
    ) -> None:
        super().__init__(seconds)
        self.group, self.on_round, self.network = group, on_round, network
        self._late: dict[int, Step] = {}

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float:  # noqa: ANN401, ARG002
        """Return the seconds of a round's computing; 0 if it was computed before the request, or after all rounds."""
        return 0.0 if state.ask.computed or state.ask.last else self.seconds[state.rounds][process]

    def meeting(self, process: int, state: Any, event: Hashable) -> Meeting | None:  # noqa: ANN401, ARG002
        """Return the operation of a worker's group that an `Enter` event begins; None for other events."""
        if not isinstance(event, Enter):
            return None
        return Meeting(state.seq, state.members, self.group(state.members))

    def happened(self, step: Step) -> None:
        """Record the end of a round: when its group ends, or when the next round begins without a group."""
        if isinstance(step.event, Computed):
            self._late[step.process] = step
        if not isinstance(step.event, Enter | NextRound) or step.before.ask.last:
            return
        own, computing = step.before, self._late.pop(step.process, step)
        row = own.rounds, step.process
        self.begun[row], self.computed[row] = computing.work_start, computing.work_end
        self.start[row], self.end[row], self.finish[row] = step.start, step.end, step.end
        self.on_round(step.process, own.seq, own.members if isinstance(step.event, Enter) else ())


def group_machine(
    setting: GeneratorSetting, timing: GroupTiming, *, rounds: int, costs: tuple[int, ...] = (), seed: int = 0
) -> VirtualMachine:
    """Return a simulator of the group generator and its workers.

    Every worker runs `rounds` rounds. `costs` has the compute time of a round that each worker reports to the
    generator, in COST_UNIT seconds. Groups are drawn from the setting's seed, the order of simultaneous events from
    `seed`.
    """
    system = GroupSystem(setting, rounds=rounds, collective=False, ways=None, costs=costs)
    return VirtualMachine(system, timing, seed=seed)


def run_groups(case: Case) -> Timeline:
    """Simulate the group generator. O(num_rounds · n) requests of O(n) each, plus concurrent groups."""
    strategy, cluster = case.schedule.strategy, case.schedule.cluster
    assert isinstance(strategy, DynamicGroups), "the registry chose this function"
    count, size, seconds = cluster.num_workers, case.size(), case.seconds()
    indirect, done_rounds = IndirectAge(case.worker_steps()), np.zeros(count, dtype=np.int64)
    left: dict[int, int] = {}

    @cache
    def group(members: tuple[int, ...]) -> Loads:
        phase = Phase.from_groups(count, [members])
        return loads.of_phase(phase, cluster, case.hardware, model_bytes=size, algorithm=case.algorithm.value)

    def note(worker: int, seq: int, members: tuple[int, ...]) -> None:
        done_rounds[worker] += 1
        if not members:
            return
        left[seq] = left.get(seq, len(members)) - 1
        if not left[seq]:  # the last member leaves; all leave at the same instant
            del left[seq]
            for listener in (indirect, *case.listeners):
                listener.meet(members, done_rounds)

    network = Network(cluster, case.hardware)
    timing = GroupTiming(seconds, group, note, network)
    # At run time a worker reports its fastest recent round, so that one disturbance does not make it slow.
    costs = tuple(max(1, round(least / COST_UNIT)) for least in seconds.min(axis=0).tolist())
    setting = GeneratorSetting.of(strategy, cluster)
    group_machine(setting, timing, rounds=case.num_rounds, costs=costs, seed=case.seed).run()
    return timing.timeline(case, network.nic_bytes, indirect.ages)


class PairTiming(Recorder):
    """The durations of the rounds of AD-PSGD's active workers; models are sent on `network`, or take no time if None.

    With `is_delayed` the next round computes while the exchange runs, instead of after it. `on_exchange` is called with
    the requesting worker, the answering worker and the time at which the answer arrives.
    """

    def __init__(
        self,
        seconds: npt.NDArray[np.float64],
        network: Network | None = None,
        *,
        num_bytes: float = 0.0,
        is_delayed: bool,
        on_exchange: Callable[[int, int, float], None] = lambda asker, partner, now: None,  # noqa: ARG005
    ) -> None:
        super().__init__(seconds)
        self.network, self._num_bytes, self.is_delayed, self.on_exchange = network, num_bytes, is_delayed, on_exchange
        self.done = [0] * seconds.shape[1]

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ANN401, ARG002
        round_ = self.done[process]
        return self.seconds[round_][process] if round_ < len(self.seconds) else None

    def message_seconds(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """Return 0 seconds without a network; else send the message, which carries the model, on it; return None."""
        if self.network is None:
            return 0.0
        self.network.send(source, to, self._num_bytes, (source, to, message))
        return None

    def resumes(self, process: int, message: Hashable) -> bool:  # noqa: ARG002
        """Return whether a message starts a worker's next computing: an answer does, unless averaging is delayed."""
        return not self.is_delayed and isinstance(message, Answer)

    def picked(self, offered: Sequence[Hashable], *, pending: bool, rng: np.random.Generator) -> Sequence[Hashable]:
        """Draw the neighbor that the worker asks in this round from those offered; none while one is `pending`."""
        return () if pending else (offered[int(rng.integers(len(offered)))],)

    def happened(self, step: Step) -> None:
        """Record the choice of a neighbor at the end of computing, and the exchange when the answer arrives."""
        worker, is_answer = step.process, isinstance(step.event, Received) and isinstance(step.event.message, Answer)
        if isinstance(step.event, Choose):
            self.begun[self.done[worker], worker] = step.work_start
            self.computed[self.done[worker], worker] = step.work_end
            self.done[worker] += 1
        if is_answer:
            self.on_exchange(worker, step.event.source, step.end)
        # With delay, an exchange is recorded in the row of the round that computes meanwhile; the last one in none.
        row = self.done[worker] - (not self.is_delayed)
        if row < len(self.seconds) and isinstance(step.event, Choose):
            self.start[row, worker] = self.end[row, worker] = step.end
        elif row < len(self.seconds) and is_answer:
            self.end[row, worker] = step.end


def run_pairs(case: Case) -> Timeline:
    """Simulate AD-PSGD's pairing. O(num_rounds · n · neighbors), plus messages on the links."""
    strategy, cluster = case.schedule.strategy, case.schedule.cluster
    assert isinstance(strategy, Pairwise), "the registry chose this function"
    count, seconds = cluster.num_workers, case.seconds()
    ends = np.cumsum(seconds, axis=0)  # (num_rounds, n), if a worker never waits
    passive = np.setdiff1d(np.arange(count), strategy.active)
    indirect = IndirectAge(case.worker_steps())

    def end_exchange(asker: int, partner: int, now: float) -> None:
        done = np.array(timing.done)
        for worker in passive:
            done[worker] = np.searchsorted(ends[:, worker], now, side="right")
        for listener in (indirect, *case.listeners):
            listener.meet((asker, partner), done)

    network = Network(cluster, case.hardware)
    timing = PairTiming(
        seconds, network, num_bytes=case.size(), is_delayed=strategy.is_delayed, on_exchange=end_exchange
    )
    VirtualMachine(pairing_of(strategy, count), timing, seed=case.seed).run()
    alone = [worker for worker in range(count) if not timing.done[worker]]  # passive, or without neighbors
    timing.begun[:, alone] = (ends - seconds)[:, alone]
    timing.computed[:, alone] = timing.start[:, alone] = timing.end[:, alone] = ends[:, alone]
    if strategy.is_delayed:
        timing.start[0] = timing.end[0] = timing.begun[0]
    timing.finish = np.maximum(timing.computed, timing.end)
    return timing.timeline(case, network.nic_bytes, indirect.ages, is_delayed=strategy.is_delayed)
