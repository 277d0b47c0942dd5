"""Averager and DDP hook equal torch's hierarchical averager, DDP and our optimizer where these apply."""

from fractions import Fraction
from operator import itemgetter

import numpy as np
import pytest
import torch

from helpers.thread_ranks import ThreadRanks
from partreduce import Cluster, Schedule, ScheduleAverager, ScheduleHookState
from partreduce.errors import InputError
from partreduce.runtime.adapters.averager import HookGradients
from partreduce.strategies import (
    AllReduce,
    Averaging,
    DelayedAveraging,
    Group,
    GroupPhases,
    Pairwise,
    Phase,
    StaticGroups,
)

SCENARIOS = "helpers.resume_worker"


@pytest.fixture(scope="module")
def results(driver):
    answer = driver.run("averagers")
    assert answer["code"] == 0, answer["output"]
    reports = sorted(answer["reports"], key=itemgetter("rank"))
    assert len(reports) == 4
    return {name: np.array([report[name] for report in reports]) for name in reports[0] if name != "rank"}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("averager", "hierarchical"),
        ("averager", "optimizer"),
        ("hook and averager", "averager"),
        ("hook, every step", "ddp"),
        ("hook, warm-up", "ddp"),
    ],
)
def test_results_are_equal_where_both_apply(results, one, other):
    np.testing.assert_allclose(results[one], results[other], rtol=1e-4, atol=1e-6)


@pytest.mark.processes
def test_compared_runs_train_and_differ_where_expected(results):
    assert np.ptp(results["averager"], axis=0).max() < 1e-6, "the last round averages over all"
    assert np.abs(results["averager"] - results["ddp"]).max() > 1e-4
    assert np.abs(results["hook, groups"] - results["ddp"]).max() > 1e-4
    assert np.abs(results["hook, groups"][0] - results["hook, groups"][1]).max() < 1e-6, "a pair stays equal here"


def test_averager_follows_groups_relax_steps_per_round_and_warmup():
    phases = (Phase.from_groups(3, [Group((0, 2), Fraction(1, 2))]), Phase.from_groups(3, []))
    plan = Schedule("s", Cluster.regular(1, 3), StaticGroups(phases=GroupPhases(phases), steps_per_round=(1, 1, 2)))

    def work(world):
        averager = ScheduleAverager(plan, warmup_steps=1, timeout=60, world=world)
        tensor = torch.nn.Parameter(torch.full((2,), float(world.rank)))
        seen = []
        for _ in range(1 + plan.steps_per_round_of(world.rank) * 2):
            averager.average_parameters([{"params": [tensor]}])
            seen.append(tensor[0].item())
        return seen

    assert ThreadRanks(3).run(3, work) == [[0.0, 0.5, 0.5], [1.0] * 3, [2.0, 2.0, 1.5, 1.5, 1.5]]


def test_unsupported_schedules_are_rejected(monkeypatch):
    pairs = Schedule("p", Cluster.regular(1, 2), Pairwise(active=(0,)))
    for make in (ScheduleAverager, ScheduleHookState):
        with pytest.raises(InputError, match="needs DistributedOptimizer"):
            make(pairs)
        with pytest.raises(InputError, match="applied one round late"):
            make(Schedule("o", Cluster.regular(1, 2), AllReduce(steps_per_round=2, sync=DelayedAveraging())))
        by_steps = AllReduce(steps_per_round=(1, 2), averaging=Averaging.STEP_NORMALIZED)
        with pytest.raises(InputError, match="progress per step"):
            make(Schedule("n", Cluster.regular(1, 2), by_steps))
    with pytest.raises(InputError, match="averages gradients in each step"):
        ScheduleAverager(Schedule("g", Cluster.regular(1, 2), AllReduce()))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="is for 2 workers and this run has 3"):
        ScheduleAverager(Schedule("a", Cluster.regular(1, 2), AllReduce(steps_per_round=2)))
    with pytest.raises(InputError, match="'all' is not one of local, group"):
        ScheduleHookState(Schedule("a", Cluster.regular(1, 2), AllReduce(steps_per_round=2)), gradients="all")
    assert HookGradients("group") is HookGradients.GROUP
