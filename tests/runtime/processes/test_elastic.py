"""The end of elastic runs: more failures than tolerated, silent workers, errors and rejected settings."""

import pytest

from helpers.elastic_runs import ALL, LEFT, replay_means, run
from partreduce import strategies as st
from partreduce.errors import EvictedError, InputError
from partreduce.runtime.launcher import log_multiplexer

pytestmark = pytest.mark.processes


def test_more_failures_than_tolerated_end_the_run_with_the_signal_and_names():
    ended = run({1: ("before the sum", 3), 0: ("before the sum", 5)}, max_failures=1)
    assert (ended.code, ended.reports) == (128 + 9, {}), ended.text
    assert "without worker 1 the other 2 continue" in ended.text
    assert "worker 0 was killed by signal 9" in ended.text


@pytest.mark.parametrize(
    ("instant", "averaged"), [("stopped", 4), ("stopped before mean_model()", 5), ("stopped before finish()", 9)]
)
def test_silent_worker_is_evicted_and_killed(instant, averaged):
    ended = run({1: (instant, 4)}, timeout=8.0, evaluate=(4,))
    assert ended.code == EvictedError.exit_code, ended.text
    assert ended.own == replay_means(lambda round_: [ALL if round_ < averaged else LEFT], LEFT), ended.text
    assert "worker 1 sent no heartbeat for 8 s and was evicted" in ended.text
    assert "SIGKILL" not in ended.text, "the launcher sent it"


def test_an_exception_in_a_script_ends_the_run():
    ended = run({1: ("an error", 0)})
    assert (ended.code, ended.reports) == (1, {}), ended.text
    assert "ZeroDivisionError" in ended.text
    assert "continue" not in ended.text


def test_schedules_that_cannot_continue_are_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(log_multiplexer, "ALIKE_SECONDS", 60.0)
    ended = run({}, strategy=st.Pairwise(active=(0, 2)), max_failures=1)
    assert (ended.code, ended.reports) == (InputError.exit_code, {}), ended.text
    assert "strategy.kind: is pairwise" in ended.text
    assert "run it with --tolerate-failures 0" in ended.text
    assert ended.text.count("InputError: ") == ended.text.count("[0-2] InputError: schedule ") == 1, ended.text


def test_unused_failure_plan_is_mentioned():
    ended = run({}, failure_plan=st.FailurePlan(st.SurvivorRule.ALL_REDUCE, 1), max_failures=0)
    assert (ended.code, sorted(ended.reports)) == (0, list(ALL)), ended.text
    assert (
        ended.text.count("`run --schedule FILE` with this file, or begins again under torchrun with --max-restarts")
        == 1
    )


def test_all_but_one_worker_may_fail():
    with pytest.raises(InputError, match="--tolerate-failures: expected 0 to 2 for 3 workers, got 3"):
        run({}, max_failures=3)
