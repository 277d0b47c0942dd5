"""A forked worker ends as a Python program does, and cleans up only after itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers import children
from helpers.warm import WARM

pytestmark = pytest.mark.processes

TWO_WORKERS = (
    '{"format": "preduce.schedule", "version": 1, "name": "two", "strategy": {"kind": "allreduce"},'
    ' "cluster": {"num_nodes": 1, "workers_per_node": 2}}'
)
READS_LAST = """
import os, pathlib, sys, time, preduce

ended = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "1":
    ended.write_text(str(os.getpid()))
else:
    while not (ended.exists() and (pid := ended.read_text())):
        time.sleep(0.01)
    state = pathlib.Path("/proc", pid, "stat")
    while state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.01)
    print("the other has ended")
preduce.load_schedule(os.environ["PREDUCE_SCHEDULE"])
"""
LATE_WORDS = """
import atexit, concurrent.futures, logging.handlers, sys, tempfile, threading, time

def say(words):
    print(words, flush=True)

ends = threading.Event()  # before it nobody speaks; the interpreter first waits for pools, then for threads
threading.Thread(target=lambda: (threading.main_thread().join(), say("thread"))).start()
concurrent.futures.ThreadPoolExecutor(1).submit(lambda: (ends.wait(), time.sleep(0.2), say("pool")))
atexit.register(say, "exit function")
kept = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout))
logging.getLogger().addHandler(kept)
logging.warning("log")
folder = tempfile.TemporaryDirectory()
say("folder " + folder.name)
ends.set()
sys.exit(5)
"""


def run(*arguments, stdin=""):
    return WARM.run("preduce", "run", *arguments, stdin=stdin, environment=children.environment())


def test_the_first_worker_to_end_leaves_the_run_s_schedule_to_the_others(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(READS_LAST)
    done = run("--schedule", "-", script, tmp_path / "ended", stdin=TWO_WORKERS)
    assert done.stdout == "[0] the other has ended\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_ends_as_a_python_program_does(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LATE_WORDS)
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    worker = run("--workers", "1", script)
    assert worker.returncode == alone.returncode == 5
    folders = []
    for lines in ([line.removeprefix("[0] ") for line in worker.stdout.splitlines()], alone.stdout.splitlines()):
        folders.append(Path(lines[0].removeprefix("folder ")))
        assert lines[1:] == ["pool", "thread", "exit function", "log"]
    assert not any(folder.exists() for folder in folders)
