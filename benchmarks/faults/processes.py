"""Processes of one cell: forked into their own session, found again in /proc, and ended by their ids."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PROC = "/proc"


@dataclass(frozen=True)
class ProcessInfo:
    state: str
    session: int

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie, or about to be gone."""
        return self.state in "ZX"


def _content(path: str) -> bytes:
    """Return the content of a file of /proc, empty if it is gone; without `Path`, which would take most of the time."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            pieces = []
            while piece := os.read(descriptor, 1 << 16):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _names(path: str) -> list[str]:
    """Return the names in a folder of /proc that are numbers."""
    try:
        return [name for name in os.listdir(path) if name.isdigit()]  # noqa: PTH208 - names are numbers here
    except OSError:
        return []


def look_at(pid: int) -> ProcessInfo | None:
    """Return the state of a process, None if it is gone."""
    text = _content(f"{PROC}/{pid}/stat").decode(errors="replace")
    if not text:
        return None
    state, _, _, session = text.rsplit(")", 1)[1].split()[:4]
    return ProcessInfo(state, int(session))


def runs(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    seen = look_at(pid)
    return seen is not None and not seen.has_ended


def is_pending(pid: int, number: int) -> bool:
    """Return whether a signal that was sent to a process has not been delivered."""
    for line in _content(f"{PROC}/{pid}/status").splitlines():
        if line.startswith(b"ShdPnd:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def delays_of(pid: int) -> dict[int, float]:
    """Return, by thread of a process, for how many seconds it was ready to run without a processor."""
    messages = {
        int(thread): _content(f"{PROC}/{pid}/task/{thread}/schedstat") for thread in _names(f"{PROC}/{pid}/task")
    }
    return {thread: int(text.split()[1]) / 1e9 for thread, text in messages.items() if text}


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, by any thread, and not waited for."""
    threads = _names(f"{PROC}/{pid}/task")
    return [int(child) for thread in threads for child in _content(f"{PROC}/{pid}/task/{thread}/children").split()]


def belonging(session: int, mark: str) -> list[int]:
    """Return the running processes of a session, and those started with `mark` in their environment."""
    found = []
    for pid in map(int, _names(PROC)):
        seen = look_at(pid) if pid != os.getpid() else None
        if seen is None or seen.has_ended:
            continue
        if seen.session == session or mark.encode() in _content(f"{PROC}/{pid}/environ"):
            found.append(pid)
    return found


def command_of(pid: int) -> str:
    return _content(f"{PROC}/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def fork_session(action: Callable[[], int | None], output: Path, variables: Mapping[str, str]) -> int:
    """Run an action in a forked process with its own session, output file and variables; return its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    return become(action, output, variables)


def become(action: Callable[[], int | None], output: Path | None, variables: Mapping[str, str]) -> NoReturn:
    """Run an action as a forked process until it ends, and exit."""
    code = 70
    try:
        if output is not None:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - as long as the process
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - as above
        os.environ.update(variables)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        code = action() or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - a forked process must end here
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def show_stacks(pids: list[int]) -> None:
    """Let processes write their stacks to their output, which `become` has prepared."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(0.3)


def end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
