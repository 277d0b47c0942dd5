"""How far apart late averagings leave workers in a curved direction, against the recursion carried out on matrices."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest

from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import consensus_distance, late_distance
from partreduce.topo.figures.decomposition import sectors_of
from partreduce.topo.figures.evaluate import retimed
from partreduce.topo.figures.late_distance import CURVATURE, HORIZON, late_distance_like, late_distance_of
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Late

SCHEDULES = [
    Schedule("everybody", Cluster.parse("3,2,2"), AllReduce()),
    registry.build("node-then-all", Cluster.parse("3x2"), node_rounds=2),
    registry.build("prague-figure-10", Cluster.parse("4x4")),
    registry.build("ring", Cluster.parse("1x7")),
]


def late(schedule: Schedule, pace: int) -> Schedule:
    return replace(schedule, strategy=replace(schedule.strategy, pace=pace, when=Late()))


def by_definition(schedule: Schedule, pace: int, curvature: float) -> float:
    """x ← Wx + u with u = (c − 1)x + noise, step by step; the mean square of what differs from the mean."""
    count, period = schedule.num_workers, schedule.period
    off, matrices = np.eye(count) - 1 / count, [mixing_matrix(step) for step in schedule.steps()]
    spread, squares = np.zeros((count, count)), []
    periods = 2 ** ceil(log2(HORIZON / (pace * period)))
    for index in range((periods + 1) * period):
        begun, own = spread, spread
        # What a round began with and what it is now have a common covariance; now = c·begun + fresh noise.
        for step in range(1, pace + 1):
            own = (1 - curvature) ** 2 * own + off
            if step < pace:
                squares.append((index // period, np.trace(own)))
        kept, mixing = (1 - curvature) ** pace, matrices[index % period]
        moved = off @ (mixing - np.eye(count)) + kept * off
        spread = moved @ begun @ moved.T + (own - kept**2 * begun)
        squares.append((index // period, np.trace(spread)))
    return float(np.mean([square for index, square in squares if index == periods])) / count


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_the_late_distance_is_that_of_the_recursion(schedule):
    for pace in (1, 5):
        for curvature in (0.0, 0.5):
            expected = by_definition(schedule, pace, curvature)
            assert late_distance_of(sectors_of(schedule), pace, curvature) == pytest.approx(expected, rel=1e-6)
        assert late_distance(late(schedule, pace)) == pytest.approx(by_definition(schedule, pace, CURVATURE), rel=1e-6)
        assert retimed(schedule, "worker").late_distance_at(pace) == late_distance(late(schedule, pace))
    assert late_distance(schedule) == 0, "nothing is late in lockstep"


def test_in_flat_directions_it_is_the_consensus_distance_of_the_late_schedule():
    for schedule in SCHEDULES:
        for pace in (1, 3):
            flat = late_distance_of(sectors_of(schedule), pace, 0.0)
            assert flat == pytest.approx(float(consensus_distance(late(schedule, pace))), rel=1e-4)


def test_perfect_averaging_is_the_worst_case_in_sharp_directions_and_longer_rounds_make_it_worse():
    perfect, half = 1.0, 4 / 3  # consensus distances of the eigenvalues 0 and 1/2, late
    assert late_distance_like(half, 1, 1.0, 0.0) > late_distance_like(perfect, 1, 1.0, 0.0)
    assert late_distance_like(half, 1, 1.0, 0.8) < late_distance_like(perfect, 1, 1.0, 0.8) / 2
    everybody = sectors_of(SCHEDULES[0])
    grown = [late_distance_of(everybody, pace, 0.5) for pace in (1, 2, 5, 10)]
    assert grown == sorted(grown)
    assert grown[-1] > 4 * grown[0]


def test_from_a_curvature_of_one_on_deviations_of_odd_rounds_grow_without_end():
    everybody = sectors_of(SCHEDULES[0])
    assert late_distance_of(everybody, 1, 1.1) > 1e20
    assert late_distance_of(everybody, 2, 1.1) < 1e3


def test_what_mixes_in_all_directions_alike_is_estimated_from_its_consensus_distance():
    everybody = SCHEDULES[0]
    for pace in (1, 4):
        flat = float(consensus_distance(late(everybody, pace)))
        found = late_distance_like(flat, pace, 6 / 7)
        assert found == pytest.approx(late_distance(late(everybody, pace)), rel=1e-6), "All-Reduce does exactly"
    assert late_distance_like(float("inf"), 1, 6 / 7) == float("inf")
    assert late_distance_like(4.0, 1, 6 / 7) > late_distance_like(6 / 7, 1, 6 / 7), "less mixing, farther apart"
