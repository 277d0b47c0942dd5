"""Deadline: the time that a thread waits for what others bring about, and when that is too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from partreduce.runtime.transport.waiting import DIAGNOSE_SECONDS, GLANCE_SECONDS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from partreduce.runtime.liveness.heartbeat import Heartbeat


class Deadline:
    """Counts how long one wait has taken, in glances at a condition.

    A process that was stopped itself does not count the time for which it was. Where the timeout has passed and nobody
    is known yet who holds this worker up, it waits a little longer to find out.

    Args:
        heartbeat: knows of the others.
        timeout: seconds.
    """

    def __init__(self, heartbeat: Heartbeat, timeout: float) -> None:
        self._heartbeat, self._timeout = heartbeat, timeout
        self._limit = timeout
        self._waited = 0.0

    def glance(self, condition: threading.Condition, done: Callable[[], bool]) -> bool:
        """Wait for `done`, which is asked under the condition's lock, for a glance; whether it has come."""
        start = time.monotonic()
        with condition:
            if condition.wait_for(done, GLANCE_SECONDS):
                return True
        self._waited += min(time.monotonic() - start, 2 * GLANCE_SECONDS)
        return False

    def begin_anew(self) -> None:
        """What was waited for so far does not count: somebody else has a limit for it."""
        self._waited = 0.0

    def is_over(self, of: Iterable[int]) -> bool:
        """Whether the timeout has passed, and it is known, or was looked for, who of these holds this worker up."""
        if self._waited <= self._limit:
            return False
        self._limit = self._timeout + DIAGNOSE_SECONDS
        return self._waited > self._limit or self._heartbeat.sees_silence(of)
