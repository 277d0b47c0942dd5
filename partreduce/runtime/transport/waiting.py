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
    """A clock that stands while it is not read for longer than `most` seconds; any thread may look.

    A process that was stopped, by SIGSTOP, by a debugger or with its machine, must not blame the others for the time in
    which it heard no worker, and is not notified of it. But a thread that waits looks at this clock several times a
    second, so in a longer time between two looks this process did not run.
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


class PeerGoneError(Exception):
    """A member that can no longer come; the text says why."""


class PeerTimeoutError(PeerGoneError):
    """The timeout has passed; the text says for whom this worker waited."""


class SignsOfLife:
    """What a wait wants to know of the others; `liveness.heartbeat` knows it.

    This is where no worker gives signs of life: only its timeout ends a wait.
    """

    def gone(self, members: Iterable[int], round_: int | None = None) -> str | None:  # noqa: ARG002 - as a heartbeat
        """Why a member cannot take part any more, as a clause; None if nothing is known."""
        return None

    def lost(self, members: Iterable[int]) -> frozenset[int]:  # noqa: ARG002 - as above
        """The members that are known to take part in nothing any more."""
        return frozenset()

    def store_lost(self) -> UnavailableError | None:
        """The error of a run whose store is gone; None while nothing is known against it."""
        return None

    def news(self) -> int:
        return 0

    def doing(self, text: str | Callable[[], str], waits: Iterable[int] = ()) -> None:
        """Say what this worker does now, and for whom it waits in that."""

    def watch(self, members: Iterable[int]) -> None: ...

    def waits_for(self, members: Iterable[int], seconds: float | None) -> str:
        """For whom a worker waits, down the chain of waiting, as a clause."""
        names = ", ".join(f"worker {rank}" for rank in members)
        return f"waits for {names}" + ("" if seconds is None else f", for more than {seconds:g} s")

    def sees_silence(self, members: Iterable[int]) -> bool:  # noqa: ARG002 - as above
        """Whether it is known already who holds up a worker that waits for these, or will not be."""
        return True


class PeerWatch:
    """When somebody who waits for `members` looks at what the others have noted: often at no cost, closely at times.

    `glance` is the time in seconds between two that cost next to nothing.
    """

    def __init__(
        self, heartbeat: SignsOfLife, members: Iterable[int], round_: int | None = None, *, glance: float | None = None
    ) -> None:
        self._heartbeat, self._round = heartbeat, round_
        self._between = GLANCE_SECONDS if glance is None else glance
        self.turn_to(members)

    def turn_to(self, members: Iterable[int]) -> None:
        """From now on it is for these; what they have noted is looked at a while from now."""
        self._members = tuple(members)
        self.next = time.monotonic() + self._between
        self._look = time.monotonic() + LOOK_SECONDS
        self._news = 0

    def only_for(self, members: Iterable[int]) -> None:
        self._members = tuple(members)

    def is_due(self) -> bool:
        """Whether to look closely now; asked as often as one likes."""
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
        """Why a member cannot come any more, as a clause, where a look is due; None if nothing is known."""
        return self._heartbeat.gone(self._members, self._round) if self.is_due() else None


class Wait(PeerWatch):
    """One wait for `members`: it ends early where one can no longer come, and else after `timeout` seconds of own time.

    Where that has passed and it is not known yet who holds this worker up, it waits a little longer to find out.
    `round_` is the operation's, where members may have ended before it; `why` is asked in place of the heartbeat why it
    makes no sense to wait any longer, and may raise by itself.
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
        """What was waited for so far does not count: somebody else has a limit for it."""
        self._deadline.renew()

    def look(self) -> float:
        """Called between two pauses; returns in how many seconds it wants to be called again."""
        if self.is_due():
            why = self._heartbeat.gone(self._members, self._round) if self._why is None else self._why()
            if why is not None:
                raise PeerGoneError(why)
        if self.is_over():
            raise PeerTimeoutError(self._heartbeat.waits_for(self._members, self._deadline.seconds))
        return max(0.0, self.next - time.monotonic())

    def is_over(self) -> bool:
        """Whether the timeout has passed, and it is known, or was looked for, who holds this worker up."""
        left = self._deadline.left
        if left >= 0:
            return False
        return left < -DIAGNOSE_SECONDS or self._heartbeat.sees_silence(self._members)

    def until(self, condition: threading.Condition, done: Callable[[], bool]) -> None:
        """Wait for what another thread brings about, which it tells the condition; `done` is asked under its lock."""
        while True:
            with condition:
                if condition.wait_for(done, GLANCE_SECONDS):
                    return
            self.look()


def pause_after(waited: float) -> float:
    """Seconds to sleep after `waited` seconds of waiting."""
    return min(LONGEST, max(SHORTEST, waited / SHARE))
