"""Metrics with any steps_per_round and late, by formula, against the solution of the steady state for these."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.metrics import MetricLimits, consensus_distance, contraction, drift
from partreduce.topo.metrics.evaluate import retimed
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, GroupPhases, StaticGroups, Synchronous

UNEVEN = Cluster.parse("3,2,2")
PHASES = tuple(Phase.from_groups(7, groups) for groups in ([(0, 3, 5), (1, 2)], [(0, 1, 6), (3, 4)], []))
SCHEDULES = [
    registry.build("prague-figure-10", Cluster.parse("4x4")),
    registry.build("node-then-all", Cluster.parse("3x2"), node_rounds=2),
    registry.build("ring", Cluster.parse("1x7")),
    registry.build("exponential", Cluster.parse("2x4")),
    Schedule("everybody", UNEVEN, AllReduce()),
    Schedule("groups", UNEVEN, StaticGroups(phases=GroupPhases(PHASES))),
]


@pytest.mark.parametrize("push", ["worker", "node"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_every_steps_per_round_in_synchronous_and_late_is_what_the_steady_state_solves_to(schedule, push):
    known = retimed(schedule, push)
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
    known = retimed(apart, "worker")
    for steps_per_round, late in ((1, True), (3, False), (3, True)):
        assert (
            known.consensus_distance_at(steps_per_round, late=late).value
            == known.drift_at(steps_per_round, late=late).value
            == float("inf")
        )


def test_what_is_not_found_at_steps_per_round_1_is_not_found_at_others():
    known = retimed(SCHEDULES[-1], "worker", limit=MetricLimits(dense_workers=3))
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
    schedule = replace(SCHEDULES[0], strategy=replace(SCHEDULES[0].strategy, **change))
    with pytest.raises(InputError, match="has steps_per_round 1 and is synchronous"):
        retimed(schedule, "worker")
