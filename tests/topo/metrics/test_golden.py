"""The reference metrics: every number of golden.json that a metric reproduces."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest

from helpers.figures_by_definition import rounds_to
from helpers.golden import GOLDEN
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.graphs import Graph
from partreduce.topo.graphs.named import de_bruijn, exponential, hop_figure_21, hypercube, ring, ring_based, torus
from partreduce.topo.graphs.weights import constant, weigh
from partreduce.topo.metrics import (
    consensus_distance,
    contraction,
    drift,
    exact_consensus_distance,
    hop_gap,
    metrics,
    radius,
)
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, GroupPhases, NeighborAveraging, Round, StaticGroups


def figure_10(num_nodes: int) -> Schedule:
    return build("prague-figure-10", Cluster.regular(num_nodes, 4))


def node_then_all(inside: int) -> Schedule:
    return build("node-then-all", Cluster.parse("4x4"), node_rounds=inside)


def neighbor(n: int, *rounds: Round) -> Schedule:
    return Schedule("graph", Cluster.regular(n, 1), NeighborAveraging(rounds=rounds))


@pytest.mark.parametrize("num_nodes", [2, 4, 6, 8, 16])
def test_figure_10(num_nodes: int) -> None:
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


def test_metrics_do_not_depend_on_the_number_of_nodes() -> None:
    million = figure_10(250_000)
    found = metrics(million)
    assert found.contraction.value == pytest.approx(math.sqrt(3) / 2, abs=1e-14)
    assert exact_consensus_distance(million) == Fraction(179, 112) - Fraction(51, 28 * 250_000)
    assert set(found.to_json()) >= {
        "period",
        "num_workers",
        "num_distinct_phases",
        "contraction",
        "consensus_distance",
        "drift",
        "hop_gap",
    }
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["num_workers"] == 1_000_000


@pytest.mark.parametrize("steps_per_round", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("cluster", ["4x4", "3,3,2", "5x1", "1x6"])
def test_allreduce_every_h(cluster: str, steps_per_round: int) -> None:
    schedule = Schedule("local-sgd", Cluster.parse(cluster), AllReduce(steps_per_round=steps_per_round))
    n = schedule.num_workers
    assert contraction(schedule).value == 0
    assert consensus_distance(schedule).value == pytest.approx((n - 1) / n * (steps_per_round - 1) / 2, abs=1e-13)
    squares = sum(t * t for t in range(steps_per_round)) / steps_per_round
    assert drift(schedule, "worker").value == pytest.approx((n - 1) / n * squares, abs=1e-13)
    shared = (n - sum(float(s) ** 2 for s in schedule.cluster.node_sizes()) / n) / n
    assert drift(schedule, "node").value == pytest.approx(shared * squares, abs=1e-13)


def test_overlapped_allreduce_disagrees_by_n_minus_1_over_n() -> None:
    schedule = Schedule("is_delayed", Cluster.parse("4x4"), AllReduce(sync=DelayedAveraging()))
    assert consensus_distance(schedule).value == pytest.approx(15 / 16, abs=1e-14)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("node_x3_then_all", node_then_all(3)),
        ("node_x7_then_all", node_then_all(7)),
        ("node_x15_then_all", node_then_all(15)),
        ("prague_figure_10", figure_10(4)),
        *(
            (f"allreduce_every_{h}", Schedule("a", Cluster.parse("4x4"), AllReduce(steps_per_round=h)))
            for h in (2, 4, 8, 16)
        ),
        ("pairs_pairs_all", build("pairs-pairs-all", Cluster.parse("4x4"))),
    ],
)
def test_drift_table(name: str, schedule: Schedule) -> None:
    worker, node = GOLDEN["drift_16_workers_4_nodes"][name]
    assert drift(schedule, "worker").value == pytest.approx(worker, abs=5e-4)
    assert drift(schedule, "node").value == pytest.approx(node, abs=5e-4)


def test_worked_example_consensus_distances() -> None:
    rows = GOLDEN["worked_example_16_workers"]["ms_per_step_and_disagreement"]
    assert exact_consensus_distance(node_then_all(3)) == Fraction(rows["node_x3_then_all"][1])
    assert exact_consensus_distance(figure_10(4)) == Fraction(rows["prague_figure_10"][1])


def bare(graph: Graph) -> Round:
    """With weights that no reader of a bare graph may look at."""
    edges = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return Round.from_edges(graph.num_workers, [(a, b, Fraction(1, 9)) for a, b in edges])


def test_hop_figure_21() -> None:
    golden = GOLDEN["hop_figure_21"]
    assert hop_gap(bare(hop_figure_21("a"))) == pytest.approx(2 / 3, abs=1e-14)
    with_loops = neighbor(8, constant(hop_figure_21("a"), Fraction(1, 4)))
    assert 1 - radius(with_loops).value == pytest.approx(golden["a"]["gap_with_self_loops"], abs=1e-12)
    for which in "bc":
        gap = hop_gap(bare(hop_figure_21(which)))
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
def test_the_gap_of_a_graph_with_equal_weights(graph: Graph, gap: float, within: float) -> None:
    schedule = neighbor(graph.num_workers, weigh(graph, "uniform"))
    assert 1 - radius(schedule).value == pytest.approx(gap, abs=within)
    if graph.is_undirected or graph.num_workers % 2 == 0:
        assert 1 - contraction(schedule).value == pytest.approx(gap, abs=within)


@pytest.mark.parametrize(("base", "length"), [(2, 3), (2, 4), (3, 2), (3, 3)])
def test_de_bruijn_graphs_are_nilpotent_off_the_mean(base: int, length: int) -> None:
    schedule = neighbor(base**length, constant(de_bruijn(base, length), Fraction(1, base)))
    assert contraction(schedule).value == pytest.approx(1, abs=1e-12)
    assert radius(schedule).value == 0
    assert rounds_to(schedule, 1e-9) == length


@pytest.mark.parametrize("n", [5, 6])
def test_relaxed_pairs_reach_exact_consensus(n: int) -> None:
    from partreduce.topo.phase import Group, Phase

    phases = []
    for line in GOLDEN["relaxed_pairs_exact"][str(n)]:
        pairs, share = line.rsplit(" ", 1)
        groups = [
            Group((int(pair[0]), int(pair[1])), 2 * Fraction(share))
            for pair in pairs.replace("(", " ").replace(")", " ").split()
        ]
        phases.append(Phase.from_groups(n, groups))
    schedule = Schedule("relaxed", Cluster.regular(n, 1), StaticGroups(phases=GroupPhases(tuple(phases))))
    assert contraction(schedule).value == 0
