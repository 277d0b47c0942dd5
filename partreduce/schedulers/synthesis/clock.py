"""Measure the budget of a search, in wall-clock seconds or in counted work.

A loaded machine does less work in a second. Counted work is the same everywhere: every stage charges the time that its
operations take on one idle core (*nominal seconds*, from the sizes of its arrays and CP-SAT's deterministic time), and
stops when its share of the *effort*, the limit in nominal seconds, is used up. Results are then reproducible.
"""

from __future__ import annotations

from math import inf
from time import monotonic

MANY_SECONDS = 1e9  # stands for no time limit


class Clock:
    """The budget of a search. Its position counts from 0 to `limit`, in nominal seconds if there is an effort.

    `capped` is set once wall-clock time, or an interrupt, ends work that the effort allows.
    """

    def __init__(self, *, seconds: float, effort: float | None = None) -> None:
        """Start now, with limits > 0: `seconds` of wall-clock time, and nominal seconds if `effort` is given."""
        self.seconds, self.effort = seconds, effort
        self.limit = seconds if effort is None else effort
        self.capped = self.interrupted = False
        self._begun, self._work = monotonic(), 0.0

    def position(self) -> float:
        """Return the current position, from 0 to slightly above `limit`."""
        return monotonic() - self._begun if self.effort is None else self._work

    def charge(self, nominal_seconds: float) -> None:
        """Add nominal seconds of finished work."""
        self._work += nominal_seconds

    def interrupt(self) -> None:
        """Stop the search now; the result is then not reproducible."""
        self.capped = self.interrupted = True

    def passed(self, until: float) -> bool:
        """Return whether the position `until` is reached; set `capped` if wall-clock time decides it."""
        return not self.fits(0.0, until)

    def fits(self, nominal_seconds: float, until: float) -> bool:
        """Return whether work of `nominal_seconds` is likely to end before the position `until`.

        Set `capped` if only wall-clock time forbids it.
        """
        work_left = self.work_left(until)
        if self.interrupted or not work_left or nominal_seconds > work_left:
            return False
        if nominal_seconds < self.left(until):
            return True
        self.capped = True
        return False

    def left(self, until: float) -> float:
        """Return the wall-clock seconds until the position `until`, at least 0."""
        return max(0.0, until * self.seconds / self.limit - (monotonic() - self._begun))

    def work_left(self, until: float) -> float:
        """Return the nominal seconds until the position `until`; infinite without an effort."""
        return inf if self.effort is None else max(0.0, until - self._work)

    def stopped_by(self) -> str:
        """Return in words why the search ended."""
        if self.interrupted:
            return "it was interrupted"
        if self.effort is None:
            return f"its time limit of {self.seconds:.4g} s was over"
        if self.capped:
            return f"its time limit of {self.seconds:.4g} s cut its effort of {self.effort:.4g} short"
        return f"its effort of {self.effort:.4g} was used up"
