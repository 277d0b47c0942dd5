"""Signals that end a launcher: an exception where it waits, and nothing while it must not be torn in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128
"""Exit codes above it name the signal that ended a process."""


_unheard: list[int] = []
"""Signals whose exception nobody has caught, as far as is known."""


class Terminated(BaseException):
    """The process was asked to end; unwinds it, so that everything that it started is ended, too."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.exit_code = SIGNALLED + number


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise `Terminated`, unless the program handles or ignores them itself."""
    before: dict[signal.Signals, object] = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _raise)
    if before:  # not inside another one, which may have one to hear
        _unheard.clear()
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, _: FrameType | None) -> None:
    _unheard.append(number)
    raise Terminated(number)


def raise_unheard() -> None:
    """Raise a `Terminated` that was lost: what is raised in a finaliser or a callback of the interpreter is dropped."""
    if _unheard:
        raise Terminated(_unheard[0])


def heard() -> None:
    """Say that a `Terminated` has arrived."""
    _unheard.clear()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Inside, signals that would end this process wait: for forks, bookkeeping and clean-up. Yields the old mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *ENDING})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def as_in_a_fresh_process() -> None:
    """For a forked child: the default handlers, and nothing held."""
    for number in ENDING:
        if signal.getsignal(number) is _raise:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *ENDING})
