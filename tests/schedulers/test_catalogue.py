"""Constructions of the literature against their published lengths, exactness and rates, and rule families."""

import re
from math import lcm, log, prod

import networkx as nx
import numpy as np
import pytest

from helpers.figures_by_definition import rounds_of
from helpers.golden import GOLDEN
from helpers.refusals import check_error
from partreduce import Cluster, metrics
from partreduce.errors import ScheduleError
from partreduce.schedulers import registry
from partreduce.schedulers.constructions import base_graph
from partreduce.schedulers.constructions.per_round import random_phase
from partreduce.schedulers.imports import from_networkx
from partreduce.schedulers.rules.nested import figure_10_rule
from partreduce.strategies import Block, NeighborAveraging
from partreduce.topo.arithmetic.whole_numbers import (
    ceil_log,
    divisors,
    fewest_factors,
    prime_factors,
    smallest_prime_factor,
)
from partreduce.topo.metrics import contraction
from partreduce.verify import prove


def build(name, n, **parameters):
    return registry.build(name, Cluster.regular(1, n), **parameters)


def dense(schedule):
    return [matrix for matrix, _ in rounds_of(schedule)]


LENGTHS = {int(n): listed for n, listed in GOLDEN["base_k_plus_1_rounds"].items() if n != "about"}
LENGTHS |= {16: [4, 4, 2, 2], 32: [5, 5, 3, 3], 64: [6, 6, 3, 3]}


@pytest.mark.parametrize("n", LENGTHS)
def test_base_k_plus_1_has_its_published_length(n):
    assert [len(base_graph.base(n, k)) for k in (1, 2, 3, 4)] == LENGTHS[n]


@pytest.mark.parametrize("most_workers", [32, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_base_k_plus_1_is_exact_for_all_n(k, most_workers):
    for n in range(2, most_workers + 1):
        simple, shortest = base_graph.simple_base(n, k), base_graph.base(n, k)
        for exchanges in (simple, shortest)[len(shortest) == len(simple) :]:  # equally long ones are the same
            numerators = np.array([[int(i == j) for j in range(n)] for i in range(n)], dtype=object)
            denominator = 1
            for exchange in exchanges:
                round_ = base_graph.as_round(exchange)
                assert np.bincount(round_.targets, minlength=n).max(initial=0) <= k
                scale = lcm(*(weight.denominator for weight in round_.weights))
                old, numerators, denominator = numerators, numerators * scale, denominator * scale
                for source, target, weight in round_.edges():
                    assert weight > 0
                    numerators[target] = numerators[target] + int(weight * scale) * (old[source] - old[target])
            assert (numerators * n == denominator).all()
            assert len(exchanges) <= 2 * log(n, k + 1) + 2 + 1e-9


@pytest.mark.parametrize("n", [2, 6, 9, 13, 30, 100])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_base_schedules_contract_to_zero_in_both_forms(n, k):
    if k >= n:
        return
    schedule = build("base-k-plus-1", n, k=k)
    assert contraction(schedule).value == pytest.approx(0, abs=1e-12)
    assert k > 1 or schedule.strategy.kind == "static"
    rounds = tuple(base_graph.as_round(exchange) for exchange in base_graph.base(n, k))
    neighbor = type(schedule)("rounds", schedule.cluster, NeighborAveraging(rounds=rounds))
    for a, b in zip(dense(schedule), dense(neighbor), strict=True):
        assert np.allclose(a, b, atol=1e-15)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64, 128])
def test_powers_of_two_are_exact_in_log2_rounds(n):
    rounds = n.bit_length() - 1
    for name in ("one-peer-hypercube", "one-peer-exponential", "base-k-plus-1", "de-bruijn"):
        schedule = build(name, n)
        matrices = dense(schedule) * (rounds if name == "de-bruijn" else 1)
        assert len(matrices) == rounds
        product = np.linalg.multi_dot([np.eye(n), *matrices[::-1], np.eye(n)])
        assert np.abs(product - 1 / n).max() < 1e-12


@pytest.mark.parametrize("n", [5, 6, 7, 12, 17, 25, 100])
def test_one_peer_exponential_contraction_otherwise(n):
    golden = GOLDEN["one_peer_exponential_contraction"][str(n)]
    assert contraction(build("one-peer-exponential", n)).value == pytest.approx(golden, abs=6e-5)


def test_one_peer_hypercube_agrees_in_rule_and_explicit_form():
    rule = registry.build("one-peer-hypercube", Cluster.parse("4x4"))
    explicit = registry.build("one-peer-hypercube", Cluster.parse("4,3,5,2,2"))
    assert rule.rule() is not None
    assert explicit.rule() is None
    assert [rule.phase(t) for t in range(4)] == [explicit.phase(t) for t in range(4)]
    assert rule.group_of(5, 1).members == (5, 7)


@pytest.mark.parametrize("n", [4, 9, 16, 25])
def test_moshpit_grid_is_exact_when_full_and_connected_otherwise(n):
    assert contraction(build("moshpit-grid", n)).value == pytest.approx(0, abs=1e-12)
    assert 1e-3 < contraction(build("moshpit-grid", n + 1)).value < 1


@pytest.mark.parametrize("key", ["16,2", "16,4", "12,3", "8,2"])
def test_random_partition_factor(key):
    n, group = map(int, key.split(","))
    rng = np.random.default_rng(7)
    start = rng.standard_normal(n)
    start -= start.mean()
    factors = [np.sum(random_phase(n, group, rng).apply(start) ** 2) / np.sum(start**2) for _ in range(4000)]
    assert np.mean(factors) == pytest.approx(
        GOLDEN["random_partition_factor"][key], abs=5 * np.std(factors) / 4000**0.5
    )


@pytest.mark.parametrize(("name", "n", "parameters", "wanted"), [
    ("torus", 14, {}, "the next number that is: 15"),
    ("torus", 16, {"shape": "2x8"}, "4x4 fits"),
    ("random-regular", 5, {"degree": 7}, "the largest degree here is 4"),
    ("base-k-plus-1", 4, {"k": 4}, "the largest k here is 3"),
    ("moshpit-grid", 4, {"side": 9}, "use side=4"),
    ("random-partitions", 4, {"group": 5}, "the largest group is 4"),
    ("random-partitions", 100, {"group": 2, "phases": 1}, "phases=8 or more"),
    ("ring-based", 7, {}, "the nearest is 8"),
    ("double-ring", 10, {}, "the nearest is 12"),
    ("one-peer-hypercube", 12, {}, "or use base-k-plus-1"),
    ("complete", 6000, {}, "use allreduce"),
    ("hyper-cuboid", 16, {"max_group": 17}, "the largest group is 16"),
    ("prague-figure-1", 16, {}, "did you mean prague-figure-10"),
    ("zzzzzz", 16, {}, "partreduce design --list"),
    ("node-then-all", 16, {"node_round": 3}, "did you mean node_rounds"),
    ("prague-figure-10", 16, {"every": 3}, "has no parameters"),
])  # fmt: skip
def test_invalid_parameters_suggest_the_nearest_valid_value(name, n, parameters, wanted):
    check_error(ScheduleError, re.escape(wanted), build, name, n, **parameters)


@pytest.mark.parametrize("name", ["random-regular", "random-partitions"])
def test_equal_seeds_repeat_and_other_seeds_differ(name):
    n = 40
    assert build(name, n, seed=1) == build(name, n, seed=1)
    assert build(name, n, seed=1).strategy != build(name, n, seed=2).strategy


def test_non_stochastic_import_is_refuted():
    proof = prove(from_networkx(nx.star_graph(5), weights="uniform"))
    assert proof.verdict == "refuted"
    refuted = {claim.claim for claim in proof.claims if claim.status == "refuted"}
    assert any("stochastic" in claim for claim in refuted)


@pytest.mark.parametrize(("ends", "setting", "gap"), [("spread", "c", 0.268848), ("gateway", "b", 0.268192)])
def test_clustered_graphs_match_hop_figure_21(ends, setting, gap):
    cluster = Cluster.parse("4,2,2")
    ours = registry.build("clustered", cluster, ends=ends)
    theirs = registry.build("hop-figure-21", cluster, setting=setting)
    assert metrics(ours).hop_gap.value == pytest.approx(gap, abs=1e-6)
    graphs = [nx.Graph([(a, b) for a, b, _ in schedule.strategy.rounds[0].edges()]) for schedule in (ours, theirs)]
    assert nx.is_isomorphic(*graphs)


@pytest.mark.parametrize("text", ["2x1", "3x2", "4x4", "3,3,2", "1,5"])
@pytest.mark.parametrize("links", [1, 2, 5])
def test_clustered_graphs_have_the_requested_links(text, links):
    cluster = Cluster.parse(text)
    node_of, sizes = cluster.node_of(), cluster.node_sizes()
    for across in ("ring", "complete"):
        ((round_),) = registry.build("clustered", cluster, across=across, links=links).strategy.rounds
        between = np.zeros((cluster.num_nodes,) * 2, dtype=int)
        np.add.at(between, (node_of[round_.targets], node_of[round_.sources]), 1)
        for a in range(cluster.num_nodes):
            assert between[a, a] == sizes[a] * (sizes[a] - 1)
            for b in range(cluster.num_nodes):
                joined = across == "complete" or abs(a - b) in (1, cluster.num_nodes - 1)
                assert a == b or between[a, b] == (min(links, sizes[a] * sizes[b]) if joined else 0)


# Rule families: the published rules, and their generalizations


@pytest.mark.parametrize("nodes", [2, 4, 10, 250_000])
def test_figure_10_matches_the_published_rule(nodes):
    rule = figure_10_rule(nodes, 4)
    everyone = (0, 1) if nodes > 2 else (0,)
    assert rule.node_radices == ((2, nodes // 2) if nodes > 2 else (2,))
    assert rule.phases == (
        (Block((0,), everyone), Block((2, 3))),
        (Block((0, 1, 2, 3)),),
        (Block((0, 3)), Block((1,), (0,))),
        (Block((0, 1, 2, 3)),),
    )


@pytest.mark.parametrize("size", range(2, 9))
def test_figure_10_is_connected_for_any_size(size):
    for nodes in range(1, 12):
        schedule = registry.build("prague-figure-10", Cluster.regular(nodes, size))
        assert contraction(schedule).value < 0.95, nodes


EXACT = {
    "hyper-cuboid": ("2x4", "3x4", "5x3", "1x8", "7x1", "3,3,2", "6x6", "12x5"),
    "node-digits": ("2x2", "4x4", "6x4", "3x2"),
    "hierarchy": ("2x2", "4x4", "6x4", "3x2"),
    "node-then-all": ("4x4",),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, listed in EXACT.items() for text in listed])
def test_period_is_exact(name, text):
    assert contraction(registry.build(name, Cluster.parse(text))).value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("limit", [2, 3, 4, 8])
def test_hyper_cuboid_is_exact_if_prime_factors_fit(limit):
    for size in range(2, 65):
        cluster = Cluster.regular(1, size)
        if max(prime_factors(size)) > limit:
            assert registry.entry("hyper-cuboid").why_not(cluster, max_group=limit) is not None
        elif limit <= size:
            schedule = registry.build("hyper-cuboid", cluster, max_group=limit)
            assert all(phase_size <= limit for t in range(schedule.period) for phase_size in schedule.phase(t).sizes)
            assert contraction(schedule).value == pytest.approx(0, abs=1e-12), size


def test_hierarchy_nests_its_levels():
    schedule = registry.build("hierarchy", Cluster.parse("4x2"), rounds=2)
    sizes = [int(schedule.phase(t).sizes[0]) for t in range(schedule.period)]
    assert sizes == [2, 2, 4, 2, 2, 4, 8]
    assert registry.build("hierarchy", Cluster.parse("4x1"), rounds=2).period == 3


def test_fewest_factors_is_as_short_as_exhaustive_search():
    def shortest(number, limit):
        if number == 1:
            return 0
        options = [shortest(number // f, limit) for f in range(2, min(number, limit) + 1) if number % f == 0]
        options = [option for option in options if option is not None]
        return 1 + min(options) if options else None

    for number in range(1, 200):
        for limit in (2, 3, 4, 5, 8, 12):
            found = fewest_factors(number, limit)
            assert (None if found is None else len(found)) == shortest(number, limit)
            assert found is None or (prod(found) == number and max(found, default=1) <= limit)


def test_small_number_theory():
    for number in range(1, 400):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
        assert prod(prime_factors(number)) == number
        assert number == 1 or smallest_prime_factor(number) == divisors(number)[1]
        assert 3 ** ceil_log(number, 3) >= number > 3 ** (ceil_log(number, 3) - 1)
