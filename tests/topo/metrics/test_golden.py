"""The reference metrics of golden.json, and schedules of many workers against dense matrices."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from helpers.figures_by_definition import rounds_to, spectrum_of
from helpers.golden import GOLDEN
from helpers.refusals import check_error
from helpers.small import of_phases
from partreduce import Cluster, Schedule, metrics
from partreduce.errors import InputError
from partreduce.schedulers.registry import build
from partreduce.strategies import Phase
from partreduce.topo.graphs.named import (
    de_bruijn,
    double_ring,
    exponential,
    hop_figure_21,
    hypercube,
    random_regular,
    ring,
    ring_based,
    torus,
)
from partreduce.topo.graphs.weights import constant, weigh
from partreduce.topo.metrics import (
    Kind,
    consensus_distance,
    contraction,
    drift,
    exact_consensus_distance,
    hop_gap,
    radius,
)
from partreduce.topo.metrics.decomposition import circulant_sectors, dense_sectors
from partreduce.topo.metrics.sectors import contraction_of, contraction_per_start
from partreduce.topo.metrics.steady_state import consensus_distance_of, drift_of
from partreduce.topo.mixing import period_product
from partreduce.topo.strategies import AllReduce, DelayedAveraging, NeighborAveraging, Round
from partreduce.types import MetricLimits


def figure_10(num_nodes):
    return build("prague-figure-10", Cluster.regular(num_nodes, 4))


def node_then_all(inside):
    return build("node-then-all", Cluster.parse("4x4"), node_rounds=inside)


def neighbor(n, *rounds):
    return Schedule("graph", Cluster.regular(n, 1), NeighborAveraging(rounds=rounds))


@pytest.mark.parametrize("num_nodes", [2, 4, 6, 8, 16])
def test_figure_10(num_nodes):
    golden, schedule = GOLDEN["prague_figure_10"], figure_10(num_nodes)
    key = str(num_nodes)
    found = metrics(schedule)
    assert found.contraction.value == pytest.approx(golden["contraction"][key], abs=1e-10)
    closed = 3 * math.sqrt(3) / 8 if num_nodes == 2 else math.sqrt(3) / 2
    assert found.contraction.value == pytest.approx(closed, abs=1e-14)
    assert found.radius.value == pytest.approx(float(Fraction(golden["spectral_radius_of_period"][key])), abs=1e-13)
    expected = golden["disagreement"][key]
    exact = exact_consensus_distance(schedule)
    assert exact is not None
    if isinstance(expected, str):
        assert exact == Fraction(expected)
    else:
        assert float(exact) == pytest.approx(expected, abs=1e-10)
    if num_nodes >= 4:
        assert exact == Fraction(179, 112) - Fraction(51, 28 * num_nodes)
        assert found.contraction_per_start == pytest.approx((math.sqrt(3) / 2, math.sqrt(3) / 2, 0.75, 0.75), abs=1e-13)
    assert found.consensus_distance.value == pytest.approx(float(exact), abs=1e-13)


def test_metrics_are_independent_of_the_number_of_nodes():
    million = figure_10(250_000)
    found = metrics(million)
    assert found.contraction.value == pytest.approx(math.sqrt(3) / 2, abs=1e-14)
    assert exact_consensus_distance(million) == Fraction(179, 112) - Fraction(51, 28 * 250_000)
    keys = "period num_workers num_distinct_phases contraction consensus_distance drift hop_gap"
    assert set(found.to_json()) >= set(keys.split())
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["num_workers"] == 1_000_000


@pytest.mark.parametrize("steps_per_round", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("cluster", ["4x4", "3,3,2", "5x1", "1x6"])
def test_allreduce_every_h(cluster, steps_per_round):
    schedule = Schedule("local-sgd", Cluster.parse(cluster), AllReduce(steps_per_round=steps_per_round))
    n = schedule.num_workers
    assert contraction(schedule).value == 0
    assert consensus_distance(schedule).value == pytest.approx((n - 1) / n * (steps_per_round - 1) / 2, abs=1e-13)
    squares = sum(t * t for t in range(steps_per_round)) / steps_per_round
    assert drift(schedule, "worker").value == pytest.approx((n - 1) / n * squares, abs=1e-13)
    shared = (n - sum(float(s) ** 2 for s in schedule.cluster.node_sizes()) / n) / n
    assert drift(schedule, "node").value == pytest.approx(shared * squares, abs=1e-13)


@pytest.mark.parametrize(("name", "schedule"), [
    ("node_x3_then_all", node_then_all(3)),
    ("node_x7_then_all", node_then_all(7)),
    ("node_x15_then_all", node_then_all(15)),
    ("prague_figure_10", figure_10(4)),
    *((f"allreduce_every_{h}", Schedule("a", Cluster.parse("4x4"), AllReduce(steps_per_round=h)))
        for h in (2, 4, 8, 16)),
    ("pairs_pairs_all", build("pairs-pairs-all", Cluster.parse("4x4"))),
])  # fmt: skip
def test_drift_table(name, schedule):
    worker, node = GOLDEN["drift_16_workers_4_nodes"][name]
    assert drift(schedule, "worker").value == pytest.approx(worker, abs=5e-4)
    assert drift(schedule, "node").value == pytest.approx(node, abs=5e-4)


def with_arbitrary_weights(graph):
    """Return a round with arbitrary weights, which metrics of the graph must ignore."""
    edges = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return Round.from_edges(graph.num_workers, [(a, b, Fraction(1, 9)) for a, b in edges])


def test_hop_figure_21():
    golden = GOLDEN["hop_figure_21"]
    assert hop_gap(with_arbitrary_weights(hop_figure_21("a"))) == pytest.approx(2 / 3, abs=1e-14)
    with_loops = neighbor(8, constant(hop_figure_21("a"), Fraction(1, 4)))
    assert 1 - radius(with_loops).value == pytest.approx(golden["a"]["gap_with_self_loops"], abs=1e-12)
    for which in "bc":
        gap = hop_gap(with_arbitrary_weights(hop_figure_21(which)))
        assert gap == pytest.approx(golden[which]["gap"], abs=1e-9)
        assert gap == pytest.approx(golden[which]["printed"], abs=5e-5)
        r = 1 - gap
        residual = 45 * r**3 - 20 * r - 3 if which == "b" else 24 * r**3 - 2 * r**2 - 10 * r - 1
        assert residual == pytest.approx(0, abs=1e-12)


GAPS = [
    *((ring(int(n)), gap, 1e-6) for n, gap in GOLDEN["spectral_gap_slem"]["ring_third_weights"].items()),
    *((ring(n), 1 - max(abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n)), 1e-9) for n in (5, 16)),
    *((torus(*map(int, shape.split("x"))), gap, 1e-6)
      for shape, gap in GOLDEN["spectral_gap_slem"]["torus_fifth_weights"].items()),
    *((hypercube(dimension), 2 / (1 + dimension), 1e-12) for dimension in range(1, 8)),
    *((exponential(n), 2 / (1 + math.ceil(math.log2(n))), 1e-9) for n in (4, 6, 8, 10, 12, 16, 24, 64, 100, 128, 300)),
    *((exponential(n), gap, 5e-6)
      for n, gap in ((5, 0.75), (7, 0.646447), (17, 0.452379), (25, 0.489139), (33, 0.3922))),
    (ring_based(8), 0.5, 1e-9), (ring_based(16), 0.1464, 1e-4),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "gap", "within"), GAPS)
def test_gap_of_a_graph_with_equal_weights(graph, gap, within):
    schedule = neighbor(graph.num_workers, weigh(graph, "uniform"))
    assert 1 - radius(schedule).value == pytest.approx(gap, abs=within)
    if graph.is_undirected or graph.num_workers % 2 == 0:
        assert 1 - contraction(schedule).value == pytest.approx(gap, abs=within)


@pytest.mark.parametrize(("base", "length"), [(2, 3), (2, 4), (3, 2), (3, 3)])
def test_de_bruijn_graphs_are_nilpotent_off_the_mean(base, length):
    schedule = neighbor(base**length, constant(de_bruijn(base, length), Fraction(1, base)))
    assert contraction(schedule).value == pytest.approx(1, abs=1e-12)
    assert radius(schedule).value == 0
    assert rounds_to(schedule, 1e-9) == length


# Many workers: sparse factors and Fourier transforms against dense matrices


def random_groups(n, period, size, seed, *, relaxation=False, skips=True, **options):
    rng = np.random.default_rng(seed)
    phases = []
    for _ in range(period):
        labels = rng.permutation(n) // size
        if skips:
            labels[rng.random(n) < 0.1] = -1
        factors = {int(k): Fraction(int(rng.integers(1, 6)), 4) for k in np.unique(labels)} if relaxation else None
        phases.append(Phase.from_labels(labels, factors))
    return of_phases("r", Cluster.regular(n // 4, 4), phases, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("relaxation", [False, True])
@pytest.mark.parametrize(("n", "period", "size"), [(40, 1, 40), (40, 2, 5), (120, 4, 3), (200, 8, 4), (200, 3, 2)])
def test_sparse_contraction_equals_the_dense_product(n, period, size, relaxation):
    for seed in range(3):
        schedule = random_groups(n, period, size, seed, relaxation=relaxation)
        for start in range(period):
            found = contraction(schedule, start=start, limit=MetricLimits(dense_workers=1))
            exact = contraction_of(dense_sectors(schedule), start)
            assert found.kind is Kind.ESTIMATE
            assert found.value == pytest.approx(exact, rel=1e-6, abs=1e-12)
            assert found.value <= exact + 1e-9


def test_contraction_of_a_slow_ring_has_its_closed_form():
    """Two rounds of pairs around a ring; the norm of their product off the mean is cos(2π/n)."""
    n = 2000
    pairs = [Phase.from_groups(n, [(i, (i + 1) % n) for i in range(s, n, 2)]) for s in (0, 1)]
    schedule = of_phases("slow ring", Cluster.regular(n, 1), pairs)
    assert contraction(schedule).value == pytest.approx(math.cos(2 * math.pi / n), abs=1e-9)


def test_exact_consensus_of_many_workers_has_contraction_0():
    n = 602
    ring = [Phase.from_groups(n, [(i, (i + 1) % n) for i in range(s, n, 2)]) for s in (0, 1)]
    phases = (*ring, Phase.from_groups(n, [range(n)]))
    found = contraction(of_phases("all", Cluster.regular(n, 1), phases))
    assert found.value == 0.0


def test_direct_metrics_are_unavailable_above_512_workers():
    found = metrics(random_groups(516, 4, 4, 3, skips=False))
    assert 0 < found.contraction.value < 1
    for metric in (found.radius, found.consensus_distance, found.drift.worker, found.drift.node):
        assert metric.value is None
        assert metric.how == (
            "not found: explicit schedules have this metric up to 512 workers; write the schedule as a rule"
        )
    assert found.to_json()["consensus_distance"] is None
    assert found.contraction_per_start == ()


def test_unknown_drift_push_is_rejected():
    check_error(InputError, "worker or node", drift, random_groups(40, 2, 4, 0), "wrokers")


def shifts(n, rounds, *, xor=False, **options):
    listed = tuple(
        Round.from_edges(n, [(i, i ^ d if xor else (i + d) % n, w) for i in range(n) for d, w in offsets.items()])
        for offsets in rounds
    )
    return Schedule("c", Cluster.parse(f"{n // 4}x4"), NeighborAveraging(rounds=listed, **options))  # type: ignore[arg-type]


def check_against_dense(schedule):
    """Check metrics and spectrum of the Fourier path."""
    fast, dense = circulant_sectors(schedule), dense_sectors(schedule)
    assert contraction_per_start(fast) == pytest.approx(contraction_per_start(dense), abs=1e-12)
    assert fast.radius == pytest.approx(dense.radius, abs=1e-9)
    assert consensus_distance_of(fast) == pytest.approx(consensus_distance_of(dense), rel=1e-9)
    for push in ("worker", "node"):
        assert drift_of(fast, push) == pytest.approx(drift_of(dense, push), rel=1e-9)
    values, counts = spectrum_of(fast)
    mine = np.sort(np.repeat(np.abs(values), counts))
    assert mine == pytest.approx(np.sort(np.abs(np.linalg.eigvals(period_product(schedule)))), abs=1e-12)
    return fast.how


@pytest.mark.parametrize("xor", [False, True])
@pytest.mark.parametrize("options", [{}, {"steps_per_round": 3}, {"sync": DelayedAveraging(), "steps_per_round": 2}])
@pytest.mark.parametrize("n", [8, 16])
def test_fourier_path_equals_dense(n, options, xor):
    rng = np.random.default_rng(n)
    rounds = [{int(d): Fraction(1, 5) for d in rng.choice(np.arange(1, n), size=3, replace=False)} for _ in range(3)]
    assert ("Walsh" in check_against_dense(shifts(n, rounds, xor=xor, **options))) == xor


def test_fourier_path_on_irregular_nodes_and_large_rings():
    third = Fraction(1, 3)
    ring = Round.from_edges(9, [(i, j % 9, third) for i in range(9) for j in (i - 1, i + 1)])
    schedule = Schedule("ring", Cluster.parse("2,3,4"), NeighborAveraging(rounds=(ring,)))
    check_against_dense(schedule)
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
def test_fourier_path_on_tori_equals_dense(a, b, options):
    """Random translation-invariant rounds on an a×b torus, on nodes of all sizes."""
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
    assert f"{a}×{b}" in check_against_dense(schedule)


def test_two_joined_rings_of_5000_have_their_closed_form():
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
    assert found.contraction.kind is Kind.ESTIMATE, "a graph without symmetry"


def test_cyclic_shift_never_converges():
    schedule = shifts(8, [{1: Fraction(1)}])
    found = metrics(schedule)
    assert found.contraction.value == pytest.approx(1)
    assert found.consensus_distance.value == math.inf
    assert found.to_json()["drift"] == {"worker": None, "node": None}


def test_rounds_that_move_the_mean_are_named():
    star = Round.from_edges(5, [(0, i, Fraction(1, 2)) for i in range(1, 5)])
    found = metrics(Schedule("star", Cluster.parse("5x1"), NeighborAveraging(rounds=(star,))))
    assert "not doubly stochastic" in found.contraction.how
    assert found.contraction.value is not None
    assert found.contraction.value > 0.5
    # Every worker halves its distance to worker 0 in each round, although the mean moves.
    assert found.radius.value == pytest.approx(0.5)
