"""Bounded calls: torch's calls that may block for ever, each made in a thread that can be left behind.

A store whose port somebody else holds, and a gloo group whose member dies while it connects, block inside torch for
several times their timeout, or without end. The thread of such a call stays behind, without the GIL, until the call
returns or the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from partreduce.runtime.transport.background import Background
from partreduce.runtime.transport.deadline import Deadline
from partreduce.runtime.transport.waiting import GLANCE_SECONDS

Result = TypeVar("Result")


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
        while not self._ended.wait(min(GLANCE_SECONDS, max(0.0, deadline.left))):
            if (why := given_up()) is not None:
                raise OverdueError(why)
            if deadline.is_over:
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
