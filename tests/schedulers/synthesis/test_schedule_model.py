"""Schedules found by CP-SAT: status, bound, verdict, limits, and optimality of small ones."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from helpers.plan_properties import all_schedules
from helpers.synthesis import EVEN, problem, synthesize
from partreduce.schedulers.synthesis import Objective, Status
from partreduce.schedulers.synthesis.choices import explicit_groups, rule_blocks
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.front import Exploration
from partreduce.schedulers.synthesis.schedule_model import ScheduleModel
from partreduce.topo import metrics
from partreduce.topo.hardware import Link, Switch
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.verify import prove

HALF = replace(EVEN, node_nic=((1, Link.of_bandwidth(2.5e9)),))
THIN = replace(EVEN, switches=(Switch((0, 1), Link.of_bandwidth(1e9)),))


def decide(choices, num_phases, **more):
    clock = Clock(seconds=600, effort=60.0)
    return ScheduleModel(choices, num_phases).decide(clock=clock, until=clock.limit, seed=0, **more)


def distance(choices, phases):
    return float(metrics.consensus_distance(choices.schedule(phases, (1,))))


@pytest.mark.parametrize(
    ("shape", "largest", "num_phases", "value"), [("1x9", 3, 2, 2 / 9), ("5,3,1", 3, 2, 2 / 9), ("1x8", 2, 3, 4 / 8)]
)
def test_grids_and_cubes_attain_the_bound(shape, largest, num_phases, value):
    choices = explicit_groups(problem(shape, max_group=largest))
    found = decide(choices, num_phases)
    assert found.bound == pytest.approx(value)
    assert num_phases > 2 or distance(choices, found.phases) == pytest.approx(value)


@pytest.mark.parametrize(("shape", "hardware"), [("2,2", EVEN), ("2,2", HALF), ("3,1", EVEN), ("1x4", EVEN)])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_period": 2},
        {"max_period": 3, "max_group": 2},
        {"max_period": 3, "max_communication": 0.08},
        {"max_period": 2, "max_distinct_phases": 1, "max_communication": 0.15},
        {"max_period": 3, "max_gap": 0, "max_group": 3, "max_communication": 0.16},
    ],
)
def test_optimum_matches_exhaustive_search(shape, hardware, limits):
    """Every period of all partitions of four workers is enumerated by code that shares nothing with the search."""
    requested = problem(shape, hardware, **limits)
    every = all_schedules(requested.cluster, AllReduceAlgorithm.RING, requested.limits.max_period)
    kept = np.isfinite(every.consensus_distance)
    kept &= every.communication <= limits.get("max_communication", np.inf) * (1 + 1e-9)
    kept &= every.largest <= limits.get("max_group", 4)
    kept &= every.distinct <= limits.get("max_distinct_phases", 4)
    kept &= every.gap <= limits.get("max_gap", np.inf)
    front = synthesize(requested, effort=1.5)
    if not kept.any():
        assert front.best is None
        assert front.status in {Status.INFEASIBLE, Status.UNKNOWN}
        return
    least = every.consensus_distance[kept].min()
    assert front.status is Status.OPTIMAL
    assert front.best.consensus_distance == pytest.approx(least, abs=1e-9)
    assert front.bound == pytest.approx(least, abs=1e-9)
    assert prove(front.best.schedule).verdict == "proved"


@pytest.mark.parametrize("shape", ["2,2", "1x4"])
def test_the_bound_of_two_rounds_holds_for_every_period(shape):
    for largest in (2, 3):
        requested = problem(shape, max_group=largest)
        every = all_schedules(requested.cluster, AllReduceAlgorithm.RING, 3)
        least = every.consensus_distance[every.largest <= largest].min()
        clock = Clock(seconds=600, effort=20.0)
        bound = Exploration(explicit_groups(requested), clock, 0, str).prove(20.0)
        assert 0 < bound <= least + 1e-9


def test_optimality_and_infeasibility_are_proved():
    front = synthesize(problem("1x9", max_group=3), effort=1.5)
    assert (front.status, front.bound) == (Status.OPTIMAL, pytest.approx(2 / 9))
    assert prove(front.best.schedule).verdict == "proved"
    path = synthesize(problem("1x5", max_group=2, max_period=2), effort=0.5)
    assert (path.status, path.bound) == (Status.OPTIMAL, pytest.approx(4 / 5)), "two rounds of pairs, a path of five"
    never = synthesize(problem("1x4", max_group=2, max_period=1), effort=0.5)
    assert never.status is Status.INFEASIBLE
    assert never.reason.startswith("max_period: 1; no period of at most so many phases of groups of at most 2 workers")
    cheapest = synthesize(problem("2x1", objective=Objective.COMMUNICATION, max_period=2), effort=0.5)
    assert cheapest.status is Status.OPTIMAL
    assert cheapest.best.communication_seconds_per_step == pytest.approx(cheapest.bound)


def test_smallest_feasible_budget_is_found():
    requested = problem("3,2", max_group=3)
    choices = explicit_groups(requested)
    every = all_schedules(requested.cluster, AllReduceAlgorithm.RING, 2)
    kept = np.isfinite(every.consensus_distance) & (every.period == 2) & (every.largest <= 3)
    least = 2 * every.communication[kept].min()
    found = decide(choices, 2, budget=least * 1.001)
    assert sum(map(choices.cost, found.phases)) == pytest.approx(least, rel=2e-3)
    # A budget smaller by a thousandth is infeasible.
    assert decide(choices, 2, budget=least * 0.999) == ((), np.inf)


def test_budget_group_size_and_node_limits_are_kept():
    choices = explicit_groups(problem("3,2", max_group=3, max_gap=0))
    free = decide(choices, 2).phases
    seconds = sum(map(choices.cost, free))
    for phase in free:
        assert max(len(block.local) for block in phase) <= 3
        assert choices.crosses(phase)
    tight = decide(choices, 2, budget=0.9 * seconds).phases
    assert sum(map(choices.cost, tight)) <= 0.9 * seconds * (1 + 1e-3)


def test_forbidden_schedules_are_not_returned_again():
    choices = explicit_groups(problem("2,2", max_group=2))
    clock, model, seen = Clock(seconds=600, effort=60.0), ScheduleModel(choices, 2), set()
    for _ in range(6):
        phases = model.decide(clock=clock, until=60.0, seed=0).phases
        assert phases not in seen
        seen.add(phases)
        model.forbid(phases)


@pytest.mark.parametrize("shape", ["100000x8", "1000000x8"])
def test_rule_models_of_a_million_nodes_do_not_overflow(shape):
    choices = rule_blocks(problem(shape))
    for num_phases in (1, 2, 8):
        assert ScheduleModel(choices, num_phases, agree=False).model.validate() == ""


def test_rules_keep_their_limits():
    choices = rule_blocks(problem("4x4", max_group=4))
    found = decide(choices, 3)
    assert prove(choices.schedule(found.phases, (1,))).verdict == "proved"
    for phase in found.phases:
        ranks = [rank for block in phase for rank in block.local]
        assert len(ranks) == len(set(ranks))


# Before CP-SAT chose groups, no listed phase kept these limits, and the status was "unknown".
@pytest.mark.parametrize(
    ("shape", "hardware", "limits"),
    [
        ("5,3,1", EVEN, {"max_group": 2}),
        ("2x6", replace(EVEN, num_nics=6), {"max_group": 2}),
        ("2x2", THIN, {"max_group": 2, "max_communication": 0.3}),
    ],
)
def test_group_limits_are_met_beyond_the_listed_phases(shape, hardware, limits):
    front = synthesize(problem(shape, hardware, **limits), effort=0.5)
    assert front.best is not None
    assert front.bound <= front.best.consensus_distance + 1e-9
    assert prove(front.best.schedule).verdict == "proved"
    for one in front.candidates:
        phases = [one.schedule.phase(t) for t in range(one.schedule.period)]
        assert max(len(group.members) for phase in phases for group in phase) <= limits["max_group"]


@pytest.mark.parametrize(("shape", "hardware", "limits"), [
    ("3,4,2", HALF, {"max_group": 3, "max_period": 5}),
    ("3,4,2", HALF, {"max_distinct_phases": 2, "max_period": 7}),
    ("3,4,2", HALF, {"max_gap": 1, "max_period": 8}),
    *(("4x2", EVEN, limits) for limits in (
        {"max_distinct_phases": 2}, {"max_gap": 1}, {"max_group": 4}, {"max_period": 5},
    )),
])  # fmt: skip
def test_limits_hold_on_the_whole_front(shape, hardware, limits):
    requested = problem(shape, hardware, **limits)
    limits = requested.limits
    front = synthesize(requested, effort=0.5)
    assert len(front.candidates) > 3
    node_of = requested.cluster.node_of()
    for one in front.candidates:
        schedule = one.schedule
        assert one.consensus_distance == pytest.approx(float(metrics.consensus_distance(schedule)), abs=1e-9)
        assert schedule.period <= limits.max_period
        phases = [[group.members for group in schedule.phase(t)] for t in range(schedule.period)]
        assert limits.max_group is None or max(len(g) for phase in phases for g in phase) <= limits.max_group
        if limits.max_distinct_phases is not None:
            assert schedule.num_distinct_phases() <= limits.max_distinct_phases
        if limits.max_gap is not None:
            crossing = [t for t, phase in enumerate(phases) if any(len(set(node_of[list(g)])) > 1 for g in phase)]
            assert max(b - a for a, b in pairwise([*crossing, crossing[0] + len(phases)])) - 1 <= limits.max_gap


def test_disconnected_phase_pairs_are_cut_until_consensus():
    """Two phases of pairs inside {0, 1} and {2, 3} never reach consensus."""
    choices = explicit_groups(problem("2,2", THIN, max_group=2))
    found = decide(choices, 2)
    joined = {frozenset(pair) for phase in found.phases for block in phase for pair in combinations(block.local, 2)}
    assert any(len(pair & {0, 1}) == 1 for pair in joined)
    assert distance(choices, found.phases) < np.inf
