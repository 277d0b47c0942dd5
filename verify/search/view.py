"""View: a global state as a reader or a property sees it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preduce.verify.search.system import State, System


class View:
    """A state of a system, decoded where it is looked at: most properties are settled by the processes alone."""

    def __init__(self, system: System, state: State) -> None:
        self._system, self._state = system, state

    @cached_property
    def processes(self) -> tuple[Any, ...]:
        """The processes' states, None where a process has crashed."""
        system, values = self._system, self._system.locals.values
        stopped = system.stopped
        return tuple([None if number == stopped else values[number] for number in self._state[: system.size]])

    @cached_property
    def in_flight(self) -> Mapping[tuple[int, int], tuple[Any, ...]]:
        """The messages on their way per (source, destination), oldest first."""
        return {(u, v): messages for u, v, messages in self._system.in_flight(self._state)}
