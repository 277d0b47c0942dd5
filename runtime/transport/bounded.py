"""Bounded calls: torch's calls that may block for ever, each made in a thread that can be left behind.

A store whose port somebody else holds, and a gloo group whose member dies while it connects, block inside torch for
several times their timeout, or without end. The thread of such a call stays behind, without the GIL, until the call
returns or the process ends.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from partreduce.runtime.transport.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

SLICE_SECONDS = 0.2


class OverdueError(Exception):
    """The call did not return in time, or there is no sense in waiting for it; the text says why."""


class BoundedCall(Generic[Result]):
    """One call in a thread of its own."""

    def __init__(self, action: Callable[[], Result]) -> None:
        self._action = action
        self._ended = threading.Event()
        self._results: list[Result] = []
        self._error: RuntimeError | None = None
        self._thread = Background(self._run, name="partreduce-bounded-call")
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the call has not returned yet."""
        return not self._ended.is_set()

    def result(self, seconds: float, given_up: Callable[[], str | None] = lambda: None) -> Result:
        """What the call returns; `given_up` is asked now and then whether waiting still makes sense.

        Raises:
            OverdueError: it did not return within so many seconds in which this process ran, or `given_up` said why.
            RuntimeError: torch's own.
        """
        deadline = Deadline(seconds)
        while not self._ended.wait(deadline.slice()):
            if (why := given_up()) is not None:
                raise OverdueError(why)
            if deadline.is_over():
                raise OverdueError(f"did not return within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._results.pop()

    def _run(self) -> None:
        try:
            self._results.append(self._action())
        except RuntimeError as error:
            self._error = error
        self._ended.set()


class Deadline:
    """A deadline that a pause of this very process does not use up: who was stopped must not blame the others."""

    def __init__(self, seconds: float) -> None:
        self._left, self._looked = seconds, time.monotonic()

    def slice(self) -> float:
        """How long to wait before the next look."""
        return max(0.0, min(SLICE_SECONDS, self._left))

    def is_over(self) -> bool:
        """Whether the time has passed; asked after each slice."""
        now = time.monotonic()
        self._left -= min(now - self._looked, 5 * SLICE_SECONDS)
        self._looked = now
        return self._left <= 0
