"""End every process that a launcher started, however the launcher or one of its workers ended.

Three mechanisms of Linux cover different cases. A process can ask the kernel to be killed with its parent. A worker's
children stay in the worker's process group, which is killed with the worker, or, if the launcher itself is killed, by a
small cleanup process. Processes that left their group are inherited by the launcher, which kills them at its end. Each
process gets SIGTERM first, since helper processes of Python and torch remove shared memory only then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from partreduce.runtime.launcher.signals import defer_signals

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ASKED_SECONDS = 2.0  # between SIGTERM and SIGKILL
LOOK_SECONDS = 0.02
MESSAGE = struct.Struct(">ci")


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> bool:
    """Ask the kernel for signal `number` when the parent thread ends; return False if process `parent` is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


@contextlib.contextmanager
def orphans_ended() -> Iterator[None]:
    """Let this process adopt orphaned descendants in the context; at its end, end all children that began inside it."""
    me = os.getpid()
    before = {pid for pid, parent, _, _ in _processes() if parent == me}
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def children() -> list[int]:
        left = [(pid, state) for pid, parent, _, state in _processes() if parent == me and pid not in before]
        for pid, state in left:
            if state == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return [pid for pid, state in left if state != "Z"]

    try:
        yield
    finally:
        with defer_signals():
            _end(children, os.kill)
            children()
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)


def end_groups(groups: Collection[int]) -> None:
    """End all processes of these process groups. Their leaders stay zombies, so that the group IDs stay reserved."""

    def living() -> list[int]:
        return sorted({group for _, _, group, state in _processes() if group in groups and state != "Z"})

    _end(living, os.killpg)


def _end(left: Callable[[], list[int]], send: Callable[[int, int], None]) -> None:
    """Send SIGTERM, later SIGKILL, by `send(id, signal)` to all processes or groups that `left` returns."""
    start, number = time.monotonic(), signal.SIGTERM
    signaled: set[int] = set()
    while (targets := left()) and time.monotonic() < start + 2 * ASKED_SECONDS:
        if number is signal.SIGTERM and time.monotonic() > start + ASKED_SECONDS:
            number, signaled = signal.SIGKILL, set()
        for target in targets:
            if target not in signaled:
                signaled.add(target)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    send(target, number)
                    send(target, signal.SIGCONT)  # a stopped process gets other signals only when it continues
        time.sleep(LOOK_SECONDS)


def _processes() -> list[tuple[int, int, int, str]]:
    """Return (process ID, parent, process group, state) of every process of this machine."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            # The name is in parentheses and may contain any character, so the fields start after the last `)`.
            state, parent, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            processes.append((int(folder.name), int(parent), int(group), state))
    return processes


class CleanupProcess:
    """Process that kills the workers' process groups if the launcher is killed; fork it before the workers."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        with defer_signals():
            self.pid = os.fork()
            if not self.pid:
                _guard(reading)
        os.close(reading)

    def forget_in_child(self) -> None:
        """Close, in a forked worker, its copy of the pipe by which the cleanup process notices the launcher's end."""
        os.close(self._writing)

    def watch(self, group: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writing, MESSAGE.pack(b"+", group))

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writing, MESSAGE.pack(b".", 0))
        os.close(self._writing)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _guard(reading: int) -> None:
    """Run the cleanup process: read process groups from a pipe, and end them if it closes without a final message."""
    try:
        os.setsid()  # so that signals to the launcher's group do not reach it
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(reading, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 2**16 else 2**16)
        groups: set[int] = set()
        while len(data := os.read(0, MESSAGE.size)) == MESSAGE.size:
            kind, group = MESSAGE.unpack(data)
            if kind == b".":
                os._exit(0)
            groups.add(group)
        end_groups(groups)
    finally:
        os._exit(0)
