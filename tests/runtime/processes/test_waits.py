"""Every wait ends and every failed worker is named: real faults on real processes (helpers/fault_scenarios.py)."""

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.generator_rig import FOUR_ON_ONE_NODE, serving
from helpers.two_nodes import why_no_network

pytestmark = pytest.mark.processes

EARLY = 30.0
"""Seconds in which all workers report a fault, even on a busy machine; the longer timeouts here are 60 s."""


def seconds(what, answer, since):
    """Seconds of each worker from the fault to its error, which docs/errors.md states."""
    waits = [report["at"] - since for report in answer["errors"].values()]
    sys.stdout.write(f"seconds from the fault to the error: {what}: {[round(wait, 2) for wait in waits]}\n")
    return waits


SCENARIOS = "helpers.fault_scenarios"


@pytest.mark.parametrize("fault", ["SIGSTOP", "SIGKILL", "cut"])
def test_workers_whose_store_is_gone_raise_store_lost_error(driver, fault):
    """The timeout is 8 s. Workers once trained on as orphans and hung in finish()."""
    if fault == "cut" and (reason := why_no_network()):
        pytest.skip(reason)
    answer = driver.run("training", fault=fault)
    assert answer["hang"] == [], answer["output"][-2000:]
    assert set(answer["errors"]) == {0, 1, 2}, answer["output"][-2000:]
    for report in answer["errors"].values():
        assert report["error"] == "StoreLostError"
        assert "the store at 1" in report["text"]
        assert "worker " not in report["text"], "no worker is blamed"
    assert max(seconds(f"store {fault}", answer, answer["fired"])) < EARLY


@pytest.mark.parametrize(
    ("setting", "neighbor", "other"),
    [
        ("notify", "step 2 for an update of step 2", "step 3 for the acknowledgement of its update of step 2"),
        # With `dpsgd` the update of step 2 is sent on entering step 2.
        ("staleness", "step 5 for an update of step 3 or later", "step 8 for an update of step 6 or later"),
        # The killed worker gave 3 tokens at first and 2 for the steps that it entered.
        ("backup", "step 5 for a token to enter step 6", "step 8 for a token to enter step 9"),
    ],
)
def test_without_a_killed_worker_the_others_continue_until_they_need_it(driver, setting, neighbor, other):
    """On a ring 0-1-2-3-4 whose worker 2 is killed in step 2; with backup longer than the grace of a failed run."""
    grace = 4.0 if setting == "backup" else 60.0
    answer = driver.run(f"gap, {setting}", patient=True, grace=grace)
    assert answer["code"] == 128 + signal.SIGKILL
    errors = answer["errors"]
    for worker in (1, 3):
        assert "worker 2 was killed by signal 9" in errors[worker]["text"]
        assert f"worker {worker} waited in {neighbor} from worker 2" in errors[worker]["text"]
        assert "--tolerate-failures" not in errors[worker]["text"], "its survivors could not continue"
    if setting == "backup":
        assert min(errors[worker]["at"] for worker in (1, 3)) - answer["faults"][0]["at"] > grace
        return
    assert max(errors[worker]["at"] for worker in (1, 3)) - answer["faults"][0]["at"] < EARLY
    for worker, lost in ((0, 1), (4, 3)):
        assert f"worker {worker} waited in {other} from worker {lost}" in errors[worker]["text"]
        assert "worker 2" in errors[worker]["text"]


def test_port_held_by_another_program_is_reported_early(driver):
    answer = driver.run("wrapped", fault="squatted")
    assert answer["hang"] == []
    for report in answer["errors"].values():
        assert "another program's port?" in report["text"]
    assert set(answer["errors"]) == {0, 1}
    assert max(seconds("port held", answer, answer["fired"])) < EARLY


def test_a_member_that_dies_while_gloo_connects_costs_one_timeout(driver):
    """No launcher notes the death; torch alone would take five times the timeout of 8 s."""
    answer = driver.run("connecting")
    assert answer["hang"] == []
    assert [fault["rank"] for fault in answer["faults"]] == [3], "the fault fired"
    assert set(answer["errors"]) == {0, 1, 2}
    for report in answer["errors"].values():
        assert "worker 3" in report["text"]
    assert max(seconds("dies while gloo connects", answer, answer["faults"][0]["at"])) < EARLY


STAGES = {
    "imports": "before it reached the store",
    "handshake": "while it was in the handshake",
    "connecting": "while it connected its groups",
}
KINDS = ("allreduce", "pipeline", "quorum", "neighbor", "pairwise", "server", "asynchronous server")
"""All but averages of parameters in groups, which test_training.py kills."""
KILLED = [*((f"in {stage}", 2) for stage in STAGES), *((kind, 1) for kind in KINDS)]


@pytest.mark.parametrize(("place", "victim"), KILLED, ids=[place for place, _ in KILLED])
def test_kill_is_noticed_before_the_timeout_at_start_and_by_every_kind(driver, place, victim):
    scenario = f"killed {place}" if place.startswith("in ") else f"killed, {place}"
    answer = driver.run(scenario)
    assert answer["code"] == 128 + signal.SIGKILL, "the fault fired"
    assert set(answer["errors"]) == {0, 1, 2, 3} - {victim}, answer["output"][-2000:]
    named = f"worker {victim} was killed by signal 9"
    assert all(named in report["text"] for report in answer["errors"].values())
    assert max(seconds(scenario, answer, answer["faults"][0]["at"])) < EARLY, "not after the timeout of 60 s"
    if place.startswith("in "):
        line = next(line for line in answer["output"].splitlines() if line.startswith("partreduce: "))
        assert f"{named} (SIGKILL) {STAGES[place.removeprefix('in ')]}" in line


STOPPED = [("row", 4, 29), ("row", 1, 12), ("stopped, pipeline", 1, 0), ("stopped, quorum", 1, 0)]


@pytest.mark.parametrize(("scenario", "victim", "at"), STOPPED)
def test_a_stopped_worker_is_named_in_a_row_and_with_gradients_in_flight(driver, scenario, victim, at):
    """In a row each worker waits for its neighbor; the first to time out names the worker that blocks all."""
    answer = driver.run(scenario, environment={"VICTIM": str(victim), "AT": str(at)})
    assert [fault["fault"] for fault in answer["faults"]] == [signal.SIGSTOP], "the fault fired"
    assert set(answer["errors"]) == set(range(5 if scenario == "row" else 4)) - {victim}
    for report in answer["errors"].values():
        assert f"worker {victim}, which" in report["text"], report["text"]
        assert scenario != "row" or report["text"].count("no sign of life") == 1, report["text"]
    assert max(seconds(scenario, answer, answer["faults"][0]["at"])) < EARLY


def test_evicted_worker_wakes_and_ends_alone(driver, tmp_path):
    """The others still train when it wakes, and continue to their end."""
    pytest.importorskip("zmq")
    evicted, ended = tmp_path / "evicted", threading.Event()

    def note_eviction(service):
        while service.state.status[3] != "dead" and not ended.wait(0.05):
            pass
        evicted.touch()

    with serving(FOUR_ON_ONE_NODE, lease=10.0) as (service, variables), ThreadPoolExecutor(1) as pool:
        pool.submit(note_eviction, service)
        try:
            environment = variables | {"EVICTED": str(evicted)}
            answer = driver.run("fenced", environment=environment, survive=True, grace=1.0)
        finally:
            ended.set()
    assert [fault["fault"] for fault in answer["faults"]] == [signal.SIGSTOP], "the fault fired"
    assert {rank: report["error"] for rank, report in answer["errors"].items()} == {3: "EvictedError"}
    assert "the others continued without it" in answer["errors"][3]["text"]
    ends = {report["rank"]: report["steps"] for report in answer["reports"] if "steps" in report}
    assert ends.pop(3) < 20
    assert ends == {0: 60, 1: 60, 2: 60}, answer["output"][-2000:]
    assert answer["code"] == 76, "the run says that it continued without a worker"
