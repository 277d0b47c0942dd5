"""`partreduce run` leaves no processes, sockets, files or keys behind, no matter how it or a worker ends."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers import children
from helpers.waiting import until
from helpers.warm import WARM
from partreduce import Cluster, Schedule, write_schedule
from partreduce.runtime.launcher import signals
from partreduce.strategies import DynamicGroups

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SCRIPT = """
import os, pathlib, subprocess, sys, time
place = pathlib.Path(os.environ["PLACE"])
subprocess.Popen(["sleep", "600"])
if os.environ["RANK"] == "0" and "escaped" in sys.argv:
    subprocess.Popen(["sleep", "601"], start_new_session=True)
if "trap" in sys.argv:
    import signal
    def save(*_):
        time.sleep(0.3)
        place.joinpath("saved" + os.environ["RANK"]).write_text("x")
        sys.exit(9)
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGINT, save)
place.joinpath("pid" + os.environ["RANK"]).write_text(str(os.getpid()))
end = time.monotonic() + (0.5 if "quick" in sys.argv else 600)
while time.monotonic() < end:
    time.sleep(0.05)  # Python would handle a signal just before one long sleep only after it
"""


class Run:
    """One `partreduce run` with a mark in the environment of all its descendants, and its own temporary folder.

    The launcher and the workers are forked from a process without the mark and are found by their working directory.
    """

    def __init__(self, tmp_path, *arguments, generated=False, under=()):
        self.place, self.temporary = tmp_path / "place", tmp_path / "tmp"
        for folder in (self.place, self.temporary):
            folder.mkdir()
        (script := tmp_path / "script.py").write_text(SCRIPT)
        schedule = tmp_path / "s.json"
        write_schedule(schedule, Schedule("g", Cluster.regular(1, 2), DynamicGroups(group_size=2)))
        options = ["--schedule", schedule] if generated else ["--workers", "2"]
        command = ["partreduce", "run", *options, script, *arguments]
        self.mark = f"PARTREDUCE_TEST={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        self.before = _shared_memory_files()
        environment = children.environment(
            PLACE=str(self.place),
            TMPDIR=str(self.temporary),
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),  # torch creates it and never deletes it
            **{name: value},
        )
        with (tmp_path / "output").open("w") as file:
            if under:
                command = [*under, *children.module(command[0]), *command[1:]]
                options = {"cwd": self.place, "env": environment, "start_new_session": True}
                self.process = subprocess.Popen(command, stdout=file, stderr=file, **options)
            else:
                options = {"cwd": self.place, "environment": environment, "session": True}
                self.process = WARM.start(*command, streams=[0, file.fileno(), file.fileno()], **options)

    def _marked(self):
        """The folders in /proc of this run's processes, except zombies."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marks = (folder / "environ").read_bytes().split(b"\0")
                if self.mark.encode() in marks or (folder / "cwd").readlink() == self.place:
                    yield folder

    def remaining(self):
        """The command lines of this run's processes, except zombies."""
        lines = []
        for folder in self._marked():
            with contextlib.suppress(OSError):
                lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return lines

    def until(self, condition, seconds=90):
        until(condition, lambda: f"remaining: {self.remaining()}, {sorted(self.temporary.rglob('*'))}", seconds, 0.05)

    def workers_run(self):
        return all((self.place / f"pid{rank}").exists() and (self.place / f"pid{rank}").read_text() for rank in (0, 1))

    def nothing_is_left(self, seconds=90):
        self.until(lambda: not self.remaining(), seconds)
        self.until(lambda: not list(self.temporary.iterdir()), seconds)
        # Other processes may have files there for a moment.
        self.until(lambda: _shared_memory_files() <= self.before, seconds)
        return True

    def kill(self):
        for folder in self._marked():
            with contextlib.suppress(OSError):
                os.kill(int(folder.name), signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(tmp_path):
    made = []

    def begin(*arguments, **options):
        made.append(Run(tmp_path, *arguments, **options))
        return made[-1]

    yield begin
    for run in made:
        run.kill()


def _shared_memory_files():
    """The files in shared memory, except folders of lab runs, which other tests may have at the same time."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("partreduce-")}


MOMENTS = {
    "the generator's process": lambda run: any(" generator " in line for line in run.remaining()),
    "its address": lambda run: bool(list(run.temporary.glob("*/address"))),
    "the workers": lambda run: run.workers_run(),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("moment", MOMENTS)
def test_ended_launcher_leaves_no_generator_and_no_key(start, moment, number):
    pytest.importorskip("zmq")
    run = start(generated=True)
    run.until(lambda: MOMENTS[moment](run))
    assert all(b"secret" not in path.read_bytes() for path in run.temporary.glob("*/*") if path.name != "log"), "keys"
    run.process.send_signal(number)
    assert run.process.wait(60) == (143 if number == signal.SIGTERM else -9)
    assert run.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_launcher_listens_on_loopback_only_and_ends_children_of_workers(start, number):
    run = start()
    run.until(run.workers_run)
    assert listening(run.process.pid) == {f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"}
    run.process.send_signal(number)
    assert run.process.wait(60) == (-9 if number == signal.SIGKILL else 128 + number)
    assert run.nothing_is_left()


SIGNALS = {
    # the signals, the seconds between them, and the parent command; `timeout` forwards signals as at its limit
    "SIGTERM": ([signal.SIGTERM], 0.0, ()),
    "GNU timeout": ([signal.SIGTERM], 0.0, ("timeout", "600")),
    **{
        f"{number.name} twice, {gap}": ([number] * 2, gap, ())
        for number in (signal.SIGTERM, signal.SIGINT)
        for gap in (0.0, 0.002)
    },
}


@pytest.mark.parametrize("sent", SIGNALS)
def test_repeated_signals_are_one_request_and_workers_have_time_to_save(start, sent):
    numbers, gap, under = SIGNALS[sent]
    run = start("trap", under=under)
    run.until(run.workers_run)
    for number in numbers:
        run.process.send_signal(number)
        time.sleep(gap)
    assert run.process.wait(60) == 128 + numbers[0]
    assert {path.name for path in run.place.glob("saved*")} == {"saved0", "saved1"}
    assert run.nothing_is_left()


def test_children_of_a_killed_worker_end_even_in_another_session(start):
    run = start("escaped")
    run.until(run.workers_run)
    os.kill(int((run.place / "pid0").read_text()), signal.SIGKILL)
    assert run.process.wait(60) == 137
    assert run.nothing_is_left()


def test_processes_left_by_a_finished_run_are_ended(start):
    run = start("escaped", "quick")
    assert run.process.wait(90) == 0
    assert run.nothing_is_left()


def listening(pid):
    """The addresses at which a process listens, from the kernel's tables."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes |= set(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    places = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                places.add(fields[1].rpartition(":")[0])
    return places


def test_launcher_in_a_thread_installs_no_signal_handlers():
    def inside():
        with signals.raise_on_sigterm():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor() as pool:
        assert pool.submit(inside).result() is signal.getsignal(signal.SIGTERM)


def test_existing_sigterm_handler_is_kept():
    def handler(*_):
        raise AssertionError("not called")

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with signals.raise_on_sigterm():
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


DROPPED_EXCEPTION = """
import os, selectors, signal, sys, weakref
from partreduce.runtime.launcher.launch import launch

class Thing: pass

class Swallowing(selectors.DefaultSelector):
    has_sent = False

    def select(self, timeout=None):
        if not self.has_sent:
            self.has_sent = True
            thing = Thing()
            reference = weakref.ref(thing, lambda _: [os.kill(os.getpid(), NUMBER), [None for _ in range(10**6)]])
            del thing  # the interpreter drops exceptions of its callback
        return super().select(timeout)

selectors.DefaultSelector = Swallowing
sys.exit(launch(sys.argv[1], num_workers=1))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_launcher_even_if_its_exception_is_dropped(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(60)\n")
    done = WARM.run("-c", DROPPED_EXCEPTION.replace("NUMBER", str(int(number))), script, timeout=100)
    assert "Exception ignored in" in done.stderr, "otherwise nothing was dropped"
    assert done.returncode == 128 + number


def test_signals_within_a_second_are_one_request(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: clock[0])

    def raises(number):
        try:
            signal.raise_signal(number)
        except (signals.Terminated, KeyboardInterrupt):
            return True
        return False

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    request = [(0, signal.SIGTERM), (0, signal.SIGTERM), (0.5, signal.SIGINT), (0.4, signal.SIGHUP)]
    with signals.raise_on_sigterm():
        outcomes = []
        for later, number in request:
            clock[0] += later
            outcomes.append(raises(number))
        assert outcomes == [True, False, False, False]
        clock[0] += 0.2
        assert raises(signal.SIGTERM)
        clock[0] += 1.1
        assert raises(signal.SIGINT)
    with signals.raise_on_sigterm():
        assert raises(signal.SIGTERM), "another run"
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


ENDED_BEFORE_LISTENING = """
import os, signal, sys
from pathlib import Path
from partreduce.runtime.generator.process import belongs_to
folder = Path(sys.argv[1])
with belongs_to(os.getppid(), [folder / "log"]):
    (folder / "log").touch()
    signal.raise_signal(signal.SIGTERM)
"""


def test_generator_ended_before_it_listens_leaves_no_files(tmp_path):
    assert WARM.run("-c", ENDED_BEFORE_LISTENING, tmp_path / "folder").returncode == 143
    assert not list(tmp_path.iterdir())
