"""Deadline: an end of waiting for others, by a clock of the seconds in which this process itself ran.

Who was stopped, by SIGSTOP, by a debugger or with the whole machine, must not blame the others for the time in which it
heard nobody. The system tells nobody that he was stopped. But who waits looks at this clock several times a second, so
that a longer time between two looks was none in which this process waited.
"""

from __future__ import annotations

import time

MOST_SECONDS = 1.0
"""What counts at most between two looks, from whatever thread."""


class OwnTime:
    """A clock that stands while nobody looks at it for longer than `most` seconds; any thread may look."""

    def __init__(self, most: float = MOST_SECONDS) -> None:
        self._most = most
        # One value, so that threads need no lock, which a signal's handler might find taken: whichever of two looks
        # is written last, it is right.
        self._last = 0.0, time.monotonic()

    def __call__(self) -> float:
        seconds, looked = self._last
        now = time.monotonic()
        seconds += min(now - looked, self._most)
        self._last = seconds, now
        return seconds


own_time = OwnTime()
"""Of this process."""


class Deadline:
    """An end of waiting, after so many seconds of this process's own time."""

    def __init__(self, seconds: float, clock: OwnTime = own_time) -> None:
        self.seconds, self._clock = seconds, clock
        self._end = clock() + seconds

    def renew(self) -> None:
        self._end = self._clock() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until it has passed; negative once it has."""
        return self._end - self._clock()

    @property
    def is_over(self) -> bool:
        """Whether it has passed; asked several times a second, since the clock stands otherwise."""
        return self.left < 0
