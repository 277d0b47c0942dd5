"""Waiting under a gap: when a worker that keeps one gives up what it waits for.

Somebody's end is of no concern as long as what this worker needs now can come from others: with backup workers or
staleness it continues as far as its setting allows, and a failure far away is found out by those that need that worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.liveness.wait_chain import listed
from partreduce.runtime.strategies.missing import Missing, wait_for_missing


def wait_in_step(
    step: int,
    done: Callable[[], bool],
    missing: Callable[[], Missing | None],
    condition: threading.Condition,
    heartbeat: Heartbeat,
    *,
    timeout: float,
    check_failure: Callable[[], None],
    pausing: bool = False,
    paused: Callable[[], frozenset[int]] = frozenset,
) -> None:
    """`wait_for_missing` as long as enough of those that are waited for can come.

    With `pausing` all meet, so that one who has taken his last step still sends what is waited for. `paused` says who
    has begun a meeting of all that this worker, in a step, has not come to.
    """
    wait_for_missing(
        done,
        missing,
        condition,
        heartbeat,
        timeout,
        why=lambda lack: (
            _hopeless(heartbeat, lack, None)
            if pausing
            else _hopeless(heartbeat, lack, step) or _unequal(heartbeat, lack, step, paused())
        ),
        check_failure=check_failure,
        told=lambda lack: f"worker {heartbeat.rank} waited in step {step} for {lack.what} from {listed(lack.of)}",
        place=f"in step {step} ",
    )


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


def _unequal(heartbeat: Heartbeat, lack: Missing, step: int, paused: frozenset[int]) -> str | None:
    """The same of those who wait in a meeting for this worker, which waits for them."""
    waiting = [rank for rank in lack.of if rank in paused or heartbeat.elsewhere([rank], step) is not None]
    if len(lack.of) - len(waiting) >= lack.needed:
        return None
    return heartbeat.elsewhere(waiting, step) or (
        f"worker {waiting[0]} waits for all in mean_model(), save_checkpoint() or another place where all meet, which "
        f"this worker has passed: {heartbeat.unequal}"
    )
