"""Wait for other workers, with deadlines on this process's clock and conditions that end a wait early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from partreduce.topo.errors import UnavailableError

LOOK_SECONDS = 1.0  # between two looks at what the others have noted
GLANCE_SECONDS = 0.2  # between two glances at whether anybody noted a failure at all
DIAGNOSE_SECONDS = 1.5
"""How long a failure waits for the note of the death behind it: a connection closes before anybody can tell why."""
SHORTEST, LONGEST = 3e-5, 1e-3
MAX_WATCHED = 64
SHARE = 32  # a wait is noticed to be over at most this part of itself too late
MOST_SECONDS = 1.0  # what counts at most between two looks, from whatever thread


class OwnTime:
    """A clock that stops while it is not read for longer than `most` seconds; thread-safe.

    A process that was stopped (by SIGSTOP, a debugger or with its machine) must not count that time as other workers'
    silence. A waiting thread reads this clock several times a second, so after a longer gap the process has not run.
    """

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


own_time = OwnTime()  # of this process


class Deadline:
    """A deadline after so many seconds of this process's own time (see `OwnTime`)."""

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
        """Whether the deadline has passed; read it several times a second, or the clock stops."""
        return self.left < 0


class PeerGoneError(Exception):
    """A member can no longer come; the text says why."""


class PeerTimeoutError(PeerGoneError):
    """The timeout has passed; the text names the workers that this one waited for."""


class SignsOfLife:
    """What a wait can ask about other workers; `liveness.heartbeat` implements it.

    In this base class nothing is known of them, so only timeouts end a wait.
    """

    def gone(self, members: Iterable[int], round_: int | None = None) -> str | None:  # noqa: ARG002 - as a heartbeat
        """Return why a member cannot take part any more, as a clause; None if not known."""
        return None

    def lost(self, members: Iterable[int]) -> frozenset[int]:  # noqa: ARG002 - as above
        """Return the members known to have ended or failed."""
        return frozenset()

    def store_lost(self) -> UnavailableError | None:
        """Return the error of a run whose store is gone; None otherwise."""
        return None

    def news(self) -> int:
        return 0

    def doing(self, text: str | Callable[[], str], waits: Iterable[int] = ()) -> None:
        """Record what this worker does now and for which workers it waits."""

    def watch(self, members: Iterable[int]) -> None: ...

    def waits_for(self, members: Iterable[int], seconds: float | None) -> str:
        """Describe for whom this worker waits, along the chain of waits, as a clause."""
        names = ", ".join(f"worker {rank}" for rank in members)
        return f"waits for {names}" + ("" if seconds is None else f", for more than {seconds:g} s")

    def sees_silence(self, members: Iterable[int]) -> bool:  # noqa: ARG002 - as above
        """Whether the worker that holds up these members is known, or cannot be found out."""
        return True


class PeerWatch:
    """Decides when a wait for `members` reads the other workers' notes: cheap glances often, close looks rarely.

    `glance` is the time between two glances in seconds.
    """

    def __init__(
        self, heartbeat: SignsOfLife, members: Iterable[int], round_: int | None = None, *, glance: float | None = None
    ) -> None:
        self._heartbeat, self._round = heartbeat, round_
        self._between = GLANCE_SECONDS if glance is None else glance
        self.turn_to(members)

    def turn_to(self, members: Iterable[int]) -> None:
        """Watch these members from now on; the first look is a while later."""
        self._members = tuple(members)
        self.next = time.monotonic() + self._between
        self._look = time.monotonic() + LOOK_SECONDS
        self._news = 0

    def only_for(self, members: Iterable[int]) -> None:
        self._members = tuple(members)

    def is_due(self) -> bool:
        """Whether to look closely now; may be called at any rate."""
        now = time.monotonic()
        if now < self.next:
            return False
        self.next = now + self._between
        known, self._news = self._news, self._heartbeat.news()
        if self._news == known and now < self._look:
            return False
        self._look = now + LOOK_SECONDS
        if len(self._members) <= MAX_WATCHED:
            self._heartbeat.watch(self._members)
        return True

    def gone(self) -> str | None:
        """If a look is due, return why a member cannot come, as a clause; else None."""
        return self._heartbeat.gone(self._members, self._round) if self.is_due() else None


class Wait(PeerWatch):
    """One wait for `members`: ends early if one can no longer come, else after `timeout` seconds of own time.

    After the timeout it continues briefly until the responsible worker is known. `round_` is the operation's, since
    members may have ended before it; `why`, called instead of asking the heartbeat, returns why not to wait any longer,
    or raises.
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
        """Start the timeout again."""
        self._deadline.renew()

    def look(self) -> float:
        """Check, between two pauses, whether to give up; returns after how many seconds to call it again.

        Raises PeerGoneError or PeerTimeoutError.
        """
        if self.is_due():
            why = self._heartbeat.gone(self._members, self._round) if self._why is None else self._why()
            if why is not None:
                raise PeerGoneError(why)
        if self.is_over():
            raise PeerTimeoutError(self._heartbeat.waits_for(self._members, self._deadline.seconds))
        return max(0.0, self.next - time.monotonic())

    def is_over(self) -> bool:
        """Whether the timeout has passed, and the responsible worker is known or was searched for long enough."""
        left = self._deadline.left
        if left >= 0:
            return False
        return left < -DIAGNOSE_SECONDS or self._heartbeat.sees_silence(self._members)

    def until(self, condition: threading.Condition, done: Callable[[], bool]) -> None:
        """Wait until another thread notifies the condition and `done()`, called with its lock held, is true."""
        while True:
            with condition:
                if condition.wait_for(done, GLANCE_SECONDS):
                    return
            self.look()


def pause_after(waited: float) -> float:
    """Return the seconds to sleep after `waited` seconds of waiting."""
    return min(LONGEST, max(SHORTEST, waited / SHARE))
