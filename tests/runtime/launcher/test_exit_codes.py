"""Exit codes of workers are distinguished from signals by the kernel's wait status."""

import signal

import pytest

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


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "number"), [*(("exit", code) for code in (-1, *EXIT_CODES)), *(("signal", number) for number in SIGNALS)]
)
def test_exit_code_or_signal_of_a_worker_is_named_and_ends_the_run(run_script, way, number):
    """A signal gives the exit code 128 + signal, as in a shell."""
    done = run_script(SCRIPT, way, number)
    if way == "exit":
        assert done.returncode == number % 256
        assert f"worker 1 ended with exit code {number % 256} and no message" in done.stderr
        assert "killed" not in done.stderr
    else:
        name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
        assert done.returncode == 128 + number
        assert f"worker 1 was killed by signal {number}{name}" in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("code", [*EXIT_CODES, *(-number for number in SIGNALS)])
def test_only_workers_killed_by_a_signal_count_as_failed(code):
    assert _is_lost(Child(0, 0, 0, code=code)) == (code < 0)


@pytest.mark.parametrize(("code", "number"), [(130, signal.SIGINT), (143, signal.SIGTERM)])
def test_exit_code_above_128_is_not_a_termination_request(monkeypatch, code, number):
    sent = []
    monkeypatch.setattr(Child, "signal", lambda _, sent_number: sent.append(sent_number))
    workers, shutdown = [Child(0, 0, 0, code=code), Child(1, 0, 0)], Shutdown()
    shutdown.failed(workers[0], FailureRule(workers, LogMultiplexer()), 5.0)
    assert shutdown.code == code
    assert not shutdown.has_signalled
    shutdown.end_on_request(number, 5.0, workers)
    assert sent == [number], "one signal: the others may still end by themselves"
    shutdown.end_on_request(number, 5.0, workers)
    assert sent == [number, signal.SIGKILL]


def test_every_returncode_is_formatted():
    assert [shell_exit_code(code) for code in (0, 255, -9, -64)] == [0, 255, 137, 192]
    for code in range(256):
        assert format_end(code) == f"ended with exit code {code}"
    for number in range(1, 65):
        assert format_end(-number).startswith(f"was killed by signal {number}")
