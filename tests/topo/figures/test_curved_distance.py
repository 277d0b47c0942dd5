"""How far apart averagings leave workers in a curved direction, against the recursion carried out on matrices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from math import ceil, log2

import numpy as np
import pytest

from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import consensus_distance, curved_distance, late_distance
from partreduce.topo.figures.curved_distance import CURVATURE, HORIZON, distance_like, distances_of
from partreduce.topo.figures.decomposition import sectors_of
from partreduce.topo.figures.evaluate import retimed
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Late, Lockstep, Static

SCHEDULES = [
    Schedule("everybody", Cluster.parse("3,2,2"), AllReduce()),
    registry.build("node-then-all", Cluster.parse("3x2"), node_rounds=2),
    registry.build("prague-figure-10", Cluster.parse("4x4")),
    registry.build("ring", Cluster.parse("1x7")),
]


def timed(schedule: Schedule, pace: int, *, late: bool) -> Schedule:
    when = Late() if late else Lockstep()
    return replace(schedule, strategy=replace(schedule.strategy, pace=pace, when=when))


def distance_of(sectors, pace, **how) -> float:
    return float(distances_of(sectors, [pace], **how)[0])


def distance(schedule: Schedule) -> float:
    return curved_distance(schedule) + late_distance(schedule)


def by_definition(schedule: Schedule, paces: list[int], curvature: float, *, late: bool) -> float:
    """x ← Wx + u with u = (c − 1)x + noise, or W(x + u), step by step; the mean square of what differs from the mean.

    A worker's steps lie as evenly in a round as they can, and deviations die as at the mean pace.
    """
    count, period, pace, instants = schedule.num_workers, schedule.period, float(np.mean(paces)), max(paces)
    off, matrices = np.eye(count) - 1 / count, [mixing_matrix(step) for step in schedule.steps()]
    kept, spread, squares = (1 - curvature) ** pace, np.zeros((count, count)), []
    fresh = sum((1 - curvature) ** (2 * step) for step in range(instants)) if len(set(paces)) == 1 else None
    if fresh is None:
        fresh = (1 - (1 - curvature) ** (2 * pace)) / (1 - (1 - curvature) ** 2)
    noise = fresh * off @ np.diag(np.array(paces) / pace) @ off
    periods = 2 ** ceil(log2(HORIZON / (pace * period)))
    for index in range((periods + 1) * period):
        begun, own, now = spread, spread, matrices[index % period]
        for step in range(1, instants):
            if len(set(paces)) == 1:
                own = (1 - curvature) ** 2 * own + off
            else:
                made = step * pace / instants
                left = (1 - curvature) ** (2 * made)
                own = left * begun + (1 - left) / (1 - (1 - curvature) ** 2) * off
            squares.append((index // period, np.trace(own)))
        if late:
            moved = off @ (now - np.eye(count)) + kept * off
            spread = moved @ begun @ moved.T + noise
        else:
            moved = off @ now @ off
            spread = moved @ (kept**2 * begun + noise) @ moved.T
        squares.append((index // period, np.trace(spread)))
    return float(np.mean([square for index, square in squares if index == periods])) / count


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_the_distance_at_a_curvature_is_that_of_the_recursion(schedule, late):
    for pace in (1, 5):
        paces = [pace] * schedule.num_workers
        for curvature in (0.0, 0.5):
            expected = by_definition(schedule, paces, curvature, late=late)
            found = distance_of(sectors_of(schedule), pace, late=late, curvature=curvature)
            assert found == pytest.approx(expected, rel=1e-6)
        expected = by_definition(schedule, paces, CURVATURE, late=late)
        assert distance(timed(schedule, pace, late=late)) == pytest.approx(expected, rel=1e-6)
        assert retimed(schedule, "worker").curved_distance_at(pace, late=late) == pytest.approx(expected, rel=1e-6)


def test_one_of_the_two_is_there():
    for schedule in SCHEDULES:
        assert late_distance(schedule) == 0 < curved_distance(timed(schedule, 2, late=False))
        late = timed(schedule, 2, late=True)
        assert curved_distance(late) == 0 < late_distance(late)


@pytest.mark.parametrize("late", [False, True])
def test_where_paces_differ_deviations_die_as_at_their_mean(late):
    schedule = SCHEDULES[1]
    paces = [1, 4, 4, 4, 4, 4]
    paced = timed(schedule, 1, late=late)
    paced = replace(paced, strategy=replace(paced.strategy, pace=tuple(paces)))
    assert distance(paced) == pytest.approx(by_definition(schedule, paces, CURVATURE, late=late), rel=1e-6)


def test_in_flat_directions_it_is_the_consensus_distance():
    for schedule in SCHEDULES:
        for pace, late in product((1, 3), (False, True)):
            flat = distance_of(sectors_of(schedule), pace, late=late, curvature=0.0)
            expected = float(consensus_distance(timed(schedule, pace, late=late)))
            assert flat == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_in_lockstep_a_curve_brings_workers_together_the_more_the_longer_a_round_is():
    everybody = sectors_of(SCHEDULES[0])
    for pace in (2, 8, 32):
        flat, curved = (distance_of(everybody, pace, late=False, curvature=h) for h in (0.0, CURVATURE))
        assert curved <= flat
    far = [distance_of(everybody, pace, late=False) / ((pace - 1) / 2) for pace in (2, 8, 32)]
    assert far == sorted(far, reverse=True)
    assert far[2] < far[0] / 3


def test_perfect_averaging_is_the_worst_case_when_late_in_sharp_directions_and_longer_rounds_make_it_worse():
    perfect, half = 1.0, 4 / 3  # consensus distances of the eigenvalues 0 and 1/2, late
    like = partial(distance_like, pace=1, share=1.0, late=True)
    assert like(half, curvature=0.0) > like(perfect, curvature=0.0)
    assert like(half, curvature=0.8) < like(perfect, curvature=0.8) / 2
    everybody = sectors_of(SCHEDULES[0])
    grown = [distance_of(everybody, pace, late=True, curvature=0.5) for pace in (1, 2, 5, 10)]
    assert grown == sorted(grown)
    assert grown[-1] > 4 * grown[0]


def test_from_a_curvature_of_one_on_late_deviations_of_odd_rounds_grow_without_end():
    everybody = sectors_of(SCHEDULES[0])
    assert distance_of(everybody, 1, late=True, curvature=1.1) > 1e20
    assert distance_of(everybody, 2, late=True, curvature=1.1) < 1e3


@pytest.mark.parametrize("late", [False, True])
def test_what_mixes_in_all_directions_alike_is_estimated_from_its_consensus_distance(late):
    everybody = SCHEDULES[0]
    for pace in (2, 4):
        flat = float(consensus_distance(timed(everybody, pace, late=late)))
        found = distance_like(flat, pace, 6 / 7, late=late)
        assert found == pytest.approx(distance(timed(everybody, pace, late=late)), rel=1e-6), "All-Reduce does exactly"
    assert distance_like(float("inf"), 1, 6 / 7, late=late) == float("inf")
    assert distance_like(4.0, 1, 6 / 7, late=late) > distance_like(6 / 7, 1, 6 / 7, late=late), "less mixing, farther"


def test_workers_that_never_agree_are_apart_without_end_whatever_the_curvature():
    apart = Schedule("apart", Cluster.parse("1x3"), Static(phases=GroupPhases((Phase.from_groups(3, [(0, 1)]),))))
    assert curved_distance(apart) == float("inf")
    assert retimed(apart, "worker").curved_distance_at(3, late=True) == float("inf")
