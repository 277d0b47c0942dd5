"""TorchftSchedule with the real torchft, if installed: its Managers, its lighthouse and gloo."""

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


def test_replicas_average_as_scheduled(result):
    for name in ("plain", "outer"):
        for replica, weights in enumerate(result[name]):
            assert weights == pytest.approx(result[f"{name} by hand"][replica], abs=1e-6)
    assert result["plain"][0] == pytest.approx(result["theirs"][0], abs=1e-6), "torchft's LocalSGD"
    assert result["outer"][0] != pytest.approx(result["plain"][0], abs=1e-3)


def test_replicas_continue_without_a_failed_replica_and_readmit_it(result):
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
def test_schedules_that_a_manager_cannot_run_raise_one_line_errors(result, case, text):
    assert text in result["refused"][case]
    assert "\n" not in result["refused"][case]
