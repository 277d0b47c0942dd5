"""Turn signals that end a launcher into exceptions where it waits, and block these signals in critical sections."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128  # a shell reports a process killed by a signal as this plus the signal's number
AGAIN_SECONDS = 1.0
"""Signals within this time count as one request: GNU `timeout` signals a process and then its whole process group."""


_undelivered: list[int] = []  # signals whose exception was raised and is not known to be caught
_asked = float("-inf")  # time of the last request to end, on the monotonic clock


class Terminated(BaseException):
    """Exception for SIGTERM or SIGHUP, which ask the launcher to end; it then ends everything that it started."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number
        self.exit_code = shell_exit_code(-number)


def shell_exit_code(returncode: int) -> int:
    """Convert a `returncode` as of subprocess to the exit code that a shell reports (128 + signal)."""
    return returncode if returncode >= 0 else SIGNALLED - returncode


def format_end(returncode: int) -> str:
    """Describe how a process with this `returncode`, as of subprocess, ended, to follow its name in a message."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    known = -returncode in set(signal.Signals)  # most real-time signals have no name
    return f"was killed by signal {-returncode}" + (f" ({signal.Signals(-returncode).name})" if known else "")


def end_by_signal(number: int) -> None:
    """Kill this process by a signal, with the signal's default action."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated` in the context, unless the program handles or ignores them itself.

    A signal (or Ctrl-C) less than `AGAIN_SECONDS` after another raises nothing. SIGCHLD is not ignored in the context,
    otherwise the kernel would drop the exit codes of child processes.
    """
    global _asked  # noqa: PLW0603 - belongs to the process, as its handlers do
    ours: list[signal.Signals] = []
    ignores_children = False
    if threading.current_thread() is threading.main_thread():
        if ignores_children := signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours = [number for number in ENDING if signal.getsignal(number) is _default(number)]
    if ours:  # not if nested, since the outer context may have a pending signal
        _undelivered.clear()
        _asked = float("-inf")
    for number in ours:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        _restore(ours)
        if ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _default(number: int) -> object:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _restore(numbers: Iterable[int]) -> None:
    for number in numbers:
        signal.signal(number, _default(number))  # type: ignore[arg-type]


def _raise(number: int, _: FrameType | None) -> None:
    global _asked  # noqa: PLW0603 - as in `raise_on_sigterm`
    now = time.monotonic()
    if now - _asked >= AGAIN_SECONDS:
        _asked = now
        _undelivered.append(number)
        raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def reraise_pending() -> None:
    """Raise the exception of a signal again if a finalizer or callback, in which it was raised, has swallowed it."""
    if _undelivered:
        raise _exception(_undelivered[0])


def end_requested() -> bool:
    """Return whether a signal has asked the process to end since the outermost `raise_on_sigterm` was entered."""
    return _asked > float("-inf")


def mark_delivered() -> None:
    """Record that the program has caught the exception of a signal, so that it is not raised again."""
    _undelivered.clear()


@contextlib.contextmanager
def defer_signals() -> Iterator[set[int]]:
    """Block signals that would end this process, as for a fork, in the context; yield the signal mask from before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def allow_signals(before: set[int]) -> Iterator[None]:
    """Unblock signals in the context, inside `defer_signals`; `before` is the mask that `defer_signals` yielded."""
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def default_signals() -> None:
    """Restore, in a forked child, the default handlers of signals that end a process, and unblock these signals."""
    _restore(number for number in ENDING if signal.getsignal(number) is _raise)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
