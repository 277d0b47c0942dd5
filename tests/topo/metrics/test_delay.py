"""Delayed averages and gradients, Hop's spectral gap, and the largest momentum of a graph."""

import math
from dataclasses import replace
from fractions import Fraction
from math import ceil, log2

import numpy as np
import pytest

from helpers.refusals import check_error
from helpers.small import of_groups, of_phases
from partreduce import Cluster, Schedule, metrics
from partreduce.errors import InputError
from partreduce.schedulers import registry
from partreduce.strategies import NeighborAveraging, Phase, Pipeline, Round, Synchronous, Transport
from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.graphs.named import ring_based
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.metrics import (
    consensus_distance,
    contraction,
    drift,
    hop_gap,
    late_distance,
    noise_factor,
    stability_limit,
)
from partreduce.topo.metrics.decomposition import sectors_of
from partreduce.topo.metrics.evaluate import retime
from partreduce.topo.metrics.late_distance import CURVATURE, HORIZON, late_distance_like, late_distance_of
from partreduce.topo.metrics.stability import largest_rate
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.strategies import AllReduce, DelayedAveraging
from partreduce.types import MetricLimits

SCHEDULES = [
    Schedule("allreduce", Cluster.parse("3,2,2"), AllReduce()),
    registry.build("node-then-all", Cluster.parse("3x2"), node_rounds=2),
    registry.build("prague-figure-10", Cluster.parse("4x4")),
    registry.build("ring", Cluster.parse("1x7")),
]
UNEVEN = Cluster.parse("3,2,2")
PHASES = tuple(Phase.from_groups(7, groups) for groups in ([(0, 3, 5), (1, 2)], [(0, 1, 6), (3, 4)], []))
RETIMED = [
    registry.build("prague-figure-10", Cluster.parse("4x4")),
    registry.build("node-then-all", Cluster.parse("3x2"), node_rounds=2), registry.build("ring", Cluster.parse("1x7")),
    registry.build("exponential", Cluster.parse("2x4")), Schedule("allreduce", UNEVEN, AllReduce()),
    of_phases("groups", UNEVEN, PHASES),
]  # fmt: skip


def with_delay(schedule, steps_per_round):
    strategy = replace(schedule.strategy, steps_per_round=steps_per_round, sync=DelayedAveraging())
    return replace(schedule, strategy=strategy)


def by_definition(schedule, steps_per_round, curvature):
    """Iterate x ← Wx + u with u = (c − 1)x + noise; return the mean square of the difference to the mean."""
    count, period = schedule.num_workers, schedule.period
    off, matrices = np.eye(count) - 1 / count, [mixing_matrix(step) for step in schedule.steps()]
    spread, squares = np.zeros((count, count)), []
    periods = 2 ** ceil(log2(HORIZON / (steps_per_round * period)))
    for index in range((periods + 1) * period):
        begun, own = spread, spread
        # The start of a round and its current value share a covariance: now = c·begun + fresh noise.
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
def test_late_distance_equals_the_recursion(schedule):
    for steps_per_round in (1, 5):
        for curvature in (0.0, 0.5):
            expected = by_definition(schedule, steps_per_round, curvature)
            found = late_distance_of(sectors_of(schedule), steps_per_round, curvature)
            assert found == pytest.approx(expected, rel=1e-6)
        found = late_distance(with_delay(schedule, steps_per_round))
        assert found == pytest.approx(by_definition(schedule, steps_per_round, CURVATURE), rel=1e-6)
        assert found == retime(schedule, "worker").late_distance_at(steps_per_round)
    assert late_distance(schedule) == 0, "synchronous rounds have no late distance"


def test_late_distance_is_estimated_from_the_consensus_distance():
    allreduce = SCHEDULES[0]
    for steps_per_round in (1, 4):
        flat = float(consensus_distance(with_delay(allreduce, steps_per_round)))
        found = late_distance_like(flat, steps_per_round, 6 / 7)
        assert found == pytest.approx(late_distance(with_delay(allreduce, steps_per_round)), rel=1e-6), "exact"
    assert late_distance_like(float("inf"), 1, 6 / 7) == float("inf")
    assert late_distance_like(4.0, 1, 6 / 7) > late_distance_like(6 / 7, 1, 6 / 7), "less mixing"


@pytest.mark.parametrize("push", ["worker", "node"])
@pytest.mark.parametrize("schedule", RETIMED, ids=lambda schedule: schedule.name)
def test_retimed_metrics_equal_the_steady_state(schedule, push):
    known = retime(schedule, push)
    for steps_per_round in (1, 2, 5):
        for sync in (Synchronous(), DelayedAveraging()):
            other = replace(schedule, strategy=replace(schedule.strategy, steps_per_round=steps_per_round, sync=sync))
            at = {"steps_per_round": steps_per_round, "late": other.strategy.is_delayed}
            distance, drifted = known.consensus_distance_at(**at).value, known.drift_at(**at).value
            assert distance == pytest.approx(consensus_distance(other).value, abs=1e-12)
            assert drifted == pytest.approx(drift(other, push).value, abs=1e-12)
    assert known.contraction == contraction(schedule)


def test_unconnected_workers_never_agree_at_any_steps_per_round():
    apart = of_groups("apart", Cluster.parse("1x3"), [(0, 1)])
    known = retime(apart, "worker")
    for steps_per_round, late in ((1, True), (3, False), (3, True)):
        assert known.consensus_distance_at(steps_per_round, late=late).value == float("inf")
        assert known.drift_at(steps_per_round, late=late).value == float("inf")


def test_missing_metrics_stay_missing_after_retiming():
    known = retime(RETIMED[-1], "worker", limit=MetricLimits(dense_workers=3))
    assert known.late_distance_at(2) == float("inf")
    for steps_per_round, late in ((1, False), (1, True), (2, False), (3, True)):
        for metric_at in (known.consensus_distance_at, known.drift_at):
            metric = metric_at(steps_per_round, late=late)
            assert metric.value is None
            assert "explicit schedules have this metric up to 512 workers" in metric.how


@pytest.mark.parametrize("change", [{"steps_per_round": 2}, {"sync": DelayedAveraging()}])
def test_retime_needs_a_synchronous_schedule_at_steps_per_round_1(change):
    schedule = replace(RETIMED[0], strategy=replace(RETIMED[0].strategy, **change))
    check_error(InputError, "has steps_per_round 1 and is synchronous", retime, schedule, "worker")


# Costs of delayed gradients: limits against eigenvalues, noise factors against Lyapunov equations


WIDTHS = range(1, 9)
MOMENTA = (0.0, 0.3, 0.9)


def recursion(h, width, momentum):
    """Return the matrix of e[t] = (1+μ)e[t−1] − μ·e[t−2] − h·e[t−K]."""
    size = width + 2
    matrix = np.zeros((size, size))
    matrix[0, 0] += 1 + momentum
    matrix[0, 1] -= momentum
    matrix[0, width - 1] -= h
    for i in range(1, size):
        matrix[i, i - 1] = 1.0
    return matrix


def radius(h, width, momentum):
    return float(np.abs(np.linalg.eigvals(recursion(h, width, momentum))).max())


def variance(h, width):
    size = width + 2
    noise = np.zeros((size, size))
    noise[0, 0] = 1.0
    steady = lyapunov.steady_state(recursion(h, width, 0.0), noise, negligible=1e-18)
    assert np.abs(steady.remainder).max() <= 1e-18
    return float(steady.covariance[0, 0])


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("width", WIDTHS)
def test_stability_limit_is_where_the_spectral_radius_reaches_1(width, momentum):
    limit = stability_limit(width, momentum=momentum)
    for part in np.linspace(0.02, 0.999, 40):
        assert radius(part * limit, width, momentum) < 1 - 1e-9
    for part in np.linspace(1.001, 4.0, 40):
        assert radius(part * limit, width, momentum) > 1 + 1e-9, "stability does not return above the limit"
    assert radius(limit, width, momentum) == pytest.approx(1, abs=1e-9)


def test_closed_forms_of_the_stability_limit():
    assert [stability_limit(width) for width in (1, 2)] == pytest.approx([2, 1], abs=1e-15)
    assert stability_limit(3) == pytest.approx((math.sqrt(5) - 1) / 2)
    for momentum in MOMENTA:
        assert stability_limit(1, momentum=momentum) == pytest.approx(2 * (1 + momentum))
        assert stability_limit(2, momentum=momentum) == pytest.approx(1 - momentum)


@pytest.mark.parametrize("width", WIDTHS)
def test_noise_factor_is_the_quotient_of_lyapunov_solutions(width):
    for h in stability_limit(width) * np.linspace(0.05, 0.95, 10):
        assert noise_factor(h, width) == pytest.approx(variance(h, width) / variance(h, 1), rel=1e-9)


@pytest.mark.parametrize("h", [0.0, 0.1, 0.5, 0.9])
def test_noise_factor_of_a_pipeline_of_two_matches_the_paper(h):
    assert noise_factor(h, 2) == pytest.approx((1 + h) * (2 - h) / ((1 - h) * (2 + h)))
    assert noise_factor(h, 1) == pytest.approx(1)


def test_noise_is_infinite_beyond_the_limit():
    assert noise_factor(1.0, 2) == math.inf
    check_error(InputError, "0 <= h < 2, where synchronous steps are stable", noise_factor, 2.0, 2)
    check_error(InputError, "0 <= h < 2", noise_factor, -0.1, 2)
    check_error(InputError, "width 0", stability_limit, 0)
    check_error(InputError, "0 <= momentum < 1", stability_limit, 2, momentum=1.0)


def test_pipeline_metrics_equal_allreduce_plus_two():
    cluster = Cluster.regular(4, 2)
    synchronous = metrics(Schedule("a", cluster, AllReduce()))
    pipeline = Schedule("a", cluster, AllReduce(sync=Pipeline(), transport=Transport(codec="bfloat16")))
    seen = metrics(pipeline)
    for metric in ("contraction", "consensus_distance", "drift"):
        assert getattr(seen, metric) == getattr(synchronous, metric)
    assert seen.consensus_distance.value == seen.drift.worker.value == seen.contraction.value == 0
    assert synchronous.pipeline is None
    assert seen.pipeline.stability_limit.value == pytest.approx(1)
    assert seen.to_json()["pipeline"] == pytest.approx({"stability_limit": 1.0, "noise_factor": noise_factor(0.1, 2)})
    late = metrics(Schedule("a", cluster, AllReduce(sync=DelayedAveraging())))
    assert late.pipeline is None
    assert late.consensus_distance.value == pytest.approx(7 / 8), "delayed parameters, not gradients"


# Hop's spectral gap of a graph, and the largest momentum


STAR = Round.from_edges(5, [(*edge, Fraction(1, 5)) for i in range(1, 5) for edge in ((0, i), (i, 0))])


def test_hop_gap_of_a_ring_ignores_edge_weights():
    for weight in (Fraction(1, 4), Fraction(1, 9)):
        ring = Round.from_edges(7, [(i, (i + d) % 7, weight) for i in range(7) for d in (1, 6)])
        assert hop_gap(ring) == pytest.approx(1 - np.cos(2 * np.pi / 7), abs=1e-14)


def test_hop_gap_of_a_directed_ring_orders_eigenvalues_by_real_part():
    edges = [(0, 1, Fraction(1, 2)), (1, 2, Fraction(1, 4)), (2, 0, Fraction(1, 8))]
    # Its eigenvalues are the cube roots of 1; ordered by real part the second is −1/2, by modulus 1.
    assert hop_gap(Round.from_edges(3, edges)) == pytest.approx(1.5, abs=1e-12)


def test_hop_gap_needs_a_schedule_of_one_graph():
    rng = np.random.default_rng(0)
    phases = tuple(Phase.from_labels(rng.integers(-1, 4, size=9)) for _ in range(3))
    found = metrics(of_phases("s", Cluster.parse("9x1"), phases)).hop_gap
    assert found.value is None
    assert "fixed graph" in found.how
    star = metrics(Schedule("star", Cluster.parse("5x1"), NeighborAveraging(rounds=(STAR,))))
    assert star.hop_gap.value == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("graph", "message"), [
    (Round.from_edges(3, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))]), "worker 2 has no neighbor"),
    (Round.from_edges(5000, [(0, 1, Fraction(1, 2))]), "at most 4000"),
])  # fmt: skip
def test_graph_without_a_hop_gap_is_rejected(graph, message):
    check_error(InputError, message, hop_gap, graph)


def differences_after(matrix, momentum, rate, *, parallel, steps=4000):
    """Return the norm of the worker differences on the loss x²/2 from a random start of norm 1."""
    x = np.random.default_rng(1).standard_normal(len(matrix))
    x -= x.mean()
    x /= np.linalg.norm(x)
    velocity = np.zeros_like(x)
    for _ in range(steps):
        velocity = momentum * velocity + x
        x = matrix @ x - rate * velocity if parallel else matrix @ (x - rate * velocity)
        x -= x.mean()
        if np.linalg.norm(x) > 1e6:
            break
    return np.linalg.norm(x)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("num_workers", [8, 16])
def test_worker_differences_shrink_only_below_the_largest_rate(num_workers, momentum, parallel):
    graph = weigh(ring_based(num_workers))
    limit = largest_rate(graph, momentum, parallel=parallel)
    matrix = mixing_matrix(graph)
    assert differences_after(matrix, momentum, 0.98 * limit, parallel=parallel) < 0.5
    if limit < 2 * (1 + momentum):  # otherwise the mean diverges first
        assert differences_after(matrix, momentum, 1.02 * limit, parallel=parallel) > 2


def test_adapt_then_combine_on_ring_based_allows_little_momentum():
    """The smallest eigenvalue over 16 workers is -0.462: a rate of 0.32 instead of All-Reduce's 3.8."""
    graph = weigh(ring_based(16))
    assert largest_rate(graph, 0.9, parallel=False) == pytest.approx(0.3165, abs=1e-4)
    assert largest_rate(graph, 0.9, parallel=True) == pytest.approx(1.0224, abs=1e-3)
