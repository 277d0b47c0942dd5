"""Start the group service as a child process of the launcher, and restart it if it is killed.

The kernel ends the process with the launcher. Through one pipe the process receives its key, which is in no file, and
the ranks of failed workers; through another it sends the ranks that it evicted. Its log is in a temporary folder, which
the launcher removes, or the process itself if the launcher was killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
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
from partreduce.runtime.launcher.signals import (
    Terminated,
    allow_signals,
    defer_signals,
    format_end,
    raise_on_sigterm,
)
from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import UnavailableError

PREFIX = "partreduce-generator-"
START_SECONDS = 300.0  # timeout of the start; importing over a network file system may take minutes
END_SECONDS = 3.0  # after SIGTERM, before SIGKILL
MAX_RESTARTS = 5
STANDARD_INPUT = 0
EVICTED = b"evicted "  # prefix of a line from the service to the launcher; a rank follows


@contextlib.contextmanager
def generator_process(schedule: Path, host: str = "127.0.0.1", key: str | None = None) -> Iterator[GeneratorProcess]:
    """Run a group service for a schedule on this machine while the context is open.

    Args:
        schedule: path of a schedule file, which is read again after a restart.
        host: name or address of this machine for the workers. Unless it is the loopback address, the service listens on
            all addresses, since a name may resolve to another address elsewhere.
        key: the job's key; by default a new one.
    """
    _sweep()
    place = Path(tempfile.gettempdir(), f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
    command = [sys.executable, "-P", "-m", "partreduce", "generator", str(schedule), "--keys", "-"]
    command += ["--log", str(place / "log"), "--address-file", str(place / "address")]
    everywhere, loopback = ("[::]", "[::1]") if ":" in host else ("0.0.0.0", "127.0.0.1")  # noqa: S104 - it has a key
    host = f"[{host}]" if ":" in host else host
    command += ["--address", f"tcp://{host if host == loopback else everywhere}:*", "--parent", str(os.getpid())]
    child = GeneratorProcess(command, key or new_key(), host)
    try:
        child.serve(place / "address")
        yield child
    finally:
        with defer_signals():
            child.end()
            shutil.rmtree(place, ignore_errors=True)


class GeneratorProcess:
    """The group service's process; the launcher starts it by `command`, and restarts it if a signal kills it."""

    def __init__(self, command: list[str], key: str, host: str) -> None:
        self.command, self.key, self._host = command, key, host
        self.environment: dict[str, str] = {}
        self._lines = [key]  # input of each new process: the key, then the failed ranks
        self._evicted: set[int] = set()
        self.failure: str | None = None  # why no service runs any more, as a clause; workers would wait for it
        self._lock, self._ending = threading.Lock(), False
        self._reader = Background(self._keep, name="partreduce-generator-process")
        with defer_signals():
            self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process in a new session, so that Ctrl-C does not end it before the workers."""
        home, pipe = Path(__file__).resolve().parents[3], subprocess.PIPE  # folder of the packages
        process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, bufsize=0, cwd=home, start_new_session=True)
        _write(process, self._lines)
        return process

    def serve(self, address_file: Path) -> None:
        """Wait until the service writes its address to `address_file`; from then on restart it if a signal kills it."""
        deadline = time.monotonic() + START_SECONDS
        while not address_file.exists():
            if self.process.poll() is not None:
                raise UnavailableError("group generator: did not start; see its message above")
            if time.monotonic() > deadline:
                raise UnavailableError(f"group generator: started, but served no worker within {START_SECONDS:g} s")
            time.sleep(0.02)
        address = address_file.read_text(encoding="utf-8").strip()
        self.command += ["--address", address]
        self.environment = {GENERATOR: f"tcp://{self._host}:{address.rpartition(':')[2]}", GENERATOR_KEYS: self.key}
        self._reader.start()

    def failed(self, rank: int) -> None:
        with self._lock:
            self._lines.append(str(rank))
            _write(self.process, [str(rank)])

    def evicted(self) -> frozenset[int]:
        return frozenset(self._evicted)

    def _keep(self) -> None:
        """Read the evicted ranks that the process reports; if a signal kills it, restart it with its log and port.

        The kernel kills a process when the thread that started it ends, so this thread lives as long as the process.
        """
        for restarts in range(MAX_RESTARTS + 1):
            assert self.process.stdout is not None, "asked for"
            for line in self.process.stdout:
                if line.startswith(EVICTED):
                    self._evicted.add(int(line.removeprefix(EVICTED)))
            code = self.process.wait()
            with self._lock:
                if self._ending:
                    return
                if code >= 0 or restarts == MAX_RESTARTS:
                    self.failure = f"the group generator {format_end(code)}" if code else None
                    return
                try:
                    started = self._start()
                except OSError as error:
                    self.failure = f"the group generator {format_end(code)} and could not be restarted ({error})"
                    return
                _close(self.process)
                self.process = started

    def end(self) -> None:
        with self._lock:
            self._ending = True
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._reader.is_alive():
            self._reader.join(END_SECONDS)
        _close(self.process)


def _write(process: subprocess.Popen[bytes], lines: Sequence[str]) -> None:
    assert process.stdin is not None, "asked for"
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write("".join(f"{line}\n" for line in lines).encode())


def _sweep() -> None:
    """Remove temporary folders of runs whose launcher and group service were killed together."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and folder.stat().st_uid == os.getuid() and not Path("/proc", pid).exists():
                shutil.rmtree(folder)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None, "asked for"
        stream.close()


@contextlib.contextmanager
def belongs_to(parent: int, files: Sequence[Path]) -> Iterator[None]:
    """Let this process, the group service, end with process `parent`; at the end remove `files` and their folder.

    It creates the folder, which a killed parent could not remove. After SIGKILL the files stay, for a restart.
    """
    try:
        with raise_on_sigterm():
            try:
                with allow_signals(set()):
                    if not die_with_parent(parent, signal.SIGTERM):
                        raise Terminated(signal.SIGTERM)
                    files[0].parent.mkdir(mode=0o700, exist_ok=True)
                    yield
            finally:  # signals are deferred again
                with contextlib.suppress(OSError):
                    for file in files:
                        file.unlink(missing_ok=True)
                    files[0].parent.rmdir()
    except Terminated as ended:
        raise SystemExit(ended.exit_code) from None


class Launcher:
    """The group service's pipes to its launcher: it reads its key and failed ranks, and writes evicted ones."""

    def __init__(self) -> None:
        self._rest = b""

    def first_line(self) -> str:
        """Wait for the first line from the launcher, the job's key, and return it."""
        while b"\n" not in self._rest and (read := os.read(STANDARD_INPUT, 4096)):
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    def failed(self) -> list[int]:
        """Return the ranks of workers that have failed since the last call."""
        if select.select([STANDARD_INPUT], [], [], 0)[0]:
            self._rest += os.read(STANDARD_INPUT, 4096)
        *lines, self._rest = self._rest.split(b"\n")
        return [int(line) for line in lines]

    def evicted(self, rank: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(f"{EVICTED.decode()}{rank}\n")
            sys.stdout.flush()
