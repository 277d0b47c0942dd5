"""View: a global state as a reader or a property sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preduce.verify.search.system import Stopped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preduce.verify.search.system import State, System


@dataclass(frozen=True, slots=True)
class View:
    """The processes' states (None where a process has crashed) and the messages in flight per (source, destination)."""

    processes: tuple[Any, ...]
    in_flight: Mapping[tuple[int, int], tuple[Any, ...]]

    @classmethod
    def of(cls, system: System, state: State) -> View:
        """Decode a state of a system."""
        values = tuple(None if isinstance(v, Stopped) else v for v in system.local_states(state))
        return cls(values, {(u, v): messages for u, v, messages in system.in_flight(state)})
