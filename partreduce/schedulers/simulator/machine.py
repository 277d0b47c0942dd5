"""Simulate protocols: the machines of `schedulers.protocols` with an event queue instead of a clock.

The same objects run between real processes and under the exhaustive explorer; here the driver decides only *when*
events happen, and a `Timing` gives the durations.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.base import Action, Machine, Note, Received
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.network import Network
from partreduce.schedulers.simulator.staleness import Ages
from partreduce.schedulers.simulator.timeline import AsynchronousMetrics, GapRecord, QuorumRecord, Timeline
from partreduce.topo.errors import InputError
from partreduce.topo.timing.loads import Loads


@dataclass(frozen=True, slots=True)
class Meeting:
    """An operation of several processes, which begins when the last of `members` has arrived.

    `key` identifies it among those in progress; it `takes` fixed seconds, or as long as its loads on the links need.
    """

    key: Hashable
    members: tuple[int, ...]
    takes: float | Loads


@dataclass(frozen=True, slots=True)
class Step:
    """One executed event of a process, with its times in seconds.

    The work before it lasted from `work_start` to `work_end`; the event itself began at `start`, when all required
    members had arrived, and was over at `end`. All four are equal for a message. `before` is the state of the process
    before the event, `actions` are the resulting actions.
    """

    process: int
    before: Any
    event: Any
    actions: tuple[Action, ...]
    work_start: float
    work_end: float
    start: float
    end: float


class Timing:
    """The durations of work and messages in a simulation: 0 unless a subclass overrides a method.

    `rng` is the simulator's generator of random numbers.
    """

    sees_messages = True
    """Whether `happened` is also called for messages, which are most events of a large run."""
    keeps_order = False
    """Whether `message_seconds` keeps messages from overtaking each other; otherwise the simulator delays them."""
    network: Network | None = None
    """The links that transfers share: operations with loads, and messages for which `message_seconds` returns None."""

    def work(self, process: int, state: Any, event: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ANN401, ARG002
        """Return the seconds of the work before an event; None if the process has no work left and stops."""
        return 0.0

    def message_seconds(self, source: int, to: int, message: Hashable, rng: np.random.Generator) -> float | None:  # noqa: ARG002
        """Return the seconds until a message arrives; None if it is on `network`, which determines its arrival."""
        return 0.0

    def resumes(self, process: int, message: Hashable) -> bool:  # noqa: ARG002
        """Return whether a process begins its next work on this message, instead of right after its last event."""
        return False

    def picked(self, offered: Sequence[Hashable], *, pending: bool, rng: np.random.Generator) -> Sequence[Hashable]:  # noqa: ARG002
        """Return those `offered` events that the process will execute; `pending`: it already works for another one."""
        return offered

    def meeting(self, process: int, state: Any, event: Hashable) -> Meeting | None:  # noqa: ANN401, ARG002
        """Return the operation of several processes to which an event belongs; None for an event of one process."""
        return None

    def happened(self, step: Step) -> None:
        """Observe an event; called after every event, and for messages if `sees_messages`."""


_Due = tuple[float, float, int, int, Any, int, float | None]
"""An entry of the event queue.

(time, tie-breaker, serial number, process, event, offer number, start of its operation). The offer number is −1 for a
message; the start is None until the operation has begun. A plain tuple, because millions are made.
"""


class _Offer(NamedTuple):
    """An event for which a process works: the number of the offer, and when its work begins and ends."""

    number: int
    work_start: float
    work_end: float


class _RunningOperation(NamedTuple):
    """An operation in progress since `start`; `events` has the event with which each member arrived."""

    members: tuple[int, ...]
    events: dict[int, Hashable]
    start: float


@dataclass(slots=True)
class _Process:
    """A process between events: its state, time of its last event, offered events, the operation that it waits in."""

    state: Any
    acted: float = 0.0
    offers: dict[Hashable, _Offer] = field(default_factory=dict)
    waits_in: Hashable | None = None


class VirtualMachine:
    """The simulator: runs a machine (a protocol as pure functions over states of processes) in virtual time.

    A run is deterministic for its `seed`, which draws the order of simultaneous events and the timing's numbers. The
    work before an event begins when the process last acted by itself; messages do not interrupt it, unless the timing
    says that one `resumes` it. The event happens when the work is done and the process offers it; if it is part of an
    operation of several processes, when all members have arrived and the operation's time is over. Members leave an
    operation in the order of its `members`. Messages from one process to another arrive in the order in which they were
    sent, unless the timing has `keeps_order`.
    """

    def __init__(self, machine: Machine[Any], timing: Timing, *, seed: int = 0) -> None:
        self.machine, self.timing, self._network = machine, timing, timing.network
        self.now = 0.0
        self._rng = np.random.default_rng(seed)
        self._queue: list[_Due] = []
        self._count = 0
        self._last_on: dict[tuple[int, int], float] = {}
        self._present: dict[Hashable, dict[int, Hashable]] = {}
        started = [machine.start(process) for process in range(machine.num_processes)]
        self._processes = [_Process(state) for state, _ in started]
        for process, (_, actions) in enumerate(started):
            self._carry_out(process, actions)
            self._offer(process)

    @property
    def states(self) -> list[Any]:
        return [process.state for process in self._processes]

    def run(self, *, until: float = float("inf"), max_events: int | None = None) -> None:
        """Execute events up to time `until` (seconds), at most `max_events`. O(log queue) per event."""
        left = max_events
        while left != 0 and (at := self._next_at()) < float("inf") and at <= until:
            if self._network is None or self._is_due(at, self._network):
                self._next()
                left = None if left is None else left - 1

    def _next_at(self) -> float:
        """Return the time of the next event; infinity if there is none."""
        due = self._queue[0][0] if self._queue else float("inf")
        return due if self._network is None else min(due, self._network.next_end())

    def _is_due(self, at: float, network: Network) -> bool:
        """Advance time on the links to `at` and queue what arrives; return whether a queued event is due by then."""
        for moment, gone in network.go_to(at):
            if isinstance(gone, _RunningOperation):
                self._leave(gone, moment)
            else:
                process, to, message = gone
                self._push(moment, 0.0, to, Received(process, message))
        return bool(self._queue) and self._queue[0][0] <= at

    def _next(self) -> None:
        seconds, _, _, process, event, number, start = heapq.heappop(self._queue)
        own = self._processes[process]
        if number < 0:
            self.now = seconds
            if self.timing.resumes(process, event.message):
                own.acted = seconds
            if self.timing.sees_messages:
                self._happen(process, event, _Offer(-1, seconds, seconds), seconds)
            else:
                own.state, actions = self.machine.step(process, own.state, event)
                if actions:
                    self._carry_out(process, actions)
                self._offer(process)
            return
        offer = own.offers.get(event)
        if offer is None or offer.number != number:
            return
        self.now = seconds
        if start is None:
            meeting = self.timing.meeting(process, own.state, event)
            if meeting is not None:
                self._come(process, event, meeting)
                return
        del own.offers[event]
        own.acted, own.waits_in = seconds, None
        self._happen(process, event, offer, seconds if start is None else start)

    def _happen(self, process: int, event: Hashable, offer: _Offer, start: float) -> None:
        own = self._processes[process]
        before = own.state
        own.state, actions = self.machine.step(process, before, event)
        self.timing.happened(Step(process, before, event, actions, offer.work_start, offer.work_end, start, self.now))
        self._carry_out(process, actions)
        self._offer(process)

    def _come(self, process: int, event: Hashable, meeting: Meeting) -> None:
        """Record that a process arrived at its operation, which begins when the last member arrives."""
        present = self._present.setdefault(meeting.key, {})
        present[process] = event
        self._processes[process].waits_in = meeting.key
        if len(present) < len(meeting.members):
            return
        del self._present[meeting.key]
        for member in meeting.members:
            self._processes[member].waits_in = None
        begun = _RunningOperation(meeting.members, present, self.now)
        if isinstance(meeting.takes, float | int):
            self._leave(begun, self.now + _time(meeting.takes))
        else:
            assert self._network is not None, "a timing whose meetings have loads has links for them"
            self._network.sum(meeting.takes, begun)

    def _leave(self, begun: _RunningOperation, end: float) -> None:
        """Let all members of an operation leave it at time `end`, in the order of `begun.members`."""
        for place, member in enumerate(begun.members):
            wanted = begun.events[member]
            tie, number = 1.0 + place / len(begun.members), self._processes[member].offers[wanted].number
            self._push(end, tie, member, wanted, offer=number, start=begun.start)

    def _carry_out(self, process: int, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, Note):
                continue  # `Timing.happened` receives it
            way = self.timing.message_seconds(process, action.to, action.message, self._rng)
            if way is None:
                continue
            arrival = self.now + _time(way)
            if not self.timing.keeps_order:
                channel = (process, action.to)
                arrival = self._last_on[channel] = max(arrival, self._last_on.get(channel, 0.0))
            # Messages precede events that are due at the same instant: their ties are below 1.
            self._push(arrival, 0.0, action.to, Received(process, action.message))

    def _offer(self, process: int) -> None:
        own = self._processes[process]
        ready = self.machine.ready(process, own.state)
        if len(ready) == len(own.offers) and (not ready or (len(ready) == 1 and ready[0] in own.offers)):
            return  # unchanged: most messages only change a queue
        for event in [event for event in own.offers if event not in ready]:
            del own.offers[event]
            if own.waits_in is not None and self._present[own.waits_in].get(process) == event:
                del self._present[own.waits_in][process]
                own.waits_in = None
        new = [event for event in ready if event not in own.offers]
        if not new:
            return
        for event in self.timing.picked(new, pending=bool(own.offers), rng=self._rng):
            seconds = self.timing.work(process, own.state, event, self._rng)
            if seconds is not None:
                work_end = own.acted + _time(seconds)
                own.offers[event] = _Offer(self._count, own.acted, work_end)
                tie = 1.0 + float(self._rng.random())
                self._push(max(self.now, work_end), tie, process, event, offer=self._count)

    def _push(
        self,
        seconds: float,
        tie: float,
        process: int,
        event: Any,  # noqa: ANN401 - machines own their events
        *,
        offer: int = -1,
        start: float | None = None,
    ) -> None:
        heapq.heappush(self._queue, (seconds, tie, self._count, process, event, offer, start))
        self._count += 1


def _time(seconds: float) -> float:
    if not 0 <= seconds < float("inf"):
        raise InputError(f"virtual time: {seconds} s; work and messages take a finite time >= 0")
    return seconds


class Recorder(Timing):
    """A timing that records the times of rounds in arrays of shape (num_rounds, num_workers), in seconds.

    A worker computes for `seconds` (the same shape) in each round, and then stops. It began to compute its round at
    `begun` and ended at `computed`; from `start` to `end` it communicated, and its round was over at `finish`.
    """

    def __init__(self, seconds: npt.NDArray[np.float64]) -> None:
        self.seconds: list[list[float]] = seconds.tolist()
        self.begun, self.computed, self.start, self.end, self.finish = np.full((5, *seconds.shape), np.nan)

    def timeline(
        self,
        case: Case,
        nic_bytes: npt.NDArray[np.float64],
        ages: Ages | None,
        *,
        is_delayed: bool = False,
        free_running: bool = True,
        gaps: GapRecord | None = None,
        quorum: QuorumRecord | None = None,
    ) -> Timeline:
        """Return the timeline of a run that has ended; `nic_bytes` (num_nodes,) are the bytes that left each node.

        The other arguments are members of `Timeline` and of its `observed`.
        """
        assert not np.isnan(self.finish).any(), "the protocol never halts before the end"
        largest, mean = (None, None) if ages is None else (ages.largest, ages.mean)
        if quorum is not None:
            largest, mean = float(quorum.ages.max()), float(quorum.ages.mean())
        rows = self.begun, self.computed, self.start, self.end, self.finish
        observed = AsynchronousMetrics(nic_bytes, largest, mean, gaps, quorum)
        return Timeline(case.worker_steps(), *rows, is_delayed=is_delayed, free_running=free_running, observed=observed)
