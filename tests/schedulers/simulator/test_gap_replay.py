"""Replays of gaps: the metrics of the graph where every update is taken, a small run by hand, and the prices."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from partreduce import Cluster, Hardware
from partreduce.schedulers import registry
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.gaps import run_gaps
from partreduce.schedulers.simulator.replay import Replay
from partreduce.strategies import AllReduceAlgorithm, IterationGap, Round, SkipPolicy, UpdateOrder
from partreduce.topo.metrics import consensus_distance, drift
from partreduce.types import ComputeTimes, RandomSlowdown

RANDOM = ComputeTimes(base=1.0, disturbance=RandomSlowdown(6.0, 0.2))
SLOW = ComputeTimes(base=1.0, slowdown=((5, 4.0),), jitter=0.05)


def replayed(schedule, compute, num_rounds=90):
    gap = schedule.strategy.sync
    assert isinstance(gap, IterationGap)
    replay = Replay(schedule.strategy.graphs[0], gap)
    case = Case(schedule, Hardware(), compute, num_rounds, seed=1, model_bytes=1, algorithm=AllReduceAlgorithm.RING)
    run_gaps(replace(case, listeners=(replay,)))
    return replay.replayed(schedule.cluster.node_of())


def keeping(gap, name="clustered"):
    schedule = registry.build(name, Cluster.parse("2x4"))
    return replace(schedule, strategy=replace(schedule.strategy, sync=gap))


@pytest.mark.parametrize("gap", [IterationGap(max_ig=3), IterationGap(update_order=UpdateOrder.DPSGD)])
def test_where_every_update_is_taken_the_metrics_are_those_of_the_matrix(gap):
    schedule = keeping(gap)
    assert schedule.is_mixing
    found = replayed(schedule, RANDOM, 200)
    assert found.consensus_distance == pytest.approx(float(consensus_distance(schedule)), rel=0.08)
    assert found.drift_worker == pytest.approx(float(drift(schedule, "worker")), rel=0.03)
    assert found.drift_node == pytest.approx(float(drift(schedule, "node")), rel=0.03)
    assert found.progress == pytest.approx(1.0)
    assert found.shares == pytest.approx(np.full(8, 1 / 8))
    assert found.gradients > 6
    assert found.computed == 1.0


def test_what_is_left_out_or_late_has_its_price():
    exact = float(consensus_distance(keeping(IterationGap())))
    backup = replayed(keeping(IterationGap(max_ig=6, backup=1), "ring-based"), RANDOM)
    assert backup.consensus_distance > 1.2 * float(consensus_distance(keeping(IterationGap(), "ring-based")))
    assert backup.progress == pytest.approx(1.0), "only updates of the same step are averaged"
    stale = replayed(keeping(IterationGap(staleness=5)), RANDOM)
    assert stale.consensus_distance > exact, "late updates leave workers further apart"
    skipping = replayed(keeping(IterationGap(max_ig=8, staleness=5, skip=SkipPolicy(limit=8))), SLOW)
    assert skipping.computed < 1
    assert skipping.shares[5] == skipping.shares.min()
    assert skipping.consensus_distance > exact


def test_a_run_by_hand():
    """Two workers; worker 1 misses the update of step 1, so that nothing of it is ever in its parameters."""
    quarter = Fraction(1, 4)
    pair = Round.from_edges(2, [(0, 1, quarter), (1, 0, quarter)])
    replay = Replay(pair, IterationGap(max_ig=2, backup=1))
    for step in range(4):
        for worker in (0, 1):
            replay.sends(worker, step, adds_own=True)
        for worker in (0, 1):
            missed = worker == 1 and step == 1
            replay.averages(worker, step, () if missed else ((1 - worker, step),), adds_own=False)
            replay.enters(worker, step + 1)
    # What each worker's gradients left in worker 0 and 1 when they entered steps 0 to 4.
    left = np.zeros((5, 2, 2))
    for step in range(4):
        sent = left[step] + np.eye(2)
        mixing = np.array([[0.75, 0.25], [0.0, 1.0] if step == 1 else [0.25, 0.75]])
        left[step + 1] = mixing @ sent
    means = left.mean(axis=1)[1:]  # without the warm-up; (4, 2)
    slope = np.polyfit(np.arange(4), means, 1)[0]
    found = replay.replayed(np.array([0, 1], dtype=np.int32))
    assert found.shares * found.progress == pytest.approx(slope)
    assert found.progress == pytest.approx(1.0)
