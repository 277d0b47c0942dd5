"""The group generator's process next to a launcher: one for a run, started again if it is killed.

It ends with the launcher, however that ends: the kernel tells it. Its key goes through a pipe and is in no file; its
log lies in a temporary folder of its own, which the launcher removes, or the generator when the launcher was killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from partreduce.runtime.environment import GENERATOR, GENERATOR_KEYS
from partreduce.runtime.generator.messages import new_key
from partreduce.runtime.launcher.process_cleanup import die_with_parent
from partreduce.runtime.launcher.signals import Terminated, held, let_through, terminable
from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import UnavailableError

PREFIX = "partreduce-generator-"
START_SECONDS = 300.0
"""In which it has imported itself, which over a network file system, or on a busy machine, takes minutes."""
MAX_RESTARTS = 5


@contextlib.contextmanager
def generator_process(schedule: Path, host: str = "127.0.0.1", key: str | None = None) -> Iterator[dict[str, str]]:
    """Inside, a generator for the schedule runs on this machine; yields the environment that its workers need.

    Args:
        schedule: a file that can be read more than once.
        host: the address of this machine at which it listens.
        key: its key, by default a new one.
    """
    key = key or new_key()
    _sweep()
    place = Path(tempfile.gettempdir(), f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
    command = [sys.executable, "-P", "-m", "partreduce", "generator", str(schedule), "--keys", "-"]
    command += ["--log", str(place / "log"), "--address-file", str(place / "address")]
    command += ["--address", f"tcp://{host}:*", "--beside", str(os.getpid())]
    child = _Process(command, key)
    try:
        address = _address(child.process, place / "address")
        command += ["--address", address]
        Background(child.keep, name="partreduce-generator-process").start()
        yield {GENERATOR: address, GENERATOR_KEYS: key}
    finally:
        with held():
            child.end()
            shutil.rmtree(place, ignore_errors=True)


class _Process:
    """The generator's process, which is another one after a restart."""

    def __init__(self, command: list[str], key: str) -> None:
        self.command, self.key = command, key
        self._lock, self._ending = threading.Lock(), False
        with held():
            self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        """A session of its own, so that Ctrl-C does not end it before the workers."""
        process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=_home(), start_new_session=True
        )
        assert process.stdin is not None, "asked for"
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(self.key.encode())
        return process

    def keep(self) -> None:
        """Start the generator again, on its log and its port, when a signal ended it.

        The kernel ends a process with the thread that started it, so this one stays as long as its last process.
        """
        for restarts in range(MAX_RESTARTS + 1):
            if self.process.wait() >= 0 or restarts == MAX_RESTARTS:
                return
            with self._lock:
                if self._ending:
                    return
                self.process = self._started()

    def end(self) -> None:
        with self._lock:
            self._ending = True
        _end(self.process)


def _sweep() -> None:
    """Remove the folders of runs whose launcher and generator were killed together."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and folder.stat().st_uid == os.getuid() and not Path("/proc", pid).exists():
                shutil.rmtree(folder)


def _home() -> str:
    """The folder in which the packages lie, so that the child finds the same ones."""
    return str(Path(__file__).resolve().parents[3])


def _address(process: subprocess.Popen[bytes], file: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists():
            return file.read_text(encoding="utf-8").strip()
        time.sleep(0.02)
    if process.poll() is None:
        raise UnavailableError(f"group generator: started, but served nobody within {START_SECONDS:g} s")
    raise UnavailableError("group generator: did not start; see its message above")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def belongs_to(parent: int, files: Sequence[Path]) -> Iterator[None]:
    """For the generator's own process: end it with its parent, and remove these files and their folder then.

    The folder is made here and not by the parent, which may be killed before it has a child that would remove it. The
    files go however this process ends, since nothing starts it again: SIGKILL alone, after which it is started again,
    leaves them. Whether the parent still lives would tell too little: while one of several threads is killed it may
    still count as the parent, and the kernel asks anew for every thread of it that dies.
    """
    try:
        with terminable():
            try:
                with let_through(set()):
                    if not die_with_parent(parent, signal.SIGTERM):
                        raise Terminated(signal.SIGTERM)
                    files[0].parent.mkdir(mode=0o700, exist_ok=True)
                    yield
            finally:  # signals wait again
                with contextlib.suppress(OSError):
                    for file in files:
                        file.unlink(missing_ok=True)
                    files[0].parent.rmdir()
    except Terminated as ended:
        raise SystemExit(ended.exit_code) from None
