"""Workers as the launcher sees them, on this machine or on another host."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

ANSWER_SECONDS = 10.0
"""How long a host may take to say that its workers, which it was told to kill, have ended."""


@dataclass(slots=True)
class Worker:
    """A worker as the launcher sees it, wherever it runs; `children_until` is when what it started is ended."""

    rank: int
    code: int | None = field(default=None, kw_only=True)
    """Its exit code, or minus the signal that ended it."""
    lost: str = field(default="", kw_only=True)
    """Why nobody can say how it ended: its host is gone."""
    has_complained: bool = field(default=False, kw_only=True)
    """Whether it wrote to its standard error."""
    children_until: float = field(default=float("inf"), kw_only=True)

    def reap(self) -> bool:
        """Whether it has ended; then `code` says how."""
        raise NotImplementedError

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it started."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Nobody answers for it although it was ended: wait for it no longer."""

    def has_more_to_say(self) -> bool:
        """Whether errors of a worker that has ended are not forwarded yet."""
        return False
