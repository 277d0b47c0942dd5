"""Missing: how a worker waits for what its protocol lacks, and whom it names when that cannot come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from partreduce.runtime.transport.waiting import GLANCE_SECONDS, PeerGoneError, SignsOfLife, Wait


@dataclass(frozen=True, slots=True)
class Missing:
    """What a worker lacks to continue: the words for it, of whom, and how many of these must still come."""

    what: str
    of: tuple[int, ...]
    needed: int = 1


class PeerWaitError(PeerGoneError):
    """Something that a worker needs cannot come, or did not within the timeout; `missing` says what."""

    def __init__(self, text: str, missing: Missing) -> None:
        super().__init__(text)
        self.missing = missing


def wait_for_missing(
    done: Callable[[], bool],
    missing: Callable[[], Missing | None],
    condition: threading.Condition,
    heartbeat: SignsOfLife,
    timeout: float,
    *,
    why: Callable[[Missing], str | None],
    check_failure: Callable[[], None],
    told: Callable[[Missing], str],
    place: str = "",
) -> None:
    """Wait until `done`, which is asked under the condition's lock.

    Args:
        done: what the wait is for.
        missing: what is lacking for it; None if it is there, or is somebody else's to wait for.
        condition: told of every message.
        heartbeat: knows of the others, and tells them.
        timeout: seconds.
        why: why what is missing cannot come any more.
        check_failure: raises if no message can come any more.
        told: what this worker waited for, as it stands in an error.
        place: where it waits, as its heartbeat says it.

    Raises:
        PeerWaitError: as said, with the worker whose message is missing.
    """
    lack: Missing | None = None
    wait = Wait(heartbeat, (), timeout, why=lambda: None if lack is None else why(lack))
    while True:
        with condition:
            if condition.wait_for(done, GLANCE_SECONDS):
                return
        check_failure()
        known, lack = lack, missing()
        if lack is None:
            wait.renew()
            continue
        if lack != known:
            heartbeat.doing(f"waits {place}for {lack.what}", lack.of)
            wait.turn_to(lack.of)
        try:
            wait.look()
        except PeerGoneError as error:
            raise PeerWaitError(f"{error} ({told(lack)})", lack) from None
