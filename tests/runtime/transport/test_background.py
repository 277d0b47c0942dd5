"""Background threads: a worker exits with its script's exit code, even with a thread inside torch."""

import re
import sys
import threading
import time

import pytest

from helpers import children
from helpers.warm import WARM
from partreduce.runtime.transport import work

STORE = """
import datetime, sys, threading
from partreduce.runtime.transport.work import Background
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=5), wait_for_workers=False)
client = TCPStore("127.0.0.1", server.port, None, False, datetime.timedelta(seconds=5), wait_for_workers=False)
stopped, asked = threading.Event(), threading.Event()
def ask():
    while not stopped.is_set():
        client.add("questions", 1)
        asked.set()
"""
PLAIN = "threading.Thread(target=ask, daemon=True).start()\nasked.wait()\n"
BACKGROUND = "Background(ask, name='asks', stop=stopped.set).start()\nasked.wait()\n"


def run_script(script):
    return WARM.run("-c", script, timeout=250)


def test_plain_daemon_thread_inside_torch_ends_the_process_by_a_signal():
    """The fault that `Background` avoids: if this test fails, Python or torch has fixed it."""
    if sys.version_info >= (3, 14):
        pytest.skip("since Python 3.14 such a thread blocks forever instead")
    exit_interpreter = "import ctypes\nctypes.pythonapi.Py_Exit(0)\n"  # commands of the warm process end without it
    result = run_script(STORE + PLAIN + exit_interpreter)
    assert result.returncode == -6


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('on purpose')", 1)])
def test_a_process_with_background_threads_ends_as_its_script_ends(end, code):
    result = run_script(STORE + BACKGROUND + end)
    assert result.returncode == code, result.stderr
    assert "terminate" not in result.stderr


def test_thread_that_never_returns_does_not_block_the_exit():
    result = run_script("import threading\n" + STORE + "Background(threading.Event().wait, name='waits').start()\n")
    assert result.returncode == 0, result.stderr


def test_busy_machine_gives_threads_more_time_to_end(monkeypatch):
    """Each poll takes a hundred times as long as it should, and the thread ends after five polls."""
    monkeypatch.setattr(work, "ENDING_SECONDS", 0.0005)
    monkeypatch.setattr(work, "_threads", set())
    stopped, polls = threading.Event(), []

    class StarvedThread(work.Background):
        def join(self, timeout=None):
            time.sleep(100 * timeout)
            polls.append(timeout)

    def return_after_five_polls():
        stopped.wait()
        while len(polls) < 5:
            time.sleep(0.001)

    thread = StarvedThread(return_after_five_polls, name="starved", stop=stopped.set)
    thread.start()
    work.end_all()
    assert not thread.is_alive()
    never = StarvedThread(threading.Event().wait, name="never")
    never.start()
    polls.clear()
    work.end_all()
    assert len(polls) == work.ENDING_LOOKS


def test_all_threads_are_stopped_before_any_is_joined_and_share_the_limit(monkeypatch):
    done = []

    class Running:
        """A thread that is alive for `polls` polls."""

        def __init__(self, name, polls, *, stops=True):
            self.name, self.polls = name, polls
            self.stop = (lambda: done.append(("stop", name))) if stops else None

        def is_alive(self):
            return self.polls > 0

        def join(self, limit):
            assert limit == work.ENDING_SECONDS
            done.append(("join", self.name))
            self.polls -= 1

    current = threading.current_thread()
    monkeypatch.setattr(current, "stop", lambda: done.append(("stop", "current")), raising=False)
    threads = [Running("a", 5), Running("b", 99, stops=False), Running("c", 99), Running("over", 0)]
    monkeypatch.setattr(work, "_threads", [*threads, current])
    work.end_all()
    stops = [("stop", "a"), ("stop", "c"), ("stop", "current")]
    polls = work.ENDING_LOOKS
    assert done == [*stops, *[("join", "a")] * 5, *[("join", "b")] * (polls - 5)]


def test_every_thread_of_the_runtime_is_a_background_thread():
    files = sorted((children.ROOT / "runtime").rglob("*.py"))
    plain = [str(file) for file in files if re.search(r"threading\.Thread\(|Thread\(target", file.read_text("utf-8"))]
    assert plain == []
