"""Background: the threads of a worker besides its own, none of which may be inside torch when the interpreter ends.

A thread that comes back from torch's C++ code while the interpreter is being taken down is ended by Python where it
stands, and C++ answers that with SIGABRT ("terminate called without an active exception"): a run that ended well, or
with an error of its own, then dies of a signal. So all threads are ended, and waited for, before.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable

ENDING_LOOKS, LOOK_SECONDS = 20, 0.05
"""For all threads together: a second, and longer where the machine is so busy that this thread, too, hardly runs.

One that hangs inside torch for longer does not come back at that very moment either.
"""

_threads: weakref.WeakSet[Background] = weakref.WeakSet()


class Background(threading.Thread):
    """A daemon thread that the interpreter's end waits for, about a second at most.

    Args:
        run: what it does.
        arguments: of `run`.
        name: of the thread.
        stop: lets `run` return soon; called when the interpreter ends. None where `run` returns by itself.
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
    """Let every background thread return, and wait for them."""
    running = [thread for thread in _threads if thread.is_alive()]
    for thread in running:
        if thread.stop is not None:
            thread.stop()
    looks = ENDING_LOOKS
    for thread in running:
        while looks and thread.is_alive() and thread is not threading.current_thread():
            thread.join(LOOK_SECONDS)
            looks -= 1


# Exit functions run in reverse: what is registered after this, a worker's last words among it, still has all threads.
atexit.register(end_all)
