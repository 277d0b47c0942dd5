"""The quick answer: what it weighs without a search, and what a thorough one says about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partreduce import Limits, Objective, PlanRequest, describe
from partreduce.planner.job import EFFORTS
from partreduce.planner.measuring import measure
from partreduce.planner.options import RESTS
from partreduce.planner.plan import plan
from partreduce.planner.recommend import recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.schedulers.synthesis.clock import MANY_SECONDS
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InfeasibleError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.timing.compute import RandomDelay, RotatingDelay
from partreduce.topo.timing.quorum import sample_seconds

HARDWARE = Hardware(inside=Link.of_bandwidth(1e10), nic=Link.of_bandwidth(25e6), model_bytes=500_000_000, compute=0.05)


def job(cluster: str, **options: object) -> PlanRequest:
    return PlanRequest(cluster=replace(Cluster.parse(cluster), hardware=HARDWARE), **options)  # type: ignore[arg-type]


def test_the_default_is_quick_needs_no_time_limit_and_answers_the_same_with_nothing_searched() -> None:
    found = plan(job("4x4"))
    assert found.answer.effort == EFFORTS["quick"]
    assert found.answer.time_limit == MANY_SECONDS
    assert not found.answer.capped
    assert found.search_status == "unknown"
    assert {option.status for option in found.options} == {"catalogue"}
    assert found.recommendation.name == "node-then-all(node_rounds=19) every 2 hierarchical"
    assert plan(job("4x4", effort=EFFORTS["quick"])).to_json() == found.to_json()


def test_rests_between_averages_over_all_workers_are_weighed_within_the_limits() -> None:
    found = plan(job("3x1", objective=Objective.COMMUNICATION, limits=Limits(max_period=7)))
    rests = [option for option in found.options if option.schedule.name.startswith(RESTS)]
    assert {option.period for option in rests} <= set(range(2, 8))
    assert any("(averages=5, rounds=7)" in option.name for option in rests)
    (third,) = {
        float(option.consensus_distance)
        for option in rests
        if "(rest_rounds=2)" in option.name and option.steps_per_round == 1 and not option.late
    }
    assert third == pytest.approx(2 / 3), "as of All-Reduce every 3 steps: (n - 1)/n times (3 - 1)/2"


def test_limits_are_searched_for_briefly_and_what_cannot_be_is_still_proved() -> None:
    assert not job("4x4").searches
    assert not job("4x4").is_limited
    limited = job("4x4", limits=Limits(max_group=4))
    assert limited.is_limited
    assert any(option.status == "feasible" for option in plan(limited).options)
    with pytest.raises(InfeasibleError, match="crossing bound"):
        plan(job("4x4", limits=Limits(max_communication=1e-6)))


def test_a_thorough_answer_says_what_it_gained_over_the_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "thorough", 0.5)
    for limits in (Limits(), Limits(max_group=2)):
        quick, found = (plan(job("2x4", limits=limits, effort=effort)) for effort in (None, 0.5))
        (said,) = (one for one in found.reasons if one.startswith("the quick answer"))
        if quick.recommendation.name == found.recommendation.name:
            assert said == "the quick answer is the same: searching found nothing better"
        else:
            ratio = quick.recommendation.time / found.recommendation.time
            words = describe(quick.recommendation.schedule)
            assert said == f"the quick answer is predicted to take {ratio:.3g} times as long: {words}"
        assert said == found.over_quick
        assert not quick.over_quick


@pytest.mark.parametrize("disturbance", [None, RandomDelay(1, 0.2), RotatingDelay(0.0, 0.1)], ids=str)
def test_step_times_that_vary_are_sampled_of_what_is_good_at_mean_speeds(disturbance) -> None:
    asked = job("2x2", disturbance=disturbance)
    asked = replace(asked, cluster=replace(asked.cluster, hardware=replace(HARDWARE, jitter=0.2)), gap=False)
    even = asked.at_mean_speeds
    assert even.compute_times().is_fixed
    drawn = sample_seconds(asked.compute_times(), 4, seed=1)
    assert even.compute_times().base == pytest.approx(drawn.mean(), rel=0.1)
    found = plan(replace(asked, quorum=False))
    assert found.recommendation.step_error > 0, "it is sampled"
    for option in (one for one in found.options if one.facts is None):
        once = measure(option.schedule, even, algorithm=option.algorithm).step_seconds
        assert once <= option.step_seconds * (1 + 5 * option.step_error + 0.03), "no step is shorter than on average"


def test_what_averages_less_than_was_measured_is_recommended_only_as_the_fastest() -> None:
    asked = job("4x4", optimizer=Optimizer.ADAM)
    found = plan(asked)
    assert not found.recommendation.extrapolated
    assert any(one.extrapolated and one.time < found.recommendation.time for one in found.options)
    assert recommend(found.options, replace(asked, fastest=True)).extrapolated
