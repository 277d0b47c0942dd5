"""A forked worker has its own random numbers and standard streams, and all its output arrives."""

import io
import json
import os
import signal
import subprocess
import time

import pytest
from torch.distributed import HashStore

from partreduce.runtime.elastic.coordinator import FailureRule
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.launcher.log_multiplexer import LogMultiplexer
from partreduce.runtime.launcher.processes import fill_standard_descriptors
from partreduce.runtime.launcher.signals import raise_on_sigterm
from partreduce.runtime.launcher.supervision import Child, supervise

INSPECT_PROCESS = """
import json, os, random, subprocess, sys
import numpy, torch

drawn = [torch.rand(1, dtype=torch.float64).item(), float(numpy.random.rand()), random.random()]
read = subprocess.run(["cat"], capture_output=True, text=True).stdout + sys.stdin.read()
pipes = sorted(os.readlink(f"/proc/self/fd/{number}") for number in (1, 2))
places = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd") if int(number) > 2]
others = [place for place in places if os.path.exists(place) and os.readlink(place) in pipes]
subprocess.Popen(["sleep", "600"])  # keeps the pipes open
print(json.dumps({"drawn": drawn, "read": read, "others": others}), end="")
"""


@pytest.mark.processes
def test_workers_have_their_own_random_numbers_and_standard_streams(run_script):
    done = run_script(INSPECT_PROCESS, stdin="ours")
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line[4:]) for line in sorted(done.stdout.splitlines())]
    assert len(found) == 2
    assert all(one != other for one, other in zip(found[0]["drawn"], found[1]["drawn"], strict=True))
    assert [(one["read"], one["others"]) for one in found] == [("", [])] * 2


@pytest.mark.processes
def test_worker_signalled_right_after_its_start_has_time_to_save(tmp_path, monkeypatch):
    release = Child.release

    def release_and_terminate(worker, variables):
        release(worker, variables)
        while not (tmp_path / "runs").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def work():
        def save(*_):
            time.sleep(0.3)
            (tmp_path / "saved").touch()
            os._exit(9)

        signal.signal(signal.SIGTERM, save)
        (tmp_path / "runs").touch()
        while True:
            time.sleep(0.05)

    monkeypatch.setattr(Child, "release", release_and_terminate)
    assert launch(work, num_workers=1, output=io.StringIO()) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists()


class SlowMultiplexer(LogMultiplexer):
    """A multiplexer whose terminal was suspended when the last worker ended."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def write(self, text, *, errors):
        time.sleep(1)
        self.lines += text.splitlines()


def test_slow_terminal_gets_all_output_after_the_last_worker_ended():
    ends = [os.pipe() for _ in range(2)]
    process = subprocess.Popen(["seq", "5000"], stdout=ends[0][1], stderr=ends[1][1])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # all output is in the pipe, whose write end stays open
    os.write(ends[0][1], b"last")
    outlet = SlowMultiplexer()
    worker = Child(0, process.pid, -1, {reading: b"" for reading, _ in ends})
    assert supervise([worker], [worker], HashStore(), 1.0, outlet, rule=FailureRule([worker], outlet)) == 0
    assert outlet.lines == [*(f"[0] {number}" for number in range(1, 5001)), "[0] last"]
    for descriptors in ends:
        for descriptor in descriptors:
            os.close(descriptor)
    process.wait()


def test_closed_standard_streams_are_not_replaced_by_pipes():
    pid = os.fork()
    if not pid:
        os.closerange(0, 3)
        fill_standard_descriptors()
        os._exit(min(os.pipe()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) > 2


def test_children_can_be_reaped_if_sigchld_was_ignored():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with raise_on_sigterm():
            process = subprocess.Popen(["false"])
            assert process.wait() == 1
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)
