"""Every injector has its effect, observed from outside the injector."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmarks.faults import injectors
from benchmarks.faults.kinds import WORKERS
from benchmarks.faults.processes import look_at
from benchmarks.faults.running import Cell, Outcome, Running, Task
from benchmarks.lab.network import Network, why_not
from helpers.waiting import until


def fault(name):
    return injectors.FAULTS[name].inject


SLEEPER = "import time\nwhile True: time.sleep(0.01)"


@pytest.fixture
def sleepers():
    """Sleeping processes in place of the workers and the launcher of a cell."""
    started = [subprocess.Popen([sys.executable, "-S", "-c", SLEEPER]) for _ in range(WORKERS + 1)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def running(tmp_path, sleepers):
    """A cell whose workers have recorded a first step; its processes are the sleepers."""
    task = Task(str(tmp_path), "", timeout=0.4, steps=1, columns=1, raising=1)
    cell = Cell("static", "a fault", "run", 3, timeout=0.4)
    made = Running(cell, task, tmp_path, cell.random, Outcome(cell), pid=sleepers[-1].pid, started=time.monotonic())
    made.named = lambda word: sleepers[-1].pid
    rows = [[0.0, 0.0]] * (WORKERS + 1)
    for rank in range(WORKERS):
        lines = [f'["begins", 0.0, 0, {rows}, {sleepers[rank].pid}]', f'["enters", 0.0, 0, {rows}, null]']
        (tmp_path / f"worker-{rank}.jsonl").write_text("\n".join([*lines, ""]))
    return made


def carry_out(injector, running, look=lambda: None):
    """Run an injector to its end and return what `look` observes meanwhile."""
    looks = []
    for _ in injector(running):
        looks.append(look())
        time.sleep(0.005)
    return [*looks, look()]


def states(sleepers):
    return [look_at(process.pid).state for process in sleepers]


@pytest.mark.parametrize(("name", "number"), [("kill worker", 1), ("kill while connecting", 1), ("kill two", 2)])
def test_killed_workers_are_dead_and_others_alive(running, sleepers, name, number):
    carry_out(fault(name), running)
    assert running.outcome.fired
    assert len(running.victims) == number
    assert [sleepers[victim].wait(60) for victim in running.victims] == [-signal.SIGKILL] * number
    others = [p.poll() for i, p in enumerate(sleepers) if i not in running.victims]
    assert others == [None] * (WORKERS + 1 - number)


@pytest.mark.parametrize(("name", "again"), [("kill joiner", True), ("kill while one joins", False)])
def test_second_kill_hits_the_restarted_worker_or_another(running, sleepers, name, again):
    """In place of the launcher this test starts another process for the first that died."""
    back = subprocess.Popen([sys.executable, "-S", "-c", SLEEPER])

    def start_again():
        for victim in running.victims if len(running.victims) == 1 else ():
            if sleepers[victim].poll() is not None and len(running.pids_of(victim)) == 1:
                rows = [[0.0, 0.0]] * (WORKERS + 1)
                with (running.folder / f"worker-{victim}.jsonl").open("a") as file:
                    file.write(f'["begins", 1.0, 0, {rows}, {back.pid}]\n')

    carry_out(fault(name), running, start_again)
    try:
        assert (back.poll() == -signal.SIGKILL) is again
        assert sum(process.poll() is not None for process in sleepers) == (1 if again else 2)
    finally:
        back.kill()
        back.wait()


def test_killing_a_node_kills_its_launcher_and_marks_its_workers(running, sleepers):
    (running.folder / "launcher-1").write_text(f"{sleepers[-1].pid}\n")
    carry_out(fault("kill node"), running)
    assert running.outcome.fired
    assert running.code == -signal.SIGKILL or sleepers[-1].wait(60) == -signal.SIGKILL
    assert running.victims == {2, 3}
    assert re.search(running.culprit, "worker 3 failed")
    assert not re.search(running.culprit, "worker 1 failed")


@pytest.mark.parametrize(("name", "times"), [("pause for half", 0.5), ("pause for three", 3), ("pause store host", 3)])
def test_paused_worker_stops_for_the_given_time(running, sleepers, name, times):
    seen = carry_out(fault(name), running, lambda: (time.monotonic(), states(sleepers)))
    (victim,) = running.victims
    assert name != "pause store host" or victim == 0
    assert running.must_finish == (times < 1)
    still = [instant for instant, now in seen if now[victim] == "T"]
    assert running.outcome.fired
    assert still[-1] - still[0] < times * 0.4 + 5
    before = max((instant for instant, _ in seen if instant < still[0]), default=still[0])
    after = min(instant for instant, _ in seen if instant > still[-1])
    assert after - before >= times * 0.4, "it was observed before and after the pause"
    assert seen[-1][1][victim] != "T"
    assert all(now[other] != "T" for _, now in seen for other in range(WORKERS) if other != victim)


def test_late_end_of_a_pause_is_recorded(running):
    steps = fault("pause for half")(running)
    while not running.outcome.fired:
        next(steps)
    time.sleep(0.5)  # the campaign handles other cells meanwhile
    for _ in steps:
        pass
    assert running.lasts == 0.2
    assert running.overdue >= 0.3
    assert running.held_up >= running.overdue


BUSY = "import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nwhile True: pass"


def test_runnable_process_without_a_processor_counts_as_delayed(running):
    busy = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(3)]
    try:
        running.pid, running.fault_time = busy[0].pid, time.monotonic()
        until(lambda: running.look() or running.held_up >= 0.2)
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("name", ["pause launcher", "pause generator"])
def test_paused_launcher_or_generator_stops_and_continues(running, sleepers, name):
    seen = carry_out(fault(name), running, lambda: states(sleepers))
    assert running.outcome.fired
    assert any(now[-1] == "T" for now in seen)
    assert seen[-1][-1] != "T"


@pytest.mark.parametrize(
    "name", [*(f"SIG{n} launcher{at}" for n in ("TERM", "KILL") for at in ("", " at start")), "kill generator"]
)
def test_launcher_or_generator_gets_the_signal(running, sleepers, name):
    number = signal.SIGTERM if "TERM" in name else signal.SIGKILL
    carry_out(fault(name), running)
    assert running.outcome.fired
    assert running.must_finish == (name == "kill generator")
    assert running.code == -number or sleepers[-1].wait(60) == -number


@pytest.mark.parametrize("launcher", ["run", "by hand"])
def test_killed_parent_is_dead_and_its_children_alive(running, sleepers, tmp_path, launcher):
    running.cell = Cell("static", "a fault", launcher, 3, timeout=0.4)
    running.task = replace(running.task, children=1)
    children = [subprocess.Popen([sys.executable, "-S", "-c", SLEEPER]) for _ in range(WORKERS)]
    try:
        for rank, child in enumerate(children):
            with (tmp_path / f"worker-{rank}.jsonl").open("a") as file:
                file.write(f'["forked", 0.0, 0, {[[0.0, 0.0]] * (WORKERS + 1)}, [{child.pid}]]\n')
        carry_out(fault("kill parent of children"), running)
        (victim,) = running.victims
        assert running.outcome.fired
        assert launcher == "run" or victim == 0
        assert sleepers[victim].wait(60) == -signal.SIGKILL
        assert [child.poll() for child in children] == [None] * WORKERS
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_parent_fault_without_children_does_not_fire(running, sleepers):
    running.task = replace(running.task, children=1)
    carry_out(fault("kill parent of children"), running)
    assert not running.outcome.fired
    assert [process.poll() for process in sleepers] == [None] * (WORKERS + 1)


COUNTER = """
import os, signal, sys
reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
signal.signal(signal.SIGTERM, lambda *_: None)
print(flush=True)
received = 0
while received < 2: received += len(os.read(reading, 9))
sys.exit(42)
"""


def test_launcher_gets_a_signal_twice(running):
    with subprocess.Popen([sys.executable, "-S", "-c", COUNTER], stdout=subprocess.PIPE) as launcher:
        launcher.stdout.readline()
        running.pid = launcher.pid
        carry_out(fault("SIGTERM launcher twice"), running)
        assert running.outcome.fired
        assert running.code == 42 or launcher.wait(60) == 42


def test_exception_fires_when_the_worker_records_it(running, tmp_path):
    with (tmp_path / "worker-1.jsonl").open("a") as file:
        file.write(f'["raises", 7.0, 0, {[[0.0, 0.0]] * (WORKERS + 1)}, null]\n')
    carry_out(fault("exception"), running)
    assert running.outcome.fired
    assert (running.victims, running.fault_time) == ({1}, 7.0)


def test_incomplete_line_is_read_after_it_is_complete(running, tmp_path):
    path, before = tmp_path / "worker-2.jsonl", len(running.records(2))
    line = f'["leaves", 1.0, 0, {[[0.0, 0.0]] * (WORKERS + 1)}, null]\n'
    for part, known in ((line[:9], before), (line[9:], before + 1), (line, before + 2)):
        with path.open("a") as file:
            file.write(part)
        assert len(running.records(2)) == known


def test_fault_after_the_end_of_the_run_does_not_fire(running, sleepers):
    for process in sleepers:
        os.kill(process.pid, signal.SIGKILL)
    for process in sleepers[:-1]:
        process.wait()
    os.waitid(os.P_PID, sleepers[-1].pid, os.WEXITED | os.WNOWAIT)
    carry_out(fault("kill worker"), running)
    assert not running.outcome.fired


def test_occupied_port_accepts_connections_and_never_answers():
    with injectors.squat() as stranger, socket.socket() as host, socket.socket() as client:
        place = stranger.getsockname()
        with pytest.raises(OSError, match="in use"):
            host.bind(place)
        client.connect(place)
        client.settimeout(0.3)
        client.send(b"hello")
        with pytest.raises(TimeoutError):
            client.recv(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_full_disk_rejects_another_file(tmp_path):
    unmount = injectors.tiny_disk(tmp_path / "disk")
    try:
        (tmp_path / "disk" / "before").write_bytes(b"x" * 4096)
        assert injectors.fill(tmp_path / "disk")
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk" / "after").write_bytes(b"x" * 4096)
    finally:
        unmount()
    assert not list((tmp_path / "disk").iterdir())


@pytest.mark.lab
def test_cut_link_passes_nothing_until_it_is_restored():
    if (reason := why_not()) is not None:
        pytest.skip(reason)

    def reaches(network):
        """Return whether node 0 gets an answer from node 1, here a refused connection."""
        code = f"import socket; s = socket.socket(); s.settimeout(0.7); s.connect(('{network.address(1)}', 9))"
        command = [*network.prefix_command(0), sys.executable, "-S", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return "ConnectionRefusedError" in done.stderr

    with Network(2, "100mbit", subnet="10.79.0", tag="t") as network:
        until(lambda: reaches(network))
        network.set_link(1, up=False)
        assert not reaches(network)
        network.set_link(1, up=True)
        until(lambda: reaches(network))
