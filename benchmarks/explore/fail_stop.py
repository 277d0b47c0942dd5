"""Protocols of workers that end when one of them seems dead, as the run-time runs AD-PSGD: nobody may be left waiting.

There a worker that misses another one raises, ends, and its connections close, which everybody connected to it notices.
It makes no difference whether the missed one was dead. The group generator does better: it continues without the
failed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.explore.configuration import Explored
from benchmarks.explore.reductions import Shiftable
from benchmarks.explore.search.properties import through
from partreduce.schedulers.protocols.base import Crashed, Note, Outcome, Received, Send


@dataclass(frozen=True, slots=True)
class Gone:
    """The state of a worker that ended because it missed another one, or was told that somebody did."""


@dataclass(frozen=True)
class FailStop:
    """A `Shiftable`, `Symmetric` or plain machine of workers in which a worker that takes another for dead ends."""

    machine: Any

    @property
    def num_processes(self) -> int:
        count: int = self.machine.num_processes
        return count

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        """Those of the machine and their opposites: the end of a connection is noticed at both ends."""
        pairs = set(self.machine.channels)
        return sorted(pairs | {(v, u) for u, v in pairs})

    @property
    def suspects(self) -> Sequence[tuple[int, int]]:
        """Whoever is connected to a worker may miss it."""
        return self.channels

    def start(self, process: int) -> Outcome[Any]:
        outcome: Outcome[Any] = self.machine.start(process)
        return outcome

    def ready(self, process: int, state: Any) -> Sequence[Hashable]:  # noqa: ANN401 - as in Machine
        """As the machine, until the end."""
        return () if isinstance(state, Gone) else tuple(self.machine.ready(process, state))

    def step(self, process: int, state: Any, event: object) -> Outcome[Any]:  # noqa: ANN401 - as in Machine
        """End if somebody is missed, else as the machine."""
        if isinstance(state, Gone):
            return state, ()
        if isinstance(event, Received) and isinstance(event.message, Crashed):
            closed = tuple(Send(v, Crashed()) for u, v in self.channels if u == process)
            return Gone(), (*closed, Note(("missed", event.source)))
        outcome: Outcome[Any] = self.machine.step(process, state, event)
        return outcome

    def finished(self, process: int, state: Any) -> bool:  # noqa: ANN401, ARG002 - as in Finishing
        """Who has ended rests; the machine's own workers never do."""
        return isinstance(state, Gone)

    # The machine's reductions and words; the end of a worker has no step and names nobody.

    def clock(self, process: int, state: Any) -> int | None:  # noqa: ANN401 - as in Shiftable
        """None where the machine has no clock."""
        if isinstance(state, Gone) or not isinstance(self.machine, Shiftable):
            return None
        return self.machine.clock(process, state)

    def shifted(self, process: int, state: Any, by: int) -> Any:  # noqa: ANN401 - as in Shiftable
        return state if isinstance(state, Gone) else self.machine.shifted(process, state, by)

    def shifted_message(self, message: Any, by: int) -> Any:  # noqa: ANN401 - as in Shiftable
        return message if isinstance(message, Crashed) else self.machine.shifted_message(message, by)

    def symmetries(self) -> Sequence[tuple[int, ...]]:
        return tuple(self.machine.symmetries())

    def renamed(self, process: int, state: Any, permutation: tuple[int, ...]) -> Any:  # noqa: ANN401 - as in Symmetric
        return state if isinstance(state, Gone) else self.machine.renamed(process, state, permutation)

    def renamed_message(self, message: Any, permutation: tuple[int, ...]) -> Any:  # noqa: ANN401 - as in Symmetric
        return message if isinstance(message, Crashed) else self.machine.renamed_message(message, permutation)


def fail_stop(found: Explored) -> Explored:
    """The same of workers that end when they miss one; asked of those that have not, and of what is between them."""
    asked = (through(prop, lambda state: None if isinstance(state, Gone) else state) for prop in found.properties)
    return Explored(FailStop(found.machine), tuple(asked))
