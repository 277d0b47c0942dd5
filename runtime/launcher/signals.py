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
    """Inside, SIGTERM and SIGHUP raise `Terminated`, unless the program handles or ignores them itself.

    And children that end can be waited for, also where who started this program ignores theirs, which is inherited.
    """
    ours: list[signal.Signals] = []
    ignores_children = False
    if threading.current_thread() is threading.main_thread():
        if ignores_children := signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _raise)
                ours.append(number)
    if ours:  # not inside another one, which may have one to hear
        _unheard.clear()
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


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
