"""Quorum patience: how long the training waits for a round to be started, and whom it names when that cannot come.

A sum needs every worker's process, so the end of any of them is everybody's; how slow one may be is another matter. A
round that runs has a limit of its own, which the collective thread keeps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from preduce.runtime.transport.waiting import DIAGNOSE_SECONDS, GLANCE_SECONDS, GoneError, Lookout

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from preduce.runtime.liveness.heartbeat import Heartbeat
    from preduce.runtime.strategies.quorum.driver import Missing


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

    A process that was stopped itself does not count the time for which it was.

    Raises:
        GoneError: a worker is gone, or nobody started a round within the timeout.
    """
    waited, silent_since = 0.0, timeout
    lookout: Lookout | None = None
    lack: Missing | None = None
    while True:
        start = time.monotonic()
        with condition:
            if condition.wait_for(done, GLANCE_SECONDS):
                return
        refuse_failure()
        known, lack = lack, missing()
        if lack is None:
            waited = 0.0
            continue  # a round runs, which has a limit of its own
        waited += min(time.monotonic() - start, 2 * GLANCE_SECONDS)
        if lookout is None or known != lack:
            heartbeat.doing(f"waits for {lack.what}", lack.of)
            lookout = Lookout(heartbeat, everyone)
        if (why := lookout.gone()) is not None:
            raise GoneError(f"{why} (this worker waited for {lack.what})")
        if waited > silent_since:
            silent_since = timeout + DIAGNOSE_SECONDS
            if waited > silent_since or heartbeat.sees_silence(lack.of):
                raise GoneError(f"{heartbeat.waits_for(lack.of, timeout)} (this worker waited for {lack.what})")
