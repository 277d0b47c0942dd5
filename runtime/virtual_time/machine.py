"""Virtual time for protocols: the machines of `schedulers.protocols`, driven by an event queue instead of a clock.

The same objects run between real processes and under the exhaustive explorer; here the driver decides only *when*
things happen: how long an offered event takes, and how long a message is on its way.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from preduce.schedulers.protocols.base import Machine, Note, Received, Send
from preduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


@dataclass(frozen=True, slots=True)
class Happened:
    """A note of a process and when it was made."""

    seconds: float
    process: int
    what: Any


@dataclass(slots=True)
class _Process:
    """A process between events: its state, when it last acted, and the events it offers with each offer's number."""

    state: Any
    acted: float = 0.0
    offers: dict[Hashable, int] = field(default_factory=dict)


class VirtualMachine:
    """Runs a machine in virtual time.

    The work before an event begins when the process last acted by itself (messages do not interrupt it) and takes
    `event_seconds`; the event happens when the work is done and the process offers it. Of several that fall due
    together one is drawn. Messages of one channel arrive in the order in which they were sent, each at the earliest
    `message_seconds` after. Deterministic for a seed.

    Args:
        machine: the protocol.
        event_seconds: (process, event, rng) → seconds that the work before an event takes.
        message_seconds: (source, destination, message, rng) → seconds on the way; None for no time at all.
        seed: of the random numbers that the two functions draw, and of ties.
    """

    def __init__(
        self,
        machine: Machine[Any],
        event_seconds: Callable[[int, Hashable, np.random.Generator], float],
        message_seconds: Callable[[int, int, Hashable, np.random.Generator], float] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.machine = machine
        self.now = 0.0
        self._event_seconds = event_seconds
        self._message_seconds = message_seconds
        self._rng = np.random.default_rng(seed)
        self._queue: list[tuple[float, float, int, int, Any, int]] = []
        self._count = 0
        self._last_on: dict[tuple[int, int], float] = {}
        self.notes: list[Happened] = []
        started = [machine.start(process) for process in range(machine.num_processes)]
        self._processes = [_Process(state) for state, _ in started]
        for process, (_, actions) in enumerate(started):
            self._carry_out(process, actions)
            self._offer(process)

    @property
    def is_idle(self) -> bool:
        """Whether nothing will ever happen again: all processes have ended, or they wait for one another."""
        return not self._queue

    def state(self, process: int) -> Any:  # noqa: ANN401 - machines own their states
        """The present state of a process."""
        return self._processes[process].state

    def run(self, *, until: float = float("inf"), max_events: int = 1_000_000) -> list[Happened]:
        """Let things happen until the clock passes `until`, nothing is left, or `max_events` have happened.

        Returns what processes noted since the last call, in order of time. O(log queue) for each event.
        """
        first = len(self.notes)
        for _ in range(max_events):
            if not self._queue or self._queue[0][0] > until:
                break
            self._next()
        return self.notes[first:]

    def _next(self) -> None:
        seconds, _, _, process, event, offer = heapq.heappop(self._queue)
        own = self._processes[process]
        if offer >= 0:
            if own.offers.get(event) != offer:
                return
            del own.offers[event]
            own.acted = seconds
        self.now = seconds
        own.state, actions = self.machine.step(process, own.state, event)
        self._carry_out(process, actions)
        self._offer(process)

    def _carry_out(self, process: int, actions: tuple[Send | Note, ...]) -> None:
        for action in actions:
            if isinstance(action, Note):
                self.notes.append(Happened(self.now, process, action.what))
                continue
            way = 0.0
            if self._message_seconds is not None:
                way = _time(self._message_seconds(process, action.to, action.message, self._rng))
            channel = (process, action.to)
            arrival = max(self.now + way, self._last_on.get(channel, 0.0))
            self._last_on[channel] = arrival
            self._push(arrival, 0.0, action.to, Received(process, action.message), -1)

    def _offer(self, process: int) -> None:
        own = self._processes[process]
        ready = self.machine.ready(process, own.state)
        for event in [event for event in own.offers if event not in ready]:
            del own.offers[event]
        for event in ready:
            if event not in own.offers:
                own.offers[event] = self._count
                due = max(self.now, own.acted + _time(self._event_seconds(process, event, self._rng)))
                # Messages that arrive at the same instant come first (0.0); ties among offers are drawn.
                self._push(due, 1.0 + float(self._rng.random()), process, event, self._count)

    def _push(self, seconds: float, tie: float, process: int, event: Any, offer: int) -> None:  # noqa: ANN401
        heapq.heappush(self._queue, (seconds, tie, self._count, process, event, offer))
        self._count += 1


def _time(seconds: float) -> float:
    if not 0 <= seconds < float("inf"):
        raise InputError(f"virtual time: {seconds} s; work and messages take a finite time >= 0")
    return seconds
