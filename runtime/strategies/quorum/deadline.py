"""Quorum deadline: how long the training waits for a round to be started, and whom it names when that cannot come.

A sum needs every worker's process, so the end of any of them is everybody's; how slow one may be is another matter. A
round that runs has a limit of its own, which the collective thread keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.runtime.transport.deadline import Deadline
from partreduce.runtime.transport.waiting import GoneError, PeerWatch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from partreduce.runtime.liveness.heartbeat import Heartbeat
    from partreduce.runtime.strategies.quorum.driver import Missing


def wait_until(
    done: Callable[[], bool],
    missing: Callable[[], Missing | None],
    condition: threading.Condition,
    heartbeat: Heartbeat,
    everyone: Iterable[int],
    *,
    timeout: float,
    refuse_failure: Callable[[], None],
) -> None:
    """Wait until `done`, which is asked under the condition's lock; `missing` says what for, None if for nothing.

    Raises:
        GoneError: a worker is gone, or nobody started a round within the timeout.
    """
    deadline = Deadline(heartbeat, timeout)
    watch: PeerWatch | None = None
    lack: Missing | None = None
    while not deadline.glance(condition, done):
        refuse_failure()
        known, lack = lack, missing()
        if lack is None:
            deadline.begin_anew()
            continue  # a round runs, which has a limit of its own
        if watch is None or known != lack:
            heartbeat.doing(f"waits for {lack.what}", lack.of)
            watch = PeerWatch(heartbeat, everyone)
        if (why := watch.gone()) is not None:
            raise GoneError(f"{why} (this worker waited for {lack.what})")
        if deadline.is_over(lack.of):
            raise GoneError(f"{heartbeat.waits_for(lack.of, timeout)} (this worker waited for {lack.what})")
