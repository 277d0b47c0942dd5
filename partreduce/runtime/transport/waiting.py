"""Wait for other workers, with deadlines that count only time in which this process runs, and end waits early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from partreduce.topo.errors import UnavailableError

LOOK_SECONDS = 1.0  # between two full checks, which read the other workers' notes
GLANCE_SECONDS = 0.2  # between two quick checks, which read only the counter of failures
DIAGNOSE_SECONDS = 1.5
"""How long to wait for the note that explains a failure, since a connection closes before the death is recorded."""
SHORTEST, LONGEST = 3e-5, 1e-3
MAX_WATCHED = 64
SHARE = 32  # the end of a wait is noticed late by at most this fraction of the wait
MOST_SECONDS = 1.0  # longest time that counts between two reads of the clock, by any thread


class OwnTime:
    """Clock of the time in which this process runs: between two reads at most `most` seconds count; thread-safe.

    Time in which this process was stopped (by SIGSTOP, a debugger, or with its machine) must not count as silence of
    other workers. Waiting threads read this clock several times a second, so in a longer gap the process did not run.
    """

    def __init__(self, most: float = MOST_SECONDS) -> None:
        self._most = most
        # One value instead of a lock, which could deadlock in a signal handler; whichever of two concurrent reads is
        # written last, the value is correct.
        self._last = 0.0, time.monotonic()

    def __call__(self) -> float:
        seconds, looked = self._last
        now = time.monotonic()
        seconds += min(now - looked, self._most)
        self._last = seconds, now
        return seconds


own_time = OwnTime()  # this process's clock


class Deadline:
    """A deadline `seconds` from now in this process's own time (see `OwnTime`)."""

    def __init__(self, seconds: float, clock: OwnTime = own_time) -> None:
        self.seconds, self._clock = seconds, clock
        self._end = clock() + seconds

    def renew(self) -> None:
        self._end = self._clock() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative afterwards."""
        return self._end - self._clock()

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed; read it several times a second, since longer gaps count as time not run."""
        return self.left < 0


class PeerGoneError(Exception):
    """Error that ends a wait for a group member that can no longer take part; the message says why."""


class PeerTimeoutError(PeerGoneError):
    """Error for a wait whose timeout has passed; the message names the workers that this one waited for."""


class SignsOfLife:
    """Interface through which a wait learns about other workers; `liveness.heartbeat` implements it.

    This base class knows nothing about other workers, so only timeouts end a wait.
    """

    def failure_reason(self, members: Iterable[int], round_: int | None = None) -> str | None:  # noqa: ARG002 - as a heartbeat
        """Return why one of `members` cannot take part in round `round_`, as a clause; None if no reason is known."""
        return None

    def lost(self, members: Iterable[int]) -> frozenset[int]:  # noqa: ARG002 - as above
        """Return the members known to have ended or failed."""
        return frozenset()

    def store_lost(self) -> UnavailableError | None:
        """Return the error to raise if the run's key-value store is gone; None if it is not."""
        return None

    def num_changes(self) -> int:
        return 0

    def doing(self, text: str | Callable[[], str], waits: Iterable[int] = ()) -> None:
        """Record this worker's activity (a clause, or a function that returns it), and the ranks that it waits for."""

    def watch(self, members: Iterable[int]) -> None: ...

    def describe_wait(self, members: Iterable[int], seconds: float | None) -> str:
        """Return as a clause that this worker waits for `members`, for how many `seconds`, and what those wait for."""
        names = ", ".join(f"worker {rank}" for rank in members)
        return f"waits for {names}" + ("" if seconds is None else f", for more than {seconds:g} s")

    def is_diagnosed(self, members: Iterable[int]) -> bool:  # noqa: ARG002 - as above
        """Return whether the search for the worker that delays `members` is over: it was found, or cannot be found."""
        return True


class PeerWatch:
    """Timetable of the checks, during a wait, whether `members` are alive: quick checks often, full checks rarely.

    A quick check reads a counter of failures from the store; a full one asks `heartbeat` whether every member can take
    part in round `round_`. `glance` is the time between two quick checks in seconds.
    """

    def __init__(
        self, heartbeat: SignsOfLife, members: Iterable[int], round_: int | None = None, *, glance: float | None = None
    ) -> None:
        self._heartbeat, self._round = heartbeat, round_
        self._between = GLANCE_SECONDS if glance is None else glance
        self.restart(members)

    def restart(self, members: Iterable[int]) -> None:
        """Watch these members from now on; the first check is due after the time between two quick checks."""
        self._members = tuple(members)
        self.next = time.monotonic() + self._between
        self._look = time.monotonic() + LOOK_SECONDS
        self._news = 0

    def set_members(self, members: Iterable[int]) -> None:
        self._members = tuple(members)

    def is_due(self) -> bool:
        """Return whether a full check is due: after news of a failure, or `LOOK_SECONDS` after the last one."""
        now = time.monotonic()
        if now < self.next:
            return False
        self.next = now + self._between
        known, self._news = self._news, self._heartbeat.num_changes()
        if self._news == known and now < self._look:
            return False
        self._look = now + LOOK_SECONDS
        if len(self._members) <= MAX_WATCHED:
            self._heartbeat.watch(self._members)
        return True

    def failure_reason(self) -> str | None:
        """If a full check is due, return why a member can no longer take part, as a clause; else None."""
        return self._heartbeat.failure_reason(self._members, self._round) if self.is_due() else None


class Wait(PeerWatch):
    """One wait for `members`: it fails early if one of them can no longer take part, else after `timeout` seconds.

    The timeout counts only time in which this process runs (`OwnTime`). After it the wait continues briefly, until the
    responsible worker is known. `round_` is the round of the operation: a member may have finished the run before it.
    `why`, called instead of `heartbeat.failure_reason`, returns why to stop, None, or raises. `glance`: see PeerWatch.
    """

    def __init__(
        self,
        heartbeat: SignsOfLife,
        members: Iterable[int],
        timeout: float,
        round_: int | None = None,
        *,
        why: Callable[[], str | None] | None = None,
        glance: float | None = None,
    ) -> None:
        super().__init__(heartbeat, members, round_, glance=glance)
        self._why, self._deadline = why, Deadline(timeout)

    def renew(self) -> None:
        """Restart the timeout."""
        self._deadline.renew()

    def check(self) -> float:
        """Check whether to stop waiting; return after how many seconds to check again.

        Raises PeerGoneError if there is a reason to stop, PeerTimeoutError after the timeout.
        """
        if self.is_due():
            why = self._heartbeat.failure_reason(self._members, self._round) if self._why is None else self._why()
            if why is not None:
                raise PeerGoneError(why)
        if self.is_over():
            raise PeerTimeoutError(self._heartbeat.describe_wait(self._members, self._deadline.seconds))
        return max(0.0, self.next - time.monotonic())

    def is_over(self) -> bool:
        """Return whether the timeout has passed and the late worker is known, or was sought for `DIAGNOSE_SECONDS`."""
        left = self._deadline.left
        if left >= 0:
            return False
        return left < -DIAGNOSE_SECONDS or self._heartbeat.is_diagnosed(self._members)

    def wait_until(self, condition: threading.Condition, done: Callable[[], bool]) -> None:
        """Wait until `done()`, called with the lock of `condition`, is true; `check`, called meanwhile, may raise."""
        while True:
            with condition:
                if condition.wait_for(done, GLANCE_SECONDS):
                    return
            self.check()


def pause_after(waited: float) -> float:
    """Return how many seconds a loop that has polled for `waited` seconds should sleep before its next poll."""
    return min(LONGEST, max(SHORTEST, waited / SHARE))
