"""How far apart late averagings leave workers in a curved direction, and metrics at any steps per round."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest

from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.metrics import MetricLimits, consensus_distance, contraction, drift, late_distance
from partreduce.topo.metrics.decomposition import sectors_of
from partreduce.topo.metrics.evaluate import retime
from partreduce.topo.metrics.late_distance import CURVATURE, HORIZON, late_distance_like, late_distance_of
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, GroupPhases, StaticGroups, Synchronous

SCHEDULES = [
    Schedule("everybody", Cluster.parse("3,2,2"), AllReduce()),
    registry.build("node-then-all", Cluster.parse("3x2"), node_rounds=2),
    registry.build("prague-figure-10", Cluster.parse("4x4")),
    registry.build("ring", Cluster.parse("1x7")),
]
UNEVEN = Cluster.parse("3,2,2")
PHASES = tuple(Phase.from_groups(7, groups) for groups in ([(0, 3, 5), (1, 2)], [(0, 1, 6), (3, 4)], []))
RETIMED = [
    registry.build("prague-figure-10", Cluster.parse("4x4")),
    registry.build("node-then-all", Cluster.parse("3x2"), node_rounds=2),
    registry.build("ring", Cluster.parse("1x7")),
    registry.build("exponential", Cluster.parse("2x4")),
    Schedule("everybody", UNEVEN, AllReduce()),
    Schedule("groups", UNEVEN, StaticGroups(phases=GroupPhases(PHASES))),
]


def late(schedule: Schedule, steps_per_round: int) -> Schedule:
    return replace(
        schedule, strategy=replace(schedule.strategy, steps_per_round=steps_per_round, sync=DelayedAveraging())
    )


def by_definition(schedule: Schedule, steps_per_round: int, curvature: float) -> float:
    """x ← Wx + u with u = (c − 1)x + noise, step by step; the mean square of what differs from the mean."""
    count, period = schedule.num_workers, schedule.period
    off, matrices = np.eye(count) - 1 / count, [mixing_matrix(step) for step in schedule.steps()]
    spread, squares = np.zeros((count, count)), []
    periods = 2 ** ceil(log2(HORIZON / (steps_per_round * period)))
    for index in range((periods + 1) * period):
        begun, own = spread, spread
        # What a round began with and what it is now have a common covariance; now = c·begun + fresh noise.
        for step in range(1, steps_per_round + 1):
            own = (1 - curvature) ** 2 * own + off
            if step < steps_per_round:
                squares.append((index // period, np.trace(own)))
        kept, mixing = (1 - curvature) ** steps_per_round, matrices[index % period]
        moved = off @ (mixing - np.eye(count)) + kept * off
        spread = moved @ begun @ moved.T + (own - kept**2 * begun)
        squares.append((index // period, np.trace(spread)))
    return float(np.mean([square for index, square in squares if index == periods])) / count


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_the_late_distance_is_that_of_the_recursion(schedule):
    for steps_per_round in (1, 5):
        for curvature in (0.0, 0.5):
            expected = by_definition(schedule, steps_per_round, curvature)
            assert late_distance_of(sectors_of(schedule), steps_per_round, curvature) == pytest.approx(
                expected, rel=1e-6
            )
        assert late_distance(late(schedule, steps_per_round)) == pytest.approx(
            by_definition(schedule, steps_per_round, CURVATURE), rel=1e-6
        )
        assert retime(schedule, "worker").late_distance_at(steps_per_round) == late_distance(
            late(schedule, steps_per_round)
        )
    assert late_distance(schedule) == 0, "nothing is late in synchronous rounds"


def test_in_flat_directions_it_is_the_consensus_distance_of_the_late_schedule():
    for schedule in SCHEDULES:
        for steps_per_round in (1, 3):
            flat = late_distance_of(sectors_of(schedule), steps_per_round, 0.0)
            assert flat == pytest.approx(float(consensus_distance(late(schedule, steps_per_round))), rel=1e-4)


def test_perfect_averaging_is_the_worst_case_in_sharp_directions_and_longer_rounds_make_it_worse():
    perfect, half = 1.0, 4 / 3  # consensus distances of the eigenvalues 0 and 1/2, late
    assert late_distance_like(half, 1, 1.0, 0.0) > late_distance_like(perfect, 1, 1.0, 0.0)
    assert late_distance_like(half, 1, 1.0, 0.8) < late_distance_like(perfect, 1, 1.0, 0.8) / 2
    everybody = sectors_of(SCHEDULES[0])
    grown = [late_distance_of(everybody, steps_per_round, 0.5) for steps_per_round in (1, 2, 5, 10)]
    assert grown == sorted(grown)
    assert grown[-1] > 4 * grown[0]


def test_from_a_curvature_of_one_on_deviations_of_odd_rounds_grow_without_end():
    everybody = sectors_of(SCHEDULES[0])
    assert late_distance_of(everybody, 1, 1.1) > 1e20
    assert late_distance_of(everybody, 2, 1.1) < 1e3


def test_what_mixes_in_all_directions_alike_is_estimated_from_its_consensus_distance():
    everybody = SCHEDULES[0]
    for steps_per_round in (1, 4):
        flat = float(consensus_distance(late(everybody, steps_per_round)))
        found = late_distance_like(flat, steps_per_round, 6 / 7)
        assert found == pytest.approx(late_distance(late(everybody, steps_per_round)), rel=1e-6), (
            "All-Reduce does exactly"
        )
    assert late_distance_like(float("inf"), 1, 6 / 7) == float("inf")
    assert late_distance_like(4.0, 1, 6 / 7) > late_distance_like(6 / 7, 1, 6 / 7), "less mixing, farther apart"


@pytest.mark.parametrize("push", ["worker", "node"])
@pytest.mark.parametrize("schedule", RETIMED, ids=lambda schedule: schedule.name)
def test_every_steps_per_round_in_synchronous_and_late_is_what_the_steady_state_solves_to(schedule, push):
    known = retime(schedule, push)
    for steps_per_round in (1, 2, 5):
        for sync in (Synchronous(), DelayedAveraging()):
            other = replace(schedule, strategy=replace(schedule.strategy, steps_per_round=steps_per_round, sync=sync))
            late = other.strategy.is_delayed
            assert known.consensus_distance_at(steps_per_round, late=late).value == pytest.approx(
                consensus_distance(other).value, abs=1e-12
            )
            assert known.drift_at(steps_per_round, late=late).value == pytest.approx(
                drift(other, push).value, abs=1e-12
            )
    assert known.contraction == contraction(schedule)


def test_workers_that_never_agree_do_so_at_no_steps_per_round():
    apart = Schedule("apart", Cluster.parse("1x3"), StaticGroups(phases=GroupPhases((Phase.from_groups(3, [(0, 1)]),))))
    known = retime(apart, "worker")
    for steps_per_round, late in ((1, True), (3, False), (3, True)):
        assert (
            known.consensus_distance_at(steps_per_round, late=late).value
            == known.drift_at(steps_per_round, late=late).value
            == float("inf")
        )


def test_what_is_not_found_at_steps_per_round_1_is_not_found_at_others():
    known = retime(RETIMED[-1], "worker", limit=MetricLimits(dense_workers=3))
    assert known.late_distance_at(2) == float("inf")
    for steps_per_round, late in ((1, False), (1, True), (2, False), (3, True)):
        for metric in (
            known.consensus_distance_at(steps_per_round, late=late),
            known.drift_at(steps_per_round, late=late),
        ):
            assert metric.value is None
            assert "explicit schedules have this metric up to 512 workers" in metric.how


@pytest.mark.parametrize("change", [{"steps_per_round": 2}, {"sync": DelayedAveraging()}])
def test_only_a_schedule_at_steps_per_round_1_in_synchronous_says_what_others_do(change):
    schedule = replace(RETIMED[0], strategy=replace(RETIMED[0].strategy, **change))
    with pytest.raises(InputError, match="has steps_per_round 1 and is synchronous"):
        retime(schedule, "worker")
