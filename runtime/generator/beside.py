"""The group generator beside a launcher: a process of its own for one run, started again if it is killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from preduce.runtime.generator.keys import JobKeys
from preduce.topo.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS = 30.0
MAX_RESTARTS = 5


@contextlib.contextmanager
def generator_beside(schedule: Path) -> Iterator[dict[str, str]]:
    """Inside, a generator for the schedule runs on this machine; yields the environment that its workers need.

    Raises:
        UnavailableError: it did not start; its own message stands before this one on standard error.
    """
    keys = JobKeys.make()
    with tempfile.TemporaryDirectory(prefix="preduce-generator-") as folder:
        place = Path(folder)
        keys.write(place / "keys.json")
        command = [
            sys.executable,
            "-P",
            "-m",
            "preduce",
            "generator",
            str(schedule),
            "--keys",
            str(place / "keys.json"),
        ]
        command += ["--log", str(place / "log"), "--address-file", str(place / "address")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=_home())
        ending = threading.Event()
        try:
            address = _address(process, place / "address")
            command += ["--address", address]
            running = [process]
            keeper = threading.Thread(target=_keep, args=(command, running, ending), daemon=True)
            keeper.start()
            yield {"PREDUCE_GENERATOR": address, "PREDUCE_GENERATOR_KEYS": keys.for_workers().text()}
            process = running[0]
        finally:
            ending.set()
            _end(process)


def _home() -> str:
    """The folder in which the packages lie, so that the child finds the same ones."""
    return str(Path(__file__).resolve().parents[2])


def _address(process: subprocess.Popen[bytes], file: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists():
            return file.read_text(encoding="utf-8").strip()
        time.sleep(0.02)
    raise UnavailableError("group generator: did not start; see its message above")


def _keep(command: list[str], running: list[subprocess.Popen[bytes]], ending: threading.Event) -> None:
    """Start the generator again, on its log and its port, when a signal ended it."""
    for _ in range(MAX_RESTARTS):
        if running[0].wait() >= 0 or ending.is_set():
            return
        running[0] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=_home())


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
