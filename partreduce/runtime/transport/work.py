"""Wait by one interface for operations that run in torch's C++ library, on a device or in a thread of this package.

A wait inside the library costs no CPU time and ends as soon as the operation does, but neither the news that a worker
died nor Ctrl-C interrupts it, so it must be short. Only the main thread may wait this way: a thread that is in C++ code
when the interpreter exits aborts the process (see `Background`). Other threads poll with pauses, except the thread of
multistage all-reduces, which waits in very short periods. All threads poll for operations whose wait has no time limit:
point-to-point over gloo, where a limit breaks the connection, and all operations over NCCL.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from partreduce.runtime.transport.waiting import GLANCE_SECONDS, Deadline, pause_after

Result = TypeVar("Result")
ENDING_LOOKS, ENDING_SECONDS = 20, 0.05  # one second for all threads together, longer on a busy machine

_threads: weakref.WeakSet[Background] = weakref.WeakSet()


class Work:
    """A running operation that can be waited for.

    Args:
        is_completed: returns whether the operation has ended, with or without an error.
        finish: waits without limit until it has ended, and raises its error; on a device the current stream waits.
        ended_within: waits inside the library up to the given seconds, and returns whether the operation has ended;
            None if the library's wait has no time limit.
        on_main_thread: whether only the main thread may call `ended_within` for long waits.
    """

    def __init__(
        self,
        is_completed: Callable[[], bool],
        finish: Callable[[], object],
        ended_within: Callable[[float], bool] | None = None,
        *,
        on_main_thread: bool = False,
    ) -> None:
        self.is_completed, self.ended_within = is_completed, ended_within
        self._finish, self._on_main_thread = finish, on_main_thread
        self._then: Callable[[], object] | None = None

    def then(self, action: Callable[[], object]) -> Work:
        """Set an action that the first `wait` runs once the operation has ended without an error; return this work."""
        self._then = action
        return self

    def wait(self, look: Callable[[], float] | None = None, *, for_moments: bool = False) -> None:
        """Wait until the operation has ended; raise its error.

        Args:
            look: called repeatedly during the wait; raises an error to stop waiting, or returns after how many seconds
                to call it again (see `Wait.check`).
            for_moments: whether the times that `look` returns are so short that any thread may wait inside the library.
        """
        if look is not None:
            start, waited = time.monotonic(), 0.0
            while not self.is_completed():
                seconds = look()
                if self.ended_within is not None and (for_moments or self._may_wait_inside()):
                    self.ended_within(seconds)
                else:
                    time.sleep(pause_after(waited))
                waited = time.monotonic() - start
        self._finish()
        if self._then is not None:
            action, self._then = self._then, None
            action()

    def ends_soon(self, seconds: float) -> bool:
        """Wait up to `seconds` without checking other workers; return whether the operation has ended."""
        return self.is_completed() or (
            self.ended_within is not None and self._may_wait_inside() and self.ended_within(seconds)
        )

    def _may_wait_inside(self) -> bool:
        return not self._on_main_thread or threading.current_thread() is threading.main_thread()


class Completion:
    """Flag by which a thread of this package records that an operation has ended, with or without an error.

    Only the text of an error is stored: its traceback would keep the connections of a failed group open.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.within = self._event.wait
        self._problem: str | None = None

    def reached(self, problem: str | None = None) -> None:
        """Record that the operation has ended; `problem` is the text of its error, None for success."""
        self._problem = problem
        self._event.set()

    def by(self, action: Callable[..., object], *arguments: object) -> None:
        problem = None
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            problem = str(error) or type(error).__name__
        del action, arguments
        self.reached(problem)

    def work(self) -> Work:
        return Work(self._event.is_set, self.finish, self.within)

    def finish(self) -> None:
        self._event.wait()
        if self._problem is not None:
            raise RuntimeError(self._problem)


def in_thread(works: Iterable[Work]) -> Work:
    """Return one work that ends once all of `works` have ended; a new thread waits for each in turn.

    It is for point-to-point operations over gloo, where a wait with a time limit would break the connection.
    """
    completion = Completion()
    Background(completion.by, _wait_for_all, works, name="partreduce-exchange").start()
    return completion.work()


def _wait_for_all(works: Iterable[Work]) -> None:
    for work in works:
        work.wait()


class Background(threading.Thread):
    """A daemon thread for which the interpreter waits at its exit, for about a second at most.

    Otherwise Python ends a thread that returns from torch's C++ code during the exit, and C++ aborts the process with
    SIGABRT. `stop` is a function that makes `run` return soon; None if `run` returns by itself.
    """

    def __init__(
        self, run: Callable[..., None], *arguments: object, name: str, stop: Callable[[], None] | None = None
    ) -> None:
        super().__init__(target=run, args=arguments, name=name, daemon=True)
        self.stop = stop

    def start(self) -> None:
        _threads.add(self)
        super().start()


def end_all() -> None:
    """Call the `stop` function of all running `Background` threads, and wait for them, about a second in total."""
    running = [thread for thread in _threads if thread.is_alive()]
    for thread in running:
        if thread.stop is not None:
            thread.stop()
    looks = ENDING_LOOKS
    for thread in running:
        while looks and thread.is_alive() and thread is not threading.current_thread():
            thread.join(ENDING_SECONDS)
            looks -= 1


# Exit functions run in reverse order: those registered later, such as a worker's last note, still have all threads.
atexit.register(end_all)


class OverdueError(Exception):
    """Error of `BoundedCall`: it did not return in time, or `abort_reason` stopped the wait; the message says why."""


class BoundedCall(Generic[Result]):
    """A call of `action` that may block forever, run in a separate thread that can be abandoned.

    Connecting to a store whose port another program uses, or to a gloo group that loses a member meanwhile, can block
    far beyond the timeout.
    """

    def __init__(self, action: Callable[[], Result]) -> None:
        self._completion = Completion()
        self._results: list[Result] = []
        Background(self._completion.by, lambda: self._results.append(action()), name="partreduce-bounded-call").start()

    @property
    def is_running(self) -> bool:
        return not self._completion.within(0)

    def result(self, seconds: float, abort_reason: Callable[[], str | None] = lambda: None) -> Result:
        """Wait for the call and return its result; `abort_reason()` returns why to stop waiting, or None to continue.

        Raises:
            OverdueError: the call did not return within `seconds` (see `OwnTime`), or `abort_reason` stopped the wait.
            RuntimeError: the call raised an exception; the message is that of the exception.
        """
        deadline = Deadline(seconds)
        while not self._completion.within(min(GLANCE_SECONDS, max(0.0, deadline.left))):
            if (why := abort_reason()) is not None:
                raise OverdueError(why)
            if deadline.is_over:
                raise OverdueError(f"did not return within {seconds:g} s")
        self._completion.finish()
        return self._results.pop()
