"""Kinds priced by simulation: considered if step times differ, and kept only if their runs are steady."""

import itertools
import json
import random
from dataclasses import replace
from functools import cache

import pytest

from helpers.jobs import jobs, with_links
from partreduce import Hardware, Link, predict, simulate
from partreduce.errors import UndecidedError
from partreduce.planner.candidates import KINDS
from partreduce.planner.measuring import PAIRS_AT_WORST, measure, payer
from partreduce.planner.plan import plan
from partreduce.planner.recommend import WORTH, allowed_options, decisive_time, recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.planner.trials import Candidate, SteadyCheck, is_steady, trial, try_all
from partreduce.report.kinds import not_weighed
from partreduce.schedulers import registry
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.gaps import run_gaps
from partreduce.schedulers.simulator.replay import Replay
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.strategies import AllReduceAlgorithm, GroupSplit, IterationGap, Server, UpdateOrder
from partreduce.topo.metrics.base import Kind
from partreduce.types import RandomSlowdown, RotatingDelay
from partreduce.verify import prove

JITTERED = with_links(1e9, 25e6, latency=1e-4, model_bytes=2_192_296, compute=0.06, slowdown=((1, 4.0),), jitter=0.8)
job = jobs("2x2", JITTERED, effort=1.5, time_limit=3600.0)
steady_job = jobs(None, None, time_limit=3600.0)


@pytest.fixture(scope="module")
def whole_plan():
    return plan(job())


def kind_of(option):
    return option.facts.kind if option.facts else option.schedule.strategy.kind


def test_simulated_kinds_have_seconds_steps_and_claims(whole_plan):
    pay = payer(Clock(seconds=3600.0, effort=50.0), 50.0)
    tried = [one for word in ("dynamic_groups", "pairwise", "server") for one in KINDS[word].candidates(job(), pay)]
    fewer = [one for one in tried if not one.name.endswith(("groups of 3", "every 16"))]  # the others run the same code
    found, _ = try_all(fewer, job(), pay, in_any_case=False)
    assert {kind_of(option) for option in found} == {"dynamic_groups", "pairwise", "server"}
    for option in found:
        timeline = simulate(
            option.schedule, JITTERED, compute=job().compute_times, num_rounds=80, seed=0, algorithm=option.algorithm
        )
        assert option.step_seconds == timeline.per_step(warm_up=20), "the simulation runs the protocol on shared links"
        assert prove(option.schedule).verdict != "refuted"
        assert json.dumps(option.to_json(), allow_nan=False)
        assert decisive_time(option, job()) >= option.time
        if isinstance(option.schedule.strategy, Server) and option.schedule.strategy.synchronous:
            assert option.steps_ratio == 1.0
        else:
            assert option.steps_ratio > 1.0, "not averaging over all workers in every step costs steps"
    shown = {kind_of(option) for option in whole_plan.options}
    (left_out,) = (text for text in whole_plan.cautions if text.startswith("left out, because a longer run"))
    for word, kind in KINDS.items():
        assert not kind.weighs(job()) or word in shown or f"{word}: " in left_out


def test_uncalibrated_kinds_count_at_a_pessimistic_price(whole_plan):
    pairs = [option for option in whole_plan.options if kind_of(option) == "pairwise"]
    for option in pairs:
        assert decisive_time(option, job()) >= (1 + PAIRS_AT_WORST) * option.step_seconds * (1 - 1e-12) or (
            option.steps_ratio > 1 + PAIRS_AT_WORST
        )


def test_more_kinds_never_cost_more_than_the_regret_margin(whole_plan):
    kinds, times = {kind_of(option) for option in whole_plan.options}, {}
    for size in range(1, len(kinds) + 1):
        for few in map(frozenset, itertools.combinations(kinds, size)):
            options = [option for option in whole_plan.options if kind_of(option) in few]
            if allowed_options(options, job()):
                times[few] = decisive_time(recommend(options, job()), job())
    for few, before in times.items():
        for more in kinds - few:
            assert times[few | {more}] <= before * (1 + WORTH), (few, more)


def test_skipped_kinds_are_listed_with_the_reason():
    def skipped_lines(request):
        return [line for line in not_weighed(request) if line.startswith("groups on request")]

    (line,) = skipped_lines(job("65x1"))
    assert line == "groups on request, pairs and servers are weighed for at most 64 workers, not 65"
    (line,) = skipped_lines(job(hardware=replace(JITTERED, slowdown=(), jitter=0.0)))
    assert line.startswith("groups on request, pairs and servers are not weighed: no worker is slow")
    assert not skipped_lines(job()), "all kinds were considered"
    assert not skipped_lines(job(quorum=True)), "only quorums are allowed"


def test_single_worker_nodes_with_a_slow_one_are_planned():
    """Regression: NODE_THEN_ALL needs two workers per node, and its error ended the plan."""
    alone = with_links(1e9, 1e8, model_bytes=1_000_000, compute=0.05, slowdown=((1, 2.0),))
    planned = plan(steady_job("4x1", alone, effort=0.5))
    assert any(option.name.startswith("generated: ") for option in planned.options)
    assert not any(GroupSplit.NODE_THEN_ALL in option.name for option in planned.options if option.facts)


def test_unequal_steps_are_measured_before_rarer_averaging():
    """Regression: sampling All-Reduce used all of a small effort, and a worker at half speed slowed all others."""
    thin = with_links(1e9, 4e8, model_bytes=2_000_000, compute=0.05, slowdown=((4, 2.0),), jitter=0.1)
    planned = plan(steady_job("2x4", thin, effort=0.5, gap=False, quorum=False))
    assert planned.recommendation.name.startswith("paced"), planned.recommendation.name


def test_small_effort_measures_unequal_steps_with_random_times():
    """Regression: sampled settings were charged ten times their cost, and pairs won at 2.5 times the time."""
    thin = Hardware(
        inside=Link.of_bandwidth(6e8, 1e-5), nic=Link.of_bandwidth(2.3e6, 1e-4), model_bytes=2_000_000, compute=0.05
    )
    slowed = replace(thin, slowdown=((6, 4.0),), jitter=0.3)
    planned = plan(steady_job("3x3", slowed, optimizer=Optimizer.SGD, gap=False, quorum=False, effort=3.0))
    assert planned.recommendation.name.startswith("paced node-then-all"), planned.recommendation.name


# Options priced by simulation must have a steady consensus distance


THIN = with_links(442.9e6, 11.07e6, latency=1e-4, model_bytes=2_730_747, compute=0.03875, jitter=0.1)


def distance_after(schedule, request, num_rounds):
    """Return the consensus distance of an iteration-gap run after `num_rounds`, computed from its reduces."""
    replay = Replay(schedule.strategy.graphs[0], schedule.strategy.sync, seed=request.seed)
    times = request.compute_times
    case = Case(
        schedule, request.hardware, times, num_rounds, request.seed, model_bytes=None, algorithm=AllReduceAlgorithm.RING
    )
    run_gaps(replace(case, listeners=(replay,)))
    return replay.replayed(request.cluster.node_of()).consensus_distance


THRESHOLD = "clustered gap: backup 1, parallel"
"""A setting whose distance is steady or not, depending on the links."""


@cache
def option_at(bandwidth):
    request, kind = threshold_job(bandwidth), KINDS["iteration_gap"]
    candidates = (one for one in kind.candidates(request, lambda _: True) if one.name == THRESHOLD)
    ((option,), _) = try_all(candidates, request, lambda _: True, in_any_case=False)
    return option


def settle(request, options, effort=1e3):
    check = SteadyCheck(request, Clock(seconds=1e4, effort=effort), effort)
    return check.settled(options), check


@pytest.mark.parametrize(("order", "is_late"), [(UpdateOrder.ADAPT_THEN_COMBINE, False), (UpdateOrder.DPSGD, True)])
def test_trial_memory_matches_the_prediction_and_late_distance_needs_delay(order, is_late):
    request = job()
    ring = registry.build("ring", request.cluster)
    schedule = replace(ring, strategy=replace(ring.strategy, sync=IterationGap(update_order=order)))
    run = trial(Candidate("iteration_gap", "ring", "standard", schedule), request, 8)
    assert run.option.facts.memory_bytes == predict(schedule, JITTERED, num_rounds=8).memory_bytes
    assert (run.option.late_distance > 0) == is_late


def test_distances_are_steady_within_10_percent():
    assert is_steady((2.0, 2.1, 2.19))
    assert is_steady((0.0, 0.0, 0.0))
    assert not is_steady((2.0, 2.1, 2.21))
    assert not is_steady((2.21, 2.0, 2.0))
    assert not is_steady((float("inf"),) * 3)
    assert not is_steady((float("nan"), 1.0, 1.0))


@pytest.mark.timeout(900)
def test_isolated_nodes_are_not_recommended():
    """On these links updates of other nodes are always late, so each node trains alone and no worker waits."""
    request = steady_job("4x8", THIN, optimizer=Optimizer.ADAM, effort=10.0)
    planned = plan(request)
    graph = registry.build("clustered", request.cluster)
    gap = IterationGap(max_ig=2, backup=1, update_order=UpdateOrder.DPSGD)
    alone = replace(graph, name="clustered gap: backup 1, parallel", strategy=replace(graph.strategy, sync=gap))
    apart = [distance_after(alone, request, rounds) for rounds in (60, 180, 360)]
    assert apart[2] > 2 * apart[1] * 0.9 > 4 * apart[0] * 0.9, "the distance grows with the run"
    assert alone.name not in {option.name for option in planned.options}
    assert alone.name not in {option.name for option in planned.front}
    assert any(f"{alone.name} (" in text for text in planned.cautions if text.startswith("left out, because a longer"))
    chosen = planned.recommendation
    if not planned.proof.guarantees_consensus:
        assert chosen.gap is not None
        assert is_steady([distance_after(chosen.schedule, request, rounds) for rounds in (60, 180, 360)])
    assert planned.to_json()["recommendation"]["consensus"] == planned.consensus


def threshold_job(bandwidth):
    """Return a job in which a node of two workers sends 2 MB per step of 51.5 ms, which needs 38.8 MB/s."""
    hardware = with_links(1e9, bandwidth, model_bytes=1_000_000, compute=0.05, jitter=0.3)
    return steady_job("4x2", hardware, effort=20.0)


@pytest.mark.parametrize(("bandwidth", "steady"), [(37e6, False), (40e6, True)])
def test_steady_check_separates_links_just_below_and_above_the_need(bandwidth, steady):
    request, option = threshold_job(bandwidth), option_at(bandwidth)
    kept, check = settle(request, [option])
    assert [option.name for option in kept] == [THRESHOLD] * steady
    assert (THRESHOLD in check.left_out) == (not steady)
    apart = [distance_after(option.schedule, request, rounds) for rounds in (60, 120, 240)]
    if steady:
        (option,) = kept
        assert is_steady(apart)
        assert float(option.consensus_distance) == pytest.approx(apart[-1]), "the price is that of the longest run"
    else:
        assert apart[2] > 1.5 * apart[1] > 2.25 * apart[0]
        assert "after 60, 120 and 240 rounds" in check.left_out[THRESHOLD]
        assert THRESHOLD in check.words()[0]


def test_option_without_time_for_a_long_run_is_listed():
    option = option_at(40e6)
    kept, check = settle(threshold_job(40e6), [option], effort=option.longer.work(240) / 2)
    assert not kept
    assert check.left_out[THRESHOLD] == "there was no time for 240 rounds"


def test_selected_option_that_is_not_steady_is_rejected():
    request = replace(threshold_job(37e6), take=THRESHOLD)
    with pytest.raises(UndecidedError, match=rf"--select '{THRESHOLD}': .*after 60, 120 and 240 rounds"):
        settle(request, [option_at(37e6)])


@pytest.mark.parametrize("seed", range(3))
def test_random_jobs_recommend_proved_or_steady_options(seed):
    rng = random.Random(seed)
    disturbance = rng.choice([None, RandomSlowdown(4.0), RotatingDelay(0.0, 0.1)])
    hardware = with_links(
        1e9, rng.choice([5e6, 2e7, 4e7, 1e9]), model_bytes=1_000_000, compute=0.05, jitter=rng.choice([0.1, 0.4]),
        slowdown=((1, 3.0),) if rng.random() < 0.4 else (),
    )  # fmt: skip
    request = steady_job(rng.choice(["2x3", "4x2", "8x1"]), hardware, effort=0.7, disturbance=disturbance)
    planned = plan(request)
    assert all(option.longer is None for option in planned.options), "each simulated option was extended"
    assert planned.proof.guarantees_consensus == (planned.consensus == "guaranteed")
    for option in planned.options:
        if option.gap and option.consensus_distance.kind is Kind.ESTIMATE:
            rounds = int(option.consensus_distance.how.split()[-2])
            assert rounds >= 240
            assert distance_after(option.schedule, request, rounds // 2) == pytest.approx(
                float(option.consensus_distance), rel=0.15
            )


def test_option_that_wins_only_at_the_stated_slowdown_is_excluded():
    fast = with_links(1e9, 1e9, model_bytes=1_000_000, compute=0.05, slowdown=((5, 4.0),))
    request = steady_job("2x4", fast, effort=20.0)
    gaps = KINDS["iteration_gap"].candidates(request, lambda _: True)
    chosen = next(candidate for candidate in gaps if "skip" in candidate.name).option(request)
    plain = measure(registry.build("allreduce", request.cluster), request)
    check = SteadyCheck(request, Clock(seconds=1e4, effort=1e3), 1e3)
    just_behind = replace(plain, steps_ratio=1.05 * decisive_time(chosen, request) / plain.step_seconds)
    text = check.lost(chosen, [chosen, just_behind])
    assert text.startswith(f"{chosen.name} (if they were half as slow, it would take 1.")
    assert text.endswith(f"times as long as {plain.name})")
    assert not check.lost(chosen, [chosen, replace(just_behind, steps_ratio=5 * just_behind.steps_ratio)])
    assert not check.lost(just_behind, [chosen, just_behind]), (
        "a schedule with common rounds is no answer to slow workers"
    )
    for other in (replace(request, gap=True), replace(request, take=chosen.name)):
        assert not SteadyCheck(other, check.clock, 1e3).lost(chosen, [chosen, just_behind]), "the option was requested"
    late = SteadyCheck(request, Clock(seconds=1e4, effort=1e3), 0.0)
    assert "there was no time to run it with less slow workers" in late.lost(chosen, [chosen, just_behind])


@pytest.mark.parametrize(("slow", "wins"), [(2.03, False), (2.1, True)])
def test_unequal_steps_must_also_win_at_half_the_slowdown(slow, wins):
    link, name = Link.of_bandwidth(1e9), "paced allreduce hierarchical"
    hardware = Hardware(inside=link, nic=link, model_bytes=1_000_000, compute=0.05, slowdown=((5, slow),))
    request = {"optimizer": Optimizer.ADAM, "gap": False, "quorum": False, "effort": 0.3, "time_limit": None}
    planned = plan(job("2x4", hardware, **request))
    left_out = f"left out, because it wins only if workers are as slow as said: {name} (if they were half as slow, "
    assert (planned.recommendation.name == name) is wins
    assert any(one.startswith(left_out) for one in planned.cautions) is not wins
