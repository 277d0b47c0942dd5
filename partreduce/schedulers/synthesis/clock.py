"""The budget of a search, in seconds on the wall or in counted work.

Under load a second holds less work. Counted work is the same everywhere: every stage charges the time of its operations
on one quiet core (*nominal seconds*, from the sizes of its arrays, CP-SAT's deterministic time), and stops when
its share of the *effort* is used up. If seconds are only a cap and decided nothing (`capped`), answers repeat.
"""

from __future__ import annotations

from math import inf
from time import monotonic

MANY_SECONDS = 1e9  # stands for no time limit


class Clock:
    """The clock of a search. Positions run from 0 to `limit`, in seconds or, with an effort, in nominal seconds."""

    def __init__(self, *, seconds: float, effort: float | None = None) -> None:
        """Start now; both are > 0 and finite, `seconds` on the wall, `effort` in nominal seconds."""
        self.seconds, self.effort = seconds, effort
        self.limit = seconds if effort is None else effort
        self.capped = self.interrupted = False
        self._begun, self._work = monotonic(), 0.0

    @property
    def elapsed(self) -> float:
        """Seconds on the wall since the start."""
        return monotonic() - self._begun

    def position(self) -> float:
        """The present position of the search, from 0 to a little above `limit`."""
        return self.elapsed if self.effort is None else self._work

    def charge(self, nominal_seconds: float) -> None:
        """Add nominal seconds of finished work."""
        self._work += nominal_seconds

    def interrupt(self) -> None:
        """Stop the search now; another run may give another answer."""
        self.capped = self.interrupted = True

    def passed(self, until: float) -> bool:
        """Whether `until` is reached; `capped` records if seconds and not the effort decided it."""
        if self.interrupted or (self.effort is not None and self._work >= until):
            return True
        if self.elapsed < until * self.seconds / self.limit:
            return False
        self.capped = True
        return True

    def fits(self, nominal_seconds: float, until: float) -> bool:
        """Whether work of about so many nominal seconds is likely to end before the position `until`."""
        if self.passed(until) or nominal_seconds > self.work_left(until):
            return False
        if nominal_seconds <= self.left(until):
            return True
        self.capped = True
        return False

    def left(self, until: float) -> float:
        """Seconds on the wall until the position `until`, at least 0."""
        return max(0.0, until * self.seconds / self.limit - self.elapsed)

    def work_left(self, until: float) -> float:
        """Nominal seconds until the position `until`; infinite if only seconds count."""
        return inf if self.effort is None else max(0.0, until - self._work)

    def stopped_by(self) -> str:
        """Why the search ended, in words: the effort, the time limit that capped it, or the time limit alone."""
        if self.interrupted:
            return "it was interrupted"
        if self.effort is None:
            return f"its time limit of {self.seconds:.4g} s was over"
        if self.capped:
            return f"its time limit of {self.seconds:.4g} s cut its effort of {self.effort:.4g} short"
        return f"its effort of {self.effort:.4g} was used up"
