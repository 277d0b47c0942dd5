"""Waiting for others: how long to sleep between two looks at a running operation, and what ends a wait early.

Looking is what is left: to be called by the operation's own thread (its future's callbacks), or to wait inside the
library, is to be in C++ frames when the interpreter ends, and an operation that ends in that moment aborts the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOK_SECONDS = 1.0
"""Between two looks at what the others have noted."""
SHORTEST, LONGEST = 3e-5, 1e-3
SHARE = 32
"""A wait is noticed to be over at most this part of itself too late."""


class GoneError(Exception):
    """A member that can no longer come; the text says why."""


class SignsOfLife(Protocol):
    """What a wait wants to know of the others; `liveness.heartbeat` knows it."""

    def gone(self, members: Iterable[int], round_: int | None = None) -> str | None:
        """Why a member cannot take part any more, as a clause; None if nothing is known."""

    def last_seen(self, rank: int) -> str:
        """What a worker did last and whether it still gives signs of life, as a clause."""


class RunningWork(Protocol):
    """A running operation: torch's own works, and those that we carry out."""

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""

    def wait(self) -> object:
        """Wait until it has ended, and raise what went wrong."""


class OwnWork(ABC):
    """An operation that a thread of ours carries out, with the face of a torch work and a wait that has a limit."""

    @abstractmethod
    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""

    @abstractmethod
    def ended_within(self, seconds: float) -> bool:
        """Wait until it has ended, at most so long."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until it has ended, and raise what went wrong."""


def pause_after(waited: float) -> float:
    """Seconds to sleep after `waited` seconds of waiting."""
    return min(LONGEST, max(SHORTEST, waited / SHARE))
