"""Schedules of many workers: sparse factors and Fourier transforms against dense matrices, where both run."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from helpers.figures_by_definition import spectrum_of
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.graphs.named import double_ring, random_regular
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.metrics import (
    Kind,
    MetricLimits,
    contraction,
    drift,
    metrics,
)
from partreduce.topo.metrics.decomposition import circulant_sectors, dense_sectors
from partreduce.topo.metrics.sectors import contraction_of, contraction_per_start
from partreduce.topo.metrics.steady_state import consensus_distance_of, drift_of
from partreduce.topo.mixing import period_product
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import DelayedAveraging, GroupPhases, NeighborAveraging, Round, StaticGroups

LARGE = MetricLimits(dense_workers=1)


def random_groups(
    n: int, period: int, size: int, seed: int, *, relaxation: bool = False, skips: bool = True, **options: object
) -> Schedule:
    rng = np.random.default_rng(seed)
    phases = []
    for _ in range(period):
        labels = rng.permutation(n) // size
        if skips:
            labels[rng.random(n) < 0.1] = -1
        factors = {int(k): Fraction(int(rng.integers(1, 6)), 4) for k in np.unique(labels)} if relaxation else None
        phases.append(Phase.from_labels(labels, factors))
    return Schedule("r", Cluster.regular(n // 4, 4), StaticGroups(phases=GroupPhases(tuple(phases)), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("relaxation", [False, True])
@pytest.mark.parametrize(("n", "period", "size"), [(40, 1, 40), (40, 2, 5), (120, 4, 3), (200, 8, 4), (200, 3, 2)])
def test_the_contraction_of_sparse_factors_is_that_of_the_dense_product(n, period, size, relaxation):
    for seed in range(3):
        schedule = random_groups(n, period, size, seed, relaxation=relaxation)
        for start in range(period):
            found = contraction(schedule, start=start, limit=LARGE)
            exact = contraction_of(dense_sectors(schedule), start)
            assert found.kind is Kind.ESTIMATE
            assert found.value == pytest.approx(exact, rel=1e-6, abs=1e-12)
            assert found.value <= exact + 1e-9


def test_the_contraction_of_a_slow_ring_has_its_closed_form():
    """Two rounds of pairs around a ring; the norm of their product off the mean is cos(2π/n)."""
    n = 2000
    pairs = [Phase.from_groups(n, [(i, (i + 1) % n) for i in range(s, n, 2)]) for s in (0, 1)]
    schedule = Schedule("slow ring", Cluster.regular(n, 1), StaticGroups(phases=GroupPhases(tuple(pairs))))
    assert contraction(schedule).value == pytest.approx(math.cos(2 * math.pi / n), abs=1e-9)


def test_exact_consensus_of_many_workers_has_contraction_0():
    n = 602
    ring = [Phase.from_groups(n, [(i, (i + 1) % n) for i in range(s, n, 2)]) for s in (0, 1)]
    phases = (*ring, Phase.from_groups(n, [range(n)]))
    found = contraction(Schedule("all", Cluster.regular(n, 1), StaticGroups(phases=GroupPhases(phases))))
    assert found.value == 0.0


def test_metrics_that_need_a_direct_method_are_refused_by_name_above_512_workers():
    found = metrics(random_groups(516, 4, 4, 3, skips=False))
    assert 0 < found.contraction.value < 1
    for metric in (found.radius, found.consensus_distance, found.drift.worker, found.drift.node):
        assert metric.value is None
        assert metric.how == (
            "not found: explicit schedules have this metric up to 512 workers; write the schedule as a rule"
        )
    assert found.to_json()["consensus_distance"] is None
    assert found.contraction_per_start == ()


def test_separate_parts_have_contraction_1():
    labels = np.arange(40) % 2
    schedule = Schedule(
        "apart", Cluster.parse("10x4"), StaticGroups(phases=GroupPhases((Phase.from_labels(labels),) * 2))
    )
    assert contraction(schedule, limit=LARGE).value == pytest.approx(1.0, abs=1e-12)


def test_another_push_than_worker_or_node_is_refused():
    with pytest.raises(InputError, match="worker or node"):
        drift(random_groups(40, 2, 4, 0), "wrokers")  # type: ignore[arg-type]


def shifts(n: int, rounds: list[dict[int, Fraction]], *, xor: bool = False, **options: object) -> Schedule:
    listed = tuple(
        Round.from_edges(n, [(i, i ^ d if xor else (i + d) % n, w) for i in range(n) for d, w in offsets.items()])
        for offsets in rounds
    )
    return Schedule("c", Cluster.parse(f"{n // 4}x4"), NeighborAveraging(rounds=listed, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("xor", [False, True])
@pytest.mark.parametrize("options", [{}, {"steps_per_round": 3}, {"sync": DelayedAveraging(), "steps_per_round": 2}])
@pytest.mark.parametrize("n", [8, 16])
def test_fourier_path_equals_dense(n: int, options: dict[str, object], xor: bool) -> None:
    rng = np.random.default_rng(n)
    rounds = [{int(d): Fraction(1, 5) for d in rng.choice(np.arange(1, n), size=3, replace=False)} for _ in range(3)]
    schedule = shifts(n, rounds, xor=xor, **options)
    fast, dense = circulant_sectors(schedule), dense_sectors(schedule)
    assert fast is not None
    assert ("Walsh" in fast.how) == xor
    assert contraction_per_start(fast) == pytest.approx(contraction_per_start(dense), abs=1e-12)
    assert fast.radius == pytest.approx(dense.radius, abs=1e-9)
    assert consensus_distance_of(fast) == pytest.approx(consensus_distance_of(dense), rel=1e-9)
    for push in ("worker", "node"):
        assert drift_of(fast, push) == pytest.approx(drift_of(dense, push), rel=1e-9)


def test_fourier_path_on_irregular_nodes_and_large_rings() -> None:
    third = Fraction(1, 3)
    ring = Round.from_edges(9, [(i, j % 9, third) for i in range(9) for j in (i - 1, i + 1)])
    schedule = Schedule("ring", Cluster.parse("2,3,4"), NeighborAveraging(rounds=(ring,)))
    fast = circulant_sectors(schedule)
    assert fast is not None
    assert drift_of(fast, "node") == pytest.approx(drift_of(dense_sectors(schedule), "node"), rel=1e-9)
    n = 20_000
    offsets = np.arange(n, dtype=np.int32)
    targets = np.repeat(offsets, 2)
    sources = np.stack([(offsets - 1) % n, (offsets + 1) % n], axis=1)
    sources.sort(axis=1)
    big = Round(n, sources.reshape(-1).astype(np.int32), targets, (third,), np.zeros(2 * n, dtype=np.int32))
    found = metrics(Schedule("ring", Cluster.regular(n, 1), NeighborAveraging(rounds=(big,))))
    assert found.contraction.value == pytest.approx((1 + 2 * math.cos(2 * math.pi / n)) / 3, abs=1e-12)
    assert found.hop_gap.value == pytest.approx(1 - math.cos(2 * math.pi / n), abs=1e-12)
    assert "Fourier" in found.contraction.how


@pytest.mark.parametrize(("a", "b"), [(2, 6), (3, 4), (4, 2), (5, 3), (2, 7)])
@pytest.mark.parametrize("options", [{}, {"steps_per_round": 3}, {"sync": DelayedAveraging(), "steps_per_round": 2}])
def test_fourier_path_on_tori_equals_dense(a: int, b: int, options: dict[str, object]) -> None:
    """Random rounds that look the same from every place of an a×b torus, on nodes of all sizes."""
    rng, n = np.random.default_rng(31 * a + b), a * b
    rounds = []
    for _ in range(2):
        picked = {divmod(int(d), b) for d in rng.choice(np.arange(1, n), size=3, replace=False)}
        moves = {(1, 0), (0, 1), *picked}
        weights = {move: Fraction(int(rng.integers(1, 4)), 24) for move in moves}
        edges = [
            ((x - dx) % a * b + (y - dy) % b, x * b + y, weight)
            for x in range(a)
            for y in range(b)
            for (dx, dy), weight in weights.items()
        ]
        rounds.append(Round.from_edges(n, edges))
    ranks = rng.permutation(n).tolist()
    nodes = Cluster.irregular([ranks[:3], ranks[3:4], ranks[4:6], ranks[6:]])
    schedule = Schedule("torus", nodes, NeighborAveraging(rounds=tuple(rounds), **options))  # type: ignore[arg-type]
    fast, dense = circulant_sectors(schedule), dense_sectors(schedule)
    assert fast is not None
    assert f"{a}×{b}" in fast.how
    assert contraction_per_start(fast) == pytest.approx(contraction_per_start(dense), abs=1e-12)
    assert fast.radius == pytest.approx(dense.radius, abs=1e-9)
    assert consensus_distance_of(fast) == pytest.approx(consensus_distance_of(dense), rel=1e-9)
    for push in ("worker", "node"):
        assert drift_of(fast, push) == pytest.approx(drift_of(dense, push), rel=1e-9)
    values, counts = spectrum_of(fast)
    mine = np.sort(np.repeat(np.abs(values), counts))
    assert mine == pytest.approx(np.sort(np.abs(np.linalg.eigvals(period_product(schedule)))), abs=1e-12)


def test_two_joined_rings_of_5000_have_their_closed_form() -> None:
    """λ = (1 + 2cos(2πk/m) + (−1)^k ± 1)/5: two ring-based graphs of m workers, joined worker to worker."""
    n = 10_000
    found = metrics(Schedule("two rings", Cluster.regular(n, 1), NeighborAveraging(rounds=(weigh(double_ring(n)),))))
    k = np.arange(n // 2)
    values = (1 + 2 * np.cos(2 * np.pi * k / (n // 2)) + (-1.0) ** k + np.array([[1], [-1]])) / 5
    exact = np.sort(np.abs(values), axis=None)[-2]
    assert found.contraction.kind is found.radius.kind is found.consensus_distance.kind is Kind.EXACT
    assert found.contraction.value == pytest.approx(exact, abs=1e-13)
    assert found.contraction.value == pytest.approx((3 + 2 * math.cos(4 * math.pi / (n // 2))) / 5, abs=1e-13)
    assert found.consensus_distance.value == pytest.approx((1 / (1 - np.sort(values**2, axis=None)[:-1]) - 1).sum() / n)
    assert found.hop_gap.value == pytest.approx((1 - math.cos(4 * math.pi / (n // 2))) / 2, abs=1e-13)
    random = NeighborAveraging(rounds=(weigh(random_regular(600, degree=4, seed=0)),))
    found = metrics(Schedule("unlike", Cluster.regular(600, 1), random))
    assert found.contraction.kind is Kind.ESTIMATE, "a graph that looks different from each worker"


def test_a_cyclic_shift_never_converges() -> None:
    schedule = shifts(8, [{1: Fraction(1)}])
    found = metrics(schedule)
    assert found.contraction.value == pytest.approx(1)
    assert found.consensus_distance.value == math.inf
    assert found.to_json()["drift"] == {"worker": None, "node": None}


def test_spectrum_by_fourier_is_complete() -> None:
    schedule = shifts(12, [{1: Fraction(1, 3), 5: Fraction(1, 4)}])
    fast = circulant_sectors(schedule)
    assert fast is not None
    values, counts = spectrum_of(fast)
    assert counts.sum() == 12
    dense = np.linalg.eigvals(period_product(schedule))
    assert np.sort(np.repeat(np.abs(values), counts)) == pytest.approx(np.sort(np.abs(dense)), abs=1e-12)


def test_rounds_that_move_the_mean_are_named() -> None:
    star = Round.from_edges(5, [(0, i, Fraction(1, 2)) for i in range(1, 5)])
    found = metrics(Schedule("star", Cluster.parse("5x1"), NeighborAveraging(rounds=(star,))))
    assert "not doubly stochastic" in found.contraction.how
    assert found.contraction.value is not None
    assert found.contraction.value > 0.5
    # Everyone halves its distance to worker 0 in each round, whatever becomes of the mean.
    assert found.radius.value == pytest.approx(0.5)
