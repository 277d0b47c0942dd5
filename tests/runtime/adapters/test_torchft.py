"""TorchftSchedule over the real torchft, where it is installed: its Managers, its lighthouse, gloo."""

import json

import pytest

from helpers.warm import WARM

pytest.importorskip("torchft", reason="torchft is not installed (`pip install torchft-nightly`)")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def result():
    done = WARM.run("helpers.torchft_runs", timeout=1100)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.rpartition("RESULT ")[2])


def test_replicas_meet_as_the_schedule_says(result):
    for name in ("plain", "outer"):
        for replica, weights in enumerate(result[name]):
            assert weights == pytest.approx(result[f"{name} by hand"][replica], abs=1e-6)
    assert result["plain"][0] == pytest.approx(result["theirs"][0], abs=1e-6), "torchft's LocalSGD"
    assert result["outer"][0] != pytest.approx(result["plain"][0], abs=1e-3)


def test_the_others_continue_without_a_lost_replica_and_take_it_back(result):
    first, second, third = result["lost"]
    assert first["then"] == second["then"] == 2
    assert third["entered"] == third["steps"] == first["steps"] == second["steps"] >= 12
    assert first["weights"] == second["weights"] == third["weights"]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("groups", "is of kind 'static', and a Manager sums over all replicas of its quorum"),
        ("gradients", "torchft's own DistributedDataParallel with its Optimizer; take steps_per_round above 1"),
        ("worker_steps", "has workers with different steps per round, which needs DistributedOptimizer"),
        ("late", "has late merges, which needs DistributedOptimizer"),
        ("merged", "has late merges, which needs DistributedOptimizer"),
        ("asynchronous", "give it use_async_quorum=False"),
    ],
)
def test_what_a_manager_cannot_do_is_refused_in_one_line(result, case, text):
    assert text in result["refused"][case]
    assert "\n" not in result["refused"][case]
