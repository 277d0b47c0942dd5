"""An exit code is an exit code, and a signal is what the kernel reports as one: in every way of running workers."""

import re
import signal

import pytest

from helpers.warm import WARM
from partreduce.runtime.elastic.coordinator import FailureRule
from partreduce.runtime.launcher.log_multiplexer import LogMultiplexer
from partreduce.runtime.launcher.signals import format_end, shell_exit_code
from partreduce.runtime.launcher.supervision import Child, Shutdown, _is_lost

EXIT_CODES = [1, 2, 77, 128, 130, 137, 143, 192, 193, 255]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 1]
SCRIPT = """
import os, signal, sys
way, number = sys.argv[1], int(sys.argv[2])
if os.environ["RANK"] == "1":
    if way == "signal":
        os.kill(os.getpid(), number)
    sys.exit(number)
"""


@pytest.fixture
def script(tmp_path):
    (path := tmp_path / "script.py").write_text(SCRIPT)
    return path


def check_signal_message(errors, number):
    name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
    assert f"worker 1 was killed by signal {number}{name}" in errors
    assert "internal error" not in errors


def check_exit_code_message(errors, code):
    assert f"worker 1 ended with exit code {code} and no message" in errors
    assert "killed" not in errors
    assert "internal error" not in errors


@pytest.mark.processes
@pytest.mark.parametrize("code", [-1, *EXIT_CODES])
def test_an_exit_code_of_a_worker_is_the_run_s(script, code):
    done = WARM.run("partreduce", "run", "--workers", "2", script, "exit", code)
    assert done.returncode == code % 256
    check_exit_code_message(done.stderr, code % 256)


@pytest.mark.processes
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_ends_a_worker_is_named_and_gives_a_shell_s_exit_code(script, number):
    done = WARM.run("partreduce", "run", "--workers", "2", script, "signal", number)
    assert done.returncode == 128 + number
    check_signal_message(done.stderr, number)


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("way", "number", "shown"), [("exit", 255, 255), ("signal", 15, -15)])
def test_torchrun_reports_an_exit_code_and_a_signal_of_a_script_that_uses_partreduce(script, way, number, shown):
    script.write_text("import partreduce\npartreduce.DistributedOptimizer\n" + SCRIPT)
    line = ["--standalone", "--nproc-per-node", 2, script, way, number]
    done = WARM.run("torch.distributed.run", *line, timeout=250)
    assert done.returncode == 1
    assert re.search(rf"exitcode\s*: {shown}\b", done.stderr), done.stderr[-3000:]


@pytest.mark.parametrize("code", EXIT_CODES)
def test_the_others_continue_without_a_worker_that_a_signal_ended_but_not_after_an_exit_code(code):
    assert not _is_lost(Child(0, 0, 0, code=code))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_worker_that_a_signal_ended_is_lost(number):
    assert _is_lost(Child(0, 0, 0, code=-number))


@pytest.mark.parametrize(("code", "number"), [(130, signal.SIGINT), (143, signal.SIGTERM)])
def test_an_exit_code_that_looks_like_a_signal_is_no_request_to_end_the_run(monkeypatch, code, number):
    sent = []
    monkeypatch.setattr(Child, "signal", lambda _, sent_number: sent.append(sent_number))
    workers, shutdown = [Child(0, 0, 0, code=code), Child(1, 0, 0)], Shutdown()
    shutdown.failed(workers[0], FailureRule(workers, LogMultiplexer()), 5.0)
    assert shutdown.code == code
    assert not shutdown.has_signalled
    shutdown.end_on_request(number, 5.0, workers)
    assert sent == [number], "asked once: the others may still end by themselves"
    shutdown.end_on_request(number, 5.0, workers)
    assert sent == [number, signal.SIGKILL]


def test_how_a_process_ended_is_formatted_for_every_returncode():
    assert [shell_exit_code(code) for code in (0, 255, -9, -64)] == [0, 255, 137, 192]
    for code in range(256):
        assert format_end(code) == f"ended with exit code {code}"
    for number in range(1, 65):
        assert format_end(-number).startswith(f"was killed by signal {number}")
