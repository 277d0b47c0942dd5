"""Deadline: how long a worker that keeps a gap waits for what it lacks, and whom it names when that cannot come.

Somebody's end is of no concern as long as what this worker needs now can come from others: with backup workers or
staleness it goes on as far as its setting allows, and whoever is gone far away is found out by who needs him.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.runtime.liveness.wait_chain import listed
from partreduce.runtime.transport.deadline import Deadline
from partreduce.runtime.transport.waiting import GoneError, PeerWatch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from partreduce.runtime.liveness.heartbeat import Heartbeat
    from partreduce.runtime.strategies.gap.driver import Missing


class LackError(GoneError):
    """Something that a worker needs cannot come, or did not within the timeout; `missing` says what."""

    def __init__(self, text: str, missing: Missing) -> None:
        super().__init__(text)
        self.missing = missing


def wait_until(
    done: Callable[[], bool],
    missing: Callable[[], Missing | None],
    condition: threading.Condition,
    heartbeat: Heartbeat,
    *,
    step: int,
    timeout: float,
    failed: Callable[[], None],
    pausing: bool = False,
    paused: Callable[[], frozenset[int]] = frozenset,
) -> None:
    """Wait until `done`, which is asked under the condition's lock; `missing` says what for, None if for nothing.

    Args:
        done: what the wait is for.
        missing: what is lacking for it.
        condition: told of every message.
        heartbeat: knows of the others, and tells them.
        step: that this worker is in.
        timeout: seconds.
        failed: raises if no message can come any more.
        paused: who has begun a meeting of all that this worker, in a step, has not come to.
        pausing: whether all meet, so that one who has taken his last step still sends what is waited for.

    Raises:
        LackError: as said, with the worker whose message is missing.
    """
    with condition:
        if done():
            return
    deadline = Deadline(heartbeat, timeout)
    watch: PeerWatch | None = None
    lack: Missing | None = None
    while not deadline.glance(condition, done):
        failed()
        known, lack = lack, missing()
        if lack is None:
            continue  # it has just come
        if watch is None or known != lack:
            heartbeat.doing(f"waits in step {step} for {lack.what}", lack.of)
            watch = PeerWatch(heartbeat, lack.of)
        if watch.is_due():
            why = _hopeless(heartbeat, lack, None if pausing else step) or _unequal(heartbeat, lack, paused())
            if why is not None:
                raise LackError(_told(why, heartbeat.rank, step, lack), lack)
        if deadline.is_over(lack.of):
            raise LackError(_told(heartbeat.waits_for(lack.of, timeout), heartbeat.rank, step, lack), lack)


def _hopeless(heartbeat: Heartbeat, lack: Missing, step: int | None) -> str | None:
    """Why too few of those that are waited for can still come, as a clause; None while enough can, or may.

    Who took his last step before `step` cannot; without it, having finished is no reason.
    """
    if (problem := heartbeat.store_lost()) is not None:
        return str(problem)
    last_steps = {rank: heartbeat.read("finished", rank) for rank in lack.of} if step is not None else {}
    ended = {rank for rank, last in last_steps.items() if last is not None and step is not None and int(last) <= step}
    gone = heartbeat.lost(lack.of) | ended
    if len(lack.of) - len(gone) >= lack.needed:
        return None
    return heartbeat.gone(sorted(gone), step)


def _unequal(heartbeat: Heartbeat, lack: Missing, paused: frozenset[int]) -> str | None:
    """The same of those who wait in a meeting for this worker, which waits for them."""
    waiting = [rank for rank in lack.of if rank in paused]
    if len(lack.of) - len(waiting) >= lack.needed:
        return None
    return (
        f"worker {waiting[0]} waits for all in mean_model(), save_checkpoint() or another place where all meet, which "
        f"this worker has passed: {heartbeat.unequal}"
    )


def _told(why: str, rank: int, step: int, lack: Missing) -> str:
    return f"{why} (worker {rank} waited in step {step} for {lack.what} from {listed(lack.of)})"
