"""Operations that a thread of their own waits for, as one that can be polled and waited for with a limit.

Point to point over gloo a wait has no limit that would leave the connection alive, and no look at whether it is over.
"""

from __future__ import annotations

from collections.abc import Iterable

from partreduce.runtime.transport.background import Background
from partreduce.runtime.transport.waiting import LimitedWork, RunningWork


class InThread(LimitedWork):
    """Several works as one. They may come of a generator, which then starts them in the thread.

    Of an error only the text is kept: its traceback would hold the works, and with them the connections of a group that
    is to be destroyed so that its other members hear of it.
    """

    def __init__(self, works: Iterable[RunningWork]) -> None:
        self._problem: str | None = None
        self._thread = Background(self._run, works, name="partreduce-exchange")
        self._thread.start()

    def _run(self, works: Iterable[RunningWork]) -> None:
        try:
            for work in works:
                work.wait()
        except Exception as error:  # noqa: BLE001 - the thread that waits for it raises it
            self._problem = str(error) or type(error).__name__

    def is_completed(self) -> bool:
        """Whether all have ended, well or not."""
        return not self._thread.is_alive()

    def ended_within(self, seconds: float) -> bool:
        """Wait until all have ended, at most so long."""
        self._thread.join(seconds)
        return self.is_completed()

    def wait(self) -> None:
        """Wait until all have ended, and raise what a work raised."""
        self._thread.join()
        if self._problem is not None:
            raise RuntimeError(self._problem)
