"""View: a global state as a reader or a property sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.explore.search.system import State, System


class View:
    """The processes' states (None where a process has crashed) and, decoded when asked for, the messages in flight.

    Most properties are settled by the processes alone, and millions of states are looked at; so `decoded` says whether
    messages were asked for.
    """

    __slots__ = ("_state", "_system", "decoded", "processes")

    def __init__(self, system: System, state: State) -> None:
        self._system, self._state, self.decoded = system, state, False
        values, stopped = system.locals.values, system.stopped
        self.processes: tuple[Any, ...] = tuple(
            [None if number == stopped else values[number] for number in state[: system.size]]
        )

    @property
    def cut_off(self) -> frozenset[int]:
        """The processes that run on the other side of a cut."""
        system, state = self._system, self._state
        if not system.network.cuts:
            return frozenset()
        self.decoded = True
        running = [one for one, value in enumerate(self.processes) if value is not None]
        return frozenset(one for one in running if system.is_cut_off(state, one))

    @property
    def in_flight(self) -> Mapping[tuple[int, int], tuple[Any, ...]]:
        """The messages on their way per (source, destination), oldest first."""
        self.decoded = True
        return {(u, v): messages for u, v, messages in self._system.in_flight(self._state)}
