"""The planner's limits: effort, time, exact limits, random jobs, and the quick answer."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from helpers.jobs import HARDWARE, jobs, with_links
from helpers.plan_properties import all_schedules, run
from helpers.random_jobs import draw_job
from helpers.refusals import check_error
from helpers.synthesis import synthesize
from partreduce import Cluster, Data, Limits, Objective, Schedule, describe
from partreduce.__main__ import main
from partreduce.errors import InfeasibleError, InputError, UndecidedError
from partreduce.planner.job import EFFORTS
from partreduce.planner.measuring import measure
from partreduce.planner.plan import plan
from partreduce.planner.recommend import allowed_options
from partreduce.planner.steps_model import Optimizer
from partreduce.report.reasons import add_reasons
from partreduce.schedulers.synthesis import Problem, Status, clock
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.strategies import AllReduceAlgorithm, GroupPhases, Phase, StaticGroups
from partreduce.topo import metrics
from partreduce.topo.timing.quorum import sample_seconds
from partreduce.topo.units import parse_number
from partreduce.types import Delay, RandomDelay, RotatingDelay

job = jobs(None, HARDWARE)


MANY = os.environ.get("PARTREDUCE_RANDOM_JOBS")
"""`PARTREDUCE_RANDOM_JOBS=2000 pytest tests/partreduce/planner/test_limits.py -k random_jobs` plans so many jobs."""


@pytest.mark.parametrize("number", range(int(MANY)) if MANY else range(0, 200, 10))
def test_random_jobs_get_correct_answers(number):
    """Tiny jobs are compared with all schedules; a few of many are planned twice, or compared with all settings."""
    is_tiny, seed = number % (10 if MANY else 40) == 0, 77
    job, more = draw_job(seed, number, tiny=is_tiny), {"again": number % 50 == 1, "settings": number % 40 == 2}
    assert not run(job, exhaust=is_tiny, overrun=20.0, **more).wrong


def test_equal_effort_gives_an_identical_answer_on_a_slow_machine(monkeypatch):
    """Neither load nor the hash seed of the process changes the output."""
    arguments = [
        "design", "3,2", "--model-bytes", "552MB", "--set", "slow=1:2x", "--data", "per-worker", "--effort", "0.3",
    ]  # fmt: skip
    loaded = subprocess.run(
        [sys.executable, "-m", "partreduce", *arguments, "--time-limit", "600s", "--json"],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    slowed = replace(HARDWARE, slowdown=((1, 2.0),))
    looks = iter(range(10**9))
    monkeypatch.setattr(clock, "monotonic", lambda: next(looks) / 2)  # a reading takes half a second
    options = {"data": Data.PER_WORKER, "optimizer": Optimizer.ADAM}
    request = job("3,2", hardware=slowed, effort=0.3, time_limit=600.0, **options)
    quiet = add_reasons(plan(request), request)
    assert next(looks) > 20
    document = json.loads(loaded.stdout)
    assert document["answer"]["capped"] is False
    links = {"--set nic": "5GB/s", "--set inside": "10GB/s"}
    assert document.pop("assumed") == links | {"--set compute": "50ms", "--optimizer": "adam"}
    assert json.dumps(document) == json.dumps(quiet.to_json())


@pytest.mark.parametrize("effort", [None, 1e6])
def test_little_starts_after_the_time_limit(monkeypatch, effort):
    """Each reading of the clock takes a second, so the time is over after ten."""
    looks = iter(range(10**9))
    monkeypatch.setattr(clock, "monotonic", lambda: float(next(looks)))
    request = job("5,3,2", effort=effort, time_limit=10.0, data=Data.PER_NODE)
    answer = add_reasons(plan(request), request)
    assert answer.answer.capped
    assert "its time limit of 10 s" in answer.answer.ended
    assert len(answer.options) < 12
    assert any(option.schedule.strategy.averages_gradients for option in answer.options)
    (text,) = (caution for caution in answer.cautions if caution.startswith("planning ended because its time limit"))
    assert text.endswith(", and another run may differ; raise --time-limit")
    assert next(looks) < 200


@pytest.mark.parametrize(("shape", "largest", "least"), [("3,2", 2, 0.75), ("2x2", 4, 0.0)])
def test_search_uses_its_time_unless_all_is_decided(monkeypatch, shape, largest, least):
    """Each reading takes 20 ms; only the reserve for metrics and the proof stays unused."""
    looks = iter(range(10**9))
    monkeypatch.setattr(clock, "monotonic", lambda: next(looks) / 50)
    cluster = replace(Cluster.parse(shape), hardware=HARDWARE)
    front = synthesize(Problem(cluster=cluster, limits=Limits(max_group=largest)), time_limit=1.0)
    assert least <= next(looks) / 50 <= 1.5
    assert front.best is not None


def test_clock_reports_its_stop_reason():
    counted = Clock(seconds=1e6, effort=2.0)
    assert not counted.passed(1.0)
    counted.charge(1.5)
    assert counted.passed(1.0)
    assert not counted.passed(2.0)
    assert not counted.fits(0.6, 2.0)
    assert not counted.capped
    assert counted.stopped_by() == "its effort of 2 was used up"
    capped = Clock(seconds=1e-9, effort=2.0)
    assert capped.passed(1.0)
    assert capped.capped
    assert capped.stopped_by() == "its time limit of 1e-09 s cut its effort of 2 short"
    stopped = Clock(seconds=1e6, effort=2.0)
    stopped.interrupt()
    assert stopped.passed(1.0)
    assert not stopped.fits(0.1, 2.0)
    assert stopped.capped
    assert stopped.stopped_by() == "it was interrupted"


def test_each_answer_status_has_its_exit_code(capsys):
    base = ["design", "4x4", "--model-bytes", "552MB", "--algorithm", "ring", "--effort", "0.2", "--json"]
    request = {
        "feasible": (0, []),
        "optimal": (0, ["--objective", "consensus-distance", "--max", "communication=207ms"]),
        "infeasible": (4, ["--max", "communication=1us"]),
        "unknown": (3, ["--max", "communication=110.4ms", "--max", "consensus-distance=3/10"]),
    }
    for status, (code, options) in request.items():
        assert main([*base, *options]) == code, status
        captured = capsys.readouterr()
        answer = json.loads(captured.out)["answer"]
        assert answer["status"] == status
        assert answer["because"]
        assert captured.err.count("\n") == (code != 0)


def test_optimal_needs_a_known_bound():
    distance_job = job("2x2", effort=0.1, objective=Objective.CONSENSUS_DISTANCE)
    proved = plan(distance_job)
    assert proved.answer.status is Status.OPTIMAL
    assert proved.answer.because == "its consensus distance is 0, and none is below"
    for request in (job("2x2", effort=0.1), replace(distance_job, limits=Limits(max_communication=0.1))):
        found = plan(request).answer
        assert found.status is Status.FEASIBLE
        assert found.because == f"no bound is known for the objective {request.objective}"


def test_infeasible_includes_a_proof_and_undecided_the_stop_reason():
    check_error(InfeasibleError, "crossing bound", plan, job("4x4", effort=0.2, max_communication=1e-6))
    with pytest.raises(UndecidedError, match=r"not proved impossible: the search ended because its effort of 0\.2"):
        plan(
            job("4x4", algorithm=AllReduceAlgorithm.RING, effort=0.2, max_communication=0.1104,
                max_consensus_distance=Fraction(3, 10)),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"), [("8/7", Fraction(8, 7)), ("0/3", Fraction(0)), ("0.5", 0.5), ("1e-3", 1e-3)]
)
def test_limits_parse_as_fractions_or_decimals(text, value):
    assert parse_number(text) == value
    assert type(parse_number(text)) is type(value)


@pytest.mark.parametrize("text", ["1/0", "-1", "a/b", "1/2/3", "0.5/2", "inf", "1 ms"])
def test_invalid_limits_are_rejected(text):
    with pytest.raises(InputError):
        parse_number(text)


def test_fraction_limits_are_exact():
    exact = Limits(max_consensus_distance=Fraction(8, 7))
    near = float(Fraction(8, 7))
    for value in (near, math.nextafter(near, 2), math.nextafter(near, 1)):
        assert exact.allow_consensus_distance(value, lambda: Fraction(8, 7))
        assert not exact.allow_consensus_distance(value, lambda: Fraction(8, 7) + Fraction(1, 10**15))
    assert Limits(max_consensus_distance=Fraction(0)).allow_consensus_distance(1e-33)
    assert not Limits(max_consensus_distance=0.5).allow_consensus_distance(0.500001)
    assert Limits(max_communication=0.0).allow_communication(0.0)
    assert Limits(max_communication=0.1104).allow_communication(0.1104 * (1 + 1e-12))


@pytest.mark.parametrize("limit", [0.0, Fraction(0), Fraction(8, 7)])
def test_options_on_the_edge_of_a_limit_are_kept(limit):
    answer = plan(job("4x4", effort=0.6, max_consensus_distance=limit, objective=Objective.COMMUNICATION))
    assert float(answer.recommendation.consensus_distance) <= limit + 1e-12
    figure_10 = next(option for option in answer.options if option.name == "prague-figure-10")
    assert metrics.exact_consensus_distance(figure_10.schedule) == Fraction(8, 7)
    if limit:
        assert answer.recommendation.communication <= figure_10.communication


@pytest.mark.parametrize("effort", [0.0, -1.0, math.inf, math.nan])
def test_effort_must_be_positive_and_finite(effort):
    check_error(InputError, "effort", job, "2x2", effort=effort)


def test_undecided_error_names_an_option_of_the_requested_sync():
    """Regression: the error named synchronous All-Reduce, which was not allowed."""
    request = {"effort": 0.1, "time_limit": 3600.0}
    with pytest.raises(UndecidedError, match=r"the least found is 0\.75 .* \(allreduce late"):
        plan(job("2x2", sync=Delay.LATE, max_consensus_distance=0.01, **request))
    with pytest.raises(UndecidedError, match=r"a pipeline sums .* all 4 workers .*; leave out --max group, or --sync"):
        plan(job("2x2", sync=Delay.PIPELINE, max_group=2, **request))
    with pytest.raises(UndecidedError, match="found; raise --max period or --max group or --max phases"):
        plan(job("4x1", max_group=2, max_distinct_phases=1, **request))
    with pytest.raises(InfeasibleError, match=r"expected at least .*\(proved: crossing bound of 24 rounds: "):
        plan(job("1x4", max_communication=1e-6, **request))


def test_selected_schedule_may_exceed_the_limits():
    request = job("2x2", max_communication=1e-6, effort=0.1, time_limit=3600.0)
    with pytest.raises(InfeasibleError):
        plan(request)
    assert plan(replace(request, take="allreduce")).recommendation.name == "allreduce"


def test_clusters_too_large_for_dense_matrices_use_the_catalogue():
    hardware = replace(HARDWARE, slowdown=((3, 2.0),))
    request = job("300x2", hardware=hardware, effort=0.3)
    answer = add_reasons(plan(request), request)
    assert answer.recommendation.status == "catalogue"
    not_weighed = (
        "weighted graphs, unequal steps per round, neighbors that keep a gap and quorums are weighed for at most 256"
    )
    assert f"{not_weighed} workers, not 600; --sync partial weighs quorums" in answer.cautions
    front = synthesize(Problem(cluster=replace(Cluster.parse("300x2"), hardware=hardware)), effort=0.3)
    assert (front.status, front.candidates) == (Status.UNKNOWN, ())


def test_exhaustive_search_finds_the_golden_consensus_distances():
    """The reference enumeration agrees with the metrics of `topo`."""
    cluster = replace(Cluster.parse("4x1"), hardware=HARDWARE)
    every = all_schedules(cluster, AllReduceAlgorithm.RING, 2)
    assert len(every.period) == 15 + 15**2
    phases = GroupPhases((Phase.from_groups(4, [(0, 1), (2, 3)]), Phase.from_groups(4, [(1, 2), (0, 3)])))
    schedule = Schedule("pairs", cluster, StaticGroups(phases=phases))
    assert np.isclose(every.consensus_distance, float(metrics.consensus_distance(schedule))).any()
    assert np.isclose(every.consensus_distance, 0.0).any()
    assert np.isinf(every.consensus_distance[every.largest == 0]).all()


# The quick answer without a search, and its comparison with a thorough one


QUICK_HARDWARE = with_links(1e10, 25e6, model_bytes=500_000_000, compute=0.05)
quick_job = jobs(None, QUICK_HARDWARE)


def test_default_effort_is_quick_and_reproducible():
    found = plan(quick_job("4x4"))
    assert found.answer.effort == EFFORTS["quick"]
    assert found.answer.time_limit == MANY_SECONDS
    assert not found.answer.capped
    assert found.search_status == "unknown"
    assert {option.status for option in found.options} == {"catalogue"}
    assert found.recommendation.name == "node-then-all(node_rounds=19) every 2 hierarchical"
    assert plan(quick_job("4x4", effort=EFFORTS["quick"])).to_json() == found.to_json()


def test_unequal_steps_are_considered_at_multiples():
    request = quick_job("3x1", hardware=replace(QUICK_HARDWARE, slowdown=((2, 2.0),)), gap=False, quorum=False)
    options = {option.name: option for option in plan(request).options}
    for factor in (1, 2, 3):
        every = f"(every={2 * factor})" if factor > 1 else ""
        option = options[f"paced allreduce{every}"]
        assert option.steps_per_round == (2 * factor, 2 * factor, factor)
        waiting = option.step_seconds - option.communication
        assert waiting == pytest.approx(QUICK_HARDWARE.compute), "no worker waits"


def test_limits_start_a_short_search_or_an_infeasibility_proof(monkeypatch):
    monkeypatch.setitem(EFFORTS, "quick", 0.5)
    assert not quick_job("2x2").searches
    assert not quick_job("2x2").is_limited
    limited = quick_job("2x2", limits=Limits(max_group=2))
    assert limited.is_limited
    assert any(option.status == "feasible" for option in plan(limited).options)
    check_error(InfeasibleError, "crossing bound", plan, quick_job("2x2", limits=Limits(max_communication=1e-6)))


def test_thorough_answer_reports_its_gain_over_quick(monkeypatch):
    monkeypatch.setitem(EFFORTS, "thorough", 0.5)
    for limits in (Limits(), Limits(max_group=2)):
        quick, found = (plan(quick_job("2x4", limits=limits, effort=effort)) for effort in (None, 0.5))
        (text,) = (one for one in found.reasons if one.startswith("the quick answer"))
        if quick.recommendation.name == found.recommendation.name:
            assert text == "the quick answer is the same: searching found nothing better"
        else:
            ratio = quick.recommendation.time / found.recommendation.time
            words = describe(quick.recommendation.schedule)
            assert text == f"the quick answer is predicted to take {ratio:.3g} times as long: {words}"
        assert text == found.over_quick
        assert not quick.over_quick


@pytest.mark.parametrize("disturbance", [None, RandomDelay(1, 0.2), RotatingDelay(0.0, 0.1)], ids=str)
def test_random_step_times_are_sampled_for_the_best_options(disturbance):
    request = quick_job("2x2", disturbance=disturbance)
    request = replace(
        request, cluster=replace(request.cluster, hardware=replace(QUICK_HARDWARE, jitter=0.2)), gap=False
    )
    even = request.at_mean_speeds
    assert even.compute_times.is_fixed
    drawn = sample_seconds(request.compute_times, 4, seed=1)
    assert even.compute_times.base == pytest.approx(drawn.mean(), rel=0.1)
    found = plan(replace(request, quorum=False))
    assert found.recommendation.step_error > 0, "sampled step times have an error"
    for option in (one for one in found.options if one.facts is None):
        once = measure(option.schedule, even, algorithm=option.algorithm).step_seconds
        assert once <= option.step_seconds * (1 + 5 * option.step_error + 0.03), "random step times only lengthen steps"


def test_extrapolated_option_is_not_recommended():
    request = quick_job("4x4", optimizer=Optimizer.ADAM)
    found = plan(request)
    assert not found.recommendation.extrapolated
    assert min(allowed_options(found.options, request), key=lambda one: one.time).extrapolated
