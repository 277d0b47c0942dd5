"""The reference figures: every number of golden.json that a figure reproduces."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import networkx as nx
import pytest

from helpers.figures_by_definition import rounds_to
from helpers.golden import GOLDEN
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import (
    consensus_distance,
    contraction,
    drift,
    exact_consensus_distance,
    figures,
    hop_gap,
    radius,
)
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, Late, Neighbor, Round, RulePhases, Static


def figure_10(num_nodes: int) -> Schedule:
    radices = (2, num_nodes // 2) if num_nodes > 2 else (2,)
    whole = (Block((0, 1, 2, 3)),)
    phases = (
        (Block((0,), tuple(range(len(radices)))), Block((2, 3))),
        whole,
        (Block((0, 3)), Block((1,), (0,))),
        whole,
    )
    return Schedule("figure-10", Cluster.regular(num_nodes, 4), Static(phases=RulePhases(radices, phases)))


def node_then_all(inside: int) -> Schedule:
    phases = ((Block((0, 1, 2, 3)),),) * inside + ((Block((0, 1, 2, 3), (0,)),),)
    return Schedule("node-then-all", Cluster.regular(4, 4), Static(phases=RulePhases((4,), phases)))


def neighbor(n: int, *rounds: Round) -> Schedule:
    return Schedule("graph", Cluster.regular(n, 1), Neighbor(rounds=rounds))


def ring(n: int) -> Round:
    third = Fraction(1, 3)
    return Round.from_edges(n, [(i, j % n, third) for i in range(n) for j in (i - 1, i + 1)])


def torus(a: int, b: int) -> Round:
    edges = []
    for i in range(a):
        for j in range(b):
            for p, q in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                edges.append((p % a * b + q % b, i * b + j, Fraction(1, 5)))
    return Round.from_edges(a * b, edges)


def hypercube(dimension: int) -> Round:
    n, weight = 2**dimension, Fraction(1, dimension + 1)
    return Round.from_edges(n, [(i, i ^ 2**k, weight) for i in range(n) for k in range(dimension)])


def static_exponential(n: int) -> Round:
    count = (n - 1).bit_length()
    return Round.from_edges(n, [(i, (i + 2**k) % n, Fraction(1, count + 1)) for i in range(n) for k in range(count)])


def one_peer_exponential(n: int) -> Schedule:
    half = Fraction(1, 2)
    rounds = [Round.from_edges(n, [(i, (i + 2**k) % n, half) for i in range(n)]) for k in range((n - 1).bit_length())]
    return neighbor(n, *rounds)


@pytest.mark.parametrize("num_nodes", [2, 4, 6, 8, 16])
def test_figure_10(num_nodes: int) -> None:
    golden, schedule = GOLDEN["prague_figure_10"], figure_10(num_nodes)
    key = str(num_nodes)
    found = figures(schedule)
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


def test_figures_do_not_depend_on_the_number_of_nodes() -> None:
    million = figure_10(250_000)
    found = figures(million)
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


@pytest.mark.parametrize("pace", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("cluster", ["4x4", "3,3,2", "5x1", "1x6"])
def test_allreduce_every_h(cluster: str, pace: int) -> None:
    schedule = Schedule("local-sgd", Cluster.parse(cluster), AllReduce(pace=pace))
    n = schedule.num_workers
    assert contraction(schedule).value == 0
    assert consensus_distance(schedule).value == pytest.approx((n - 1) / n * (pace - 1) / 2, abs=1e-13)
    squares = sum(t * t for t in range(pace)) / pace
    assert drift(schedule, "worker").value == pytest.approx((n - 1) / n * squares, abs=1e-13)
    shared = (n - sum(float(s) ** 2 for s in schedule.cluster.node_sizes()) / n) / n
    assert drift(schedule, "node").value == pytest.approx(shared * squares, abs=1e-13)


def test_overlapped_allreduce_disagrees_by_n_minus_1_over_n() -> None:
    schedule = Schedule("overlap", Cluster.parse("4x4"), AllReduce(when=Late()))
    assert consensus_distance(schedule).value == pytest.approx(15 / 16, abs=1e-14)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("node_x3_then_all", node_then_all(3)),
        ("node_x7_then_all", node_then_all(7)),
        ("node_x15_then_all", node_then_all(15)),
        ("prague_figure_10", figure_10(4)),
        *((f"allreduce_every_{h}", Schedule("a", Cluster.parse("4x4"), AllReduce(pace=h))) for h in (2, 4, 8, 16)),
        ("pairs_pairs_all", Schedule("pairs", Cluster.parse("4x4"),
            Static(phases=RulePhases((4,), ((Block((0, 1)), Block((2, 3))), (Block((0, 2)), Block((1, 3))),
            (Block((0, 1, 2, 3), (0,)),)))))),
    ],
)  # fmt: skip
def test_drift_table(name: str, schedule: Schedule) -> None:
    worker, node = GOLDEN["drift_16_workers_4_nodes"][name]
    assert drift(schedule, "worker").value == pytest.approx(worker, abs=5e-4)
    assert drift(schedule, "node").value == pytest.approx(node, abs=5e-4)


def test_worked_example_consensus_distances() -> None:
    rows = GOLDEN["worked_example_16_workers"]["ms_per_step_and_disagreement"]
    assert exact_consensus_distance(node_then_all(3)) == Fraction(rows["node_x3_then_all"][1])
    assert exact_consensus_distance(figure_10(4)) == Fraction(rows["prague_figure_10"][1])


def figure_21(which: str) -> nx.Graph:
    if which == "a":
        graph = nx.cycle_graph(8)
        graph.add_edges_from((i, i + 4) for i in range(4))
        return graph
    graph = nx.complete_graph(4)
    graph.add_edges_from([(4, 5), (6, 7)])
    graph.add_edges_from([(0, 4), (4, 6), (6, 0)] if which == "b" else [(1, 4), (5, 6), (7, 0)])
    return graph


def test_hop_figure_21() -> None:
    golden = GOLDEN["hop_figure_21"]
    assert hop_gap(bare(figure_21("a"))) == pytest.approx(2 / 3, abs=1e-14)
    for which in "bc":
        gap = hop_gap(bare(figure_21(which)))
        assert gap == pytest.approx(golden[which]["gap"], abs=1e-9)
        assert gap == pytest.approx(golden[which]["printed"], abs=5e-5)
        r = 1 - gap
        residual = 45 * r**3 - 20 * r - 3 if which == "b" else 24 * r**3 - 2 * r**2 - 10 * r - 1
        assert residual == pytest.approx(0, abs=1e-12)


def bare(graph: nx.Graph) -> Round:
    """Both directions of every edge, with weights that no reader of a bare graph may look at."""
    edges = sorted((a, b, Fraction(1, 9)) for edge in graph.edges for a, b in (edge, edge[::-1]))
    return Round.from_edges(len(graph), edges)


def test_hop_figure_21_other_readings_differ() -> None:
    golden = GOLDEN["hop_figure_21"]["a"]
    loops = [(a, b, Fraction(1, 4)) for a, b, _ in bare(figure_21("a")).edges()]
    with_loops = Schedule("a", Cluster.regular(8, 1), Neighbor(rounds=(Round.from_edges(8, loops),)))
    assert 1 - radius(with_loops).value == pytest.approx(golden["gap_with_self_loops"], abs=1e-12)


@pytest.mark.parametrize(
    ("n", "gap"), [(int(k), v) for k, v in GOLDEN["spectral_gap_slem"]["ring_third_weights"].items()]
)
def test_ring_gap(n: int, gap: float) -> None:
    assert 1 - radius(neighbor(n, ring(n))).value == pytest.approx(gap, abs=1e-6)


@pytest.mark.parametrize(("shape", "gap"), GOLDEN["spectral_gap_slem"]["torus_fifth_weights"].items())
def test_torus_gap(shape: str, gap: float) -> None:
    a, b = map(int, shape.split("x"))
    assert 1 - radius(neighbor(a * b, torus(a, b))).value == pytest.approx(gap, abs=1e-6)


@pytest.mark.parametrize("dimension", range(2, 7))
def test_hypercube_gap_is_2_over_1_plus_log_n(dimension: int) -> None:
    schedule = neighbor(2**dimension, hypercube(dimension))
    assert radius(schedule).value == pytest.approx(1 - 2 / (1 + dimension), abs=1e-12)


@pytest.mark.parametrize("n", [4, 6, 8, 10, 12, 16, 24, 64, 100, 128, 300])
def test_static_exponential_gap_of_even_n(n: int) -> None:
    expected = 2 / (1 + math.ceil(math.log2(n)))
    schedule = neighbor(n, static_exponential(n))
    assert 1 - radius(schedule).value == pytest.approx(expected, abs=1e-9)
    assert 1 - contraction(schedule).value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("n", "gap"), [(5, 0.75), (7, 0.646447), (17, 0.452379), (25, 0.489139), (33, 0.3922)])
def test_static_exponential_gap_of_odd_n(n: int, gap: float) -> None:
    assert 1 - radius(neighbor(n, static_exponential(n))).value == pytest.approx(gap, abs=5e-6)


@pytest.mark.parametrize("n", [2, 4, 8, 32, 64])
def test_one_peer_exponential_is_exact_for_powers_of_two(n: int) -> None:
    assert contraction(one_peer_exponential(n)).value == 0
    assert rounds_to(one_peer_exponential(n)) == n.bit_length() - 1


def hyper_cuboid(radices: tuple[int, ...]) -> Schedule:
    phases = tuple((Block((0,), (d,)),) for d in reversed(range(len(radices))))
    cluster = Cluster.regular(math.prod(radices), 1)
    return Schedule("cuboid", cluster, Static(phases=RulePhases(radices, phases)))


@pytest.mark.parametrize(("schedule", "rounds"), [
    (neighbor(16, ring(16)), 266),
    (neighbor(25, ring(25)), 653),
    (neighbor(16, torus(4, 4)), 28),
    (neighbor(25, torus(5, 5)), 43),
    (neighbor(32, torus(4, 8)), 111),
    (neighbor(100, torus(10, 10)), 174),
    (neighbor(32, hypercube(5)), 35),
    (neighbor(64, static_exponential(64)), 42),
    (neighbor(25, static_exponential(25)), 21),
    (one_peer_exponential(25), 44),
    (one_peer_exponential(100), 62),
    (hyper_cuboid((4, 4)), 2),
    (hyper_cuboid((4, 5, 5)), 3),
])  # fmt: skip
def test_rounds_to_a_millionth(schedule: Schedule, rounds: int) -> None:
    assert rounds_to(schedule, 1e-6) == rounds


@pytest.mark.parametrize(("base", "length"), [(2, 3), (2, 4), (3, 2), (3, 3)])
def test_de_bruijn_graphs_are_nilpotent_off_the_mean(base: int, length: int) -> None:
    n = base**length
    edges = {(i, (base * i + a) % n) for i in range(n) for a in range(base)}
    schedule = neighbor(n, Round.from_edges(n, [(i, j, Fraction(1, base)) for i, j in sorted(edges) if i != j]))
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
    schedule = Schedule("relaxed", Cluster.regular(n, 1), Static(phases=GroupPhases(tuple(phases))))
    assert contraction(schedule).value == 0
