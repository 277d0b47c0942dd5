"""A forked worker exits as a Python program does and cleans up only its own resources."""

import gzip
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partreduce.runtime.launcher.processes import leave_clean_up_to_parent

pytestmark = pytest.mark.processes

TWO_WORKERS = (
    '{"format": "partreduce.schedule", "version": 1, "name": "two", "strategy": {"kind": "allreduce"},'
    ' "cluster": {"num_nodes": 1, "workers_per_node": 2}}'
)
ENDS_LAST = """
import contextlib, os, pathlib, sys, time

place = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "1":
    place.write_text(str(os.getpid()))
else:
    while not (place.exists() and (pid := place.read_text())):
        time.sleep(0.01)
    with contextlib.suppress(OSError):  # it was reaped
        while pathlib.Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.01)
"""
READS_LAST = (
    ENDS_LAST
    + """
import partreduce

if os.environ["RANK"] == "0":
    print("the other has ended")
partreduce.load_schedule(os.environ["PARTREDUCE_SCHEDULE"])
"""
)
LATE_OUTPUT = """
import atexit, concurrent.futures, gzip, logging.handlers, sys, tempfile, threading, time

def say(words):
    print(words, flush=True)

ends = threading.Event()  # set before any output; the interpreter first waits for pools, then for threads
threading.Thread(target=lambda: (threading.main_thread().join(), say("thread"))).start()
concurrent.futures.ThreadPoolExecutor(1).submit(lambda: (ends.wait(), time.sleep(0.2), say("pool")))
atexit.register(say, "exit function")
kept = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout))
logging.getLogger().addHandler(kept)
logging.warning("log")
log = open(sys.argv[1], "w")
log.write("never closed")
packed = gzip.open(sys.argv[1] + ".gz", "wt")
packed.write("nor this")
folder = tempfile.TemporaryDirectory()
say("folder " + folder.name)
ends.set()
sys.exit(5)
"""
BLOCKING_DESTRUCTOR = """
import ctypes, os, threading, weakref

reading, writing = os.pipe()
threading.Timer(1, os.write, (writing, b"x")).start()
left = threading.Event()
read = ctypes.PyDLL(None).read  # it keeps the interpreter's lock, as the destructor of a gloo group does
weakref.finalize(left, read, reading, ctypes.create_string_buffer(1), 1).atexit = False
"""
"""At module level, so that only the module holds the names."""


INTERRUPTED_EXIT = """
import ctypes, os, signal, sys, time

class Interrupted:
    def __getattr__(self, name):
        return getattr(sys.__stdout__, name)
    def flush(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

if os.environ["RANK"] == "1":
    sys.stdout = Interrupted()
    ctypes.CDLL(None).puts(b"of C")
    sys.exit(2**40 + 3)
sys.excepthook = lambda kind, error, where: print("hooked:", kind.__name__, error)
raise ValueError("a bug")
"""

DESTROYED_GROUPS = """
import torch
import torch.distributed as dist


def train():
    group = dist.new_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64), process_group=group)
    for _ in range(3):
        model(torch.ones(8, 64)).sum().backward()
    dist.destroy_process_group(group)


dist.init_process_group("gloo")
for _ in range(20):
    train()
dist.destroy_process_group()
"""


def test_first_worker_to_end_does_not_delete_the_schedule(run_script, tmp_path):
    done = run_script(READS_LAST, tmp_path / "ended", options=["--schedule", "-"], stdin=TWO_WORKERS)
    assert done.stdout == "[0] the other has ended\n"
    warned = done.stderr.splitlines()  # one warning of four lines: the script follows no schedule
    assert done.returncode == 0
    assert len(warned) == 4
    assert "ended without a DistributedOptimizer" in warned[0]


def test_worker_exits_as_a_python_program_does(run_script, tmp_path):
    of_program, of_worker = tmp_path / "alone", tmp_path / "worker"
    worker = run_script(LATE_OUTPUT, of_worker, options=["--workers", 1])
    command = [sys.executable, tmp_path / "script.py", of_program]
    alone = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert worker.returncode == alone.returncode == 5
    folders = []
    for lines in ([line.removeprefix("[0] ") for line in worker.stdout.splitlines()], alone.stdout.splitlines()):
        folders.append(Path(lines[0].removeprefix("folder ")))
        assert lines[1:] == ["pool", "thread", "exit function", "log"]
    assert not any(folder.exists() for folder in folders)
    for place in (of_program, of_worker):
        assert place.read_text() == "never closed"
        assert gzip.decompress(Path(f"{place}.gz").read_bytes()) == b"nor this"


@pytest.mark.parametrize("ends", ["", "raise SystemExit"])
def test_destructor_that_waits_for_a_thread_does_not_block_the_exit(run_script, ends):
    """As the process groups of a DistributedDataParallel script do."""
    assert run_script(BLOCKING_DESTRUCTOR + ends, options=["--workers", 1]).returncode == 0


def test_script_may_destroy_its_process_groups_before_its_ddp_models(run_script):
    """DistributedDataParallel models release their groups last, and blocked there within ten groups (torch 2.13)."""
    assert run_script(DESTROYED_GROUPS).returncode == 0


def test_worker_interrupted_while_exiting_does_not_affect_the_others(run_script, tmp_path):
    """A forked child that continued after its end would act as a second launcher and end the workers before it."""
    done = run_script(ENDS_LAST + INTERRUPTED_EXIT, tmp_path / "ended")
    assert sorted(done.stdout.splitlines()) == ["[0] hooked: ValueError a bug", "[1] of C"]
    assert done.returncode == 3
    assert done.stderr.startswith("partreduce: worker 1 ended with exit code 3 and no message")
    assert len(done.stderr.splitlines()) == 1


def test_worker_does_not_inherit_daemonic_processes_of_its_launcher():
    """At its exit the interpreter ends all processes that multiprocessing knows."""
    begun = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    begun.start()
    pid = os.fork()
    if not pid:
        leave_clean_up_to_parent()
        os._exit(len(multiprocessing.active_children()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert begun in multiprocessing.active_children()
    begun.kill()
    begun.join()
