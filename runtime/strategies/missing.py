"""Missing: how a worker waits for what its protocol lacks, and whom it names when that cannot come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partreduce.runtime.transport.waiting import GLANCE_SECONDS, GoneError, Wait

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from partreduce.runtime.transport.waiting import SignsOfLife


@dataclass(frozen=True, slots=True)
class Missing:
    """What a worker lacks to go on: the words for it, of whom, and how many of these must still come."""

    what: str
    of: tuple[int, ...]
    needed: int = 1


class LackError(GoneError):
    """Something that a worker needs cannot come, or did not within the timeout; `missing` says what."""

    def __init__(self, text: str, missing: Missing) -> None:
        super().__init__(text)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a wait for something missing before its time, and the words for it."""

    heartbeat: SignsOfLife
    timeout: float
    """Seconds."""
    why: Callable[[Missing], str | None]
    """Why it cannot come any more."""
    refuse_failure: Callable[[], None]
    """Raises if no message can come any more."""
    told: Callable[[Missing], str]
    """What this worker waited for, as it stands in an error."""
    place: str = ""
    """Where it waits, as its heartbeat says it."""


def wait_for_missing(
    done: Callable[[], bool],
    missing: Callable[[], Missing | None],
    condition: threading.Condition,
    limits: Limits,
) -> None:
    """Wait until `done`, which is asked under the condition's lock.

    Args:
        done: what the wait is for.
        missing: what is lacking for it; None if it is there, or is somebody else's to wait for.
        condition: told of every message.
        limits: what ends it.

    Raises:
        LackError: as said, with the worker whose message is missing.
    """
    lack: Missing | None = None
    heartbeat = limits.heartbeat

    def why() -> str | None:
        return None if lack is None else limits.why(lack)

    wait = Wait(heartbeat, (), limits.timeout, why=why)
    while True:
        with condition:
            if condition.wait_for(done, GLANCE_SECONDS):
                return
        limits.refuse_failure()
        known, lack = lack, missing()
        if lack is None:
            wait.begin_anew()
            continue
        if lack != known:
            heartbeat.doing(f"waits {limits.place}for {lack.what}", lack.of)
            wait.turn_to(lack.of)
        try:
            wait.look()
        except GoneError as error:
            raise LackError(f"{error} ({limits.told(lack)})", lack) from None
