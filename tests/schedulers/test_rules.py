"""Rule algebra and rule families: golden figures, generalisations, laws of the algebra."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.golden import GOLDEN
from partreduce.schedulers import registry
from partreduce.schedulers.rules.algebra import compose, interleave, refine, repeat
from partreduce.schedulers.rules.prague import figure_10_rule
from partreduce.topo.arithmetic.whole_numbers import (
    ceil_log,
    divisors,
    fewest_factors,
    prime_factors,
    smallest_prime_factor,
)
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.rule import Block, RuleView
from partreduce.topo.strategies import RulePhases, Static


def matrices(schedule):
    identity = np.eye(schedule.num_workers)
    return [schedule.phase(t).apply(identity) for t in range(schedule.period)]


def contraction(ws):
    product = np.eye(len(ws[0]))
    for w in ws:
        product = w @ product
    return np.linalg.norm(product - 1 / len(product), 2)


def radius(ws):
    product = np.eye(len(ws[0]))
    for w in ws:
        product = w @ product
    return np.abs(np.linalg.eigvals(product - 1 / len(product))).max()


def consensus_distance(ws):
    n = len(ws[0])
    off = np.eye(n) - 1 / n
    sigma, values = np.zeros((n, n)), []
    for _ in range(400):
        values = []
        for w in ws:
            sigma = w @ (sigma + off) @ w.T
            values.append(np.trace(sigma) / n)
    return np.mean(values)


def drift(ws, covariance):
    n = len(ws[0])
    pushed, values = np.zeros((n, n)), []
    for _ in range(300):
        values = []
        for w in ws:
            pushed = w @ (pushed + np.eye(n) - 1 / n)
            values.append(np.trace(pushed @ covariance @ pushed.T) / n)
    return np.mean(values)


@pytest.mark.parametrize("nodes", [2, 4, 6, 8, 16])
def test_figure_10_golden_figures(nodes):
    ws = matrices(registry.build("prague-figure-10", Cluster.regular(nodes, 4)))
    golden = GOLDEN["prague_figure_10"]
    assert contraction(ws) == pytest.approx(golden["contraction"][str(nodes)], abs=1e-9)
    assert radius(ws) == pytest.approx(float(Fraction(golden["spectral_radius_of_period"][str(nodes)])), abs=1e-9)
    assert consensus_distance(ws) == pytest.approx(float(Fraction(golden["disagreement"][str(nodes)])), abs=1e-9)


@pytest.mark.parametrize("nodes", [2, 4, 10, 250_000])
def test_figure_10_is_the_published_one_for_four_workers_and_even_nodes(nodes):
    rule = figure_10_rule(nodes, 4)
    everyone = (0, 1) if nodes > 2 else (0,)
    assert rule.node_radices == ((2, nodes // 2) if nodes > 2 else (2,))
    assert rule.phases == (
        (Block((0,), everyone), Block((2, 3))),
        (Block((0, 1, 2, 3)),),
        (Block((0, 3)), Block((1,), (0,))),
        (Block((0, 1, 2, 3)),),
    )


@pytest.mark.parametrize("nodes", range(1, 12))
@pytest.mark.parametrize("size", range(2, 9))
def test_figure_10_is_connected_for_any_size(nodes, size):
    ws = matrices(registry.build("prague-figure-10", Cluster.regular(nodes, size)))
    assert contraction(ws) < 0.95


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_node_then_all_matches_golden_consensus_distance(every):
    schedule = registry.build("node-then-all", Cluster.parse("4x4"), node_rounds=every)
    ws = matrices(schedule)
    assert contraction(ws) == pytest.approx(0, abs=1e-12)
    if every == 3:
        assert consensus_distance(ws) == pytest.approx(
            GOLDEN["worked_example_16_workers"]["ms_per_step_and_disagreement"]["node_x3_then_all"][1], abs=1e-9
        )


@pytest.mark.parametrize(
    ("key", "name", "parameters"),
    [
        ("pairs_pairs_all", "pairs-pairs-all", {}),
        ("node_x3_then_all", "node-then-all", {"node_rounds": 3}),
        ("node_x7_then_all", "node-then-all", {"node_rounds": 7}),
        ("node_x15_then_all", "node-then-all", {"node_rounds": 15}),
        ("prague_figure_10", "prague-figure-10", {}),
    ],
)
def test_golden_drift(key, name, parameters):
    ws = matrices(registry.build(name, Cluster.parse("4x4"), **parameters))
    worker, node = GOLDEN["drift_16_workers_4_nodes"][key]
    assert drift(ws, np.eye(16)) == pytest.approx(worker, abs=5e-4)
    assert drift(ws, np.kron(np.eye(4), np.ones((4, 4)))) == pytest.approx(node, abs=5e-4)


@pytest.mark.parametrize("text", ["2x4", "3x4", "5x3", "1x8", "7x1", "3,3,2", "6x6", "12x5"])
def test_hyper_cuboid_is_exact(text):
    assert contraction(matrices(registry.build("hyper-cuboid", Cluster.parse(text)))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("size", range(2, 65))
@pytest.mark.parametrize("limit", [2, 3, 4, 8])
def test_hyper_cuboid_is_exact_whenever_primes_allow(size, limit):
    cluster = Cluster.regular(1, size)
    if max(prime_factors(size)) > limit:
        assert registry.entry("hyper-cuboid").why_not(cluster, max_group=limit) is not None
        return
    if limit > size:
        return
    schedule = registry.build("hyper-cuboid", cluster, max_group=limit)
    assert all(phase_size <= limit for t in range(schedule.period) for phase_size in schedule.phase(t).sizes)
    assert contraction(matrices(schedule)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("text", ["2x2", "4x4", "6x4", "3x2"])
def test_node_digits_and_hierarchy_are_exact_on_equal_nodes(text):
    for name in ("node-digits", "hierarchy"):
        assert contraction(matrices(registry.build(name, Cluster.parse(text)))) == pytest.approx(0, abs=1e-12)


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


def _rule(radices, seed):
    rng = np.random.default_rng(seed)
    phases = []
    for _ in range(int(rng.integers(1, 4))):
        roles = rng.integers(0, 3, size=4)
        digits = range(len(radices))
        blocks = [
            Block(tuple(np.flatnonzero(roles == role).tolist()), tuple(d for d in digits if rng.random() < 0.5))
            for role in range(2)
            if (roles == role).any()
        ]
        phases.append(tuple(blocks))
    return RulePhases(tuple(radices), tuple(phases))


FACTORINGS = st.sampled_from([(12,), (2, 6), (6, 2), (2, 2, 3), (3, 4), (4, 3), (2, 3, 2)])


@given(FACTORINGS, FACTORINGS, st.integers(0, 1000))
def test_compose_keeps_the_groups_of_both_rules(first, second, seed):
    a, b = _rule(first, seed), _rule(second, seed + 1)
    cluster = Cluster.regular(12, 4)
    strides = sorted({prod(r[d:]) for r in (first, second) for d in range(len(r) + 1)})
    if any(larger % smaller for smaller, larger in pairwise(strides)):
        with pytest.raises(ScheduleError, match="no common refinement"):
            compose(a, b)
        return
    joined = compose(a, b)
    separate = [
        RuleView(rule.node_radices, (phase,), cluster.workers_per_node).expand(0)
        for rule in (a, b)
        for phase in rule.phases
    ]
    assert [
        RuleView(joined.node_radices, (phase,), cluster.workers_per_node).expand(0) for phase in joined.phases
    ] == separate
    Static(phases=joined).check(cluster)


@given(FACTORINGS, st.integers(0, 1000), st.integers(1, 4))
def test_repeat_and_interleave(radices, seed, times):
    a, b = _rule(radices, seed), _rule(radices, seed + 1)
    assert repeat(a, times).phases == a.phases * times
    mixed = interleave(a, b)
    assert mixed.phases[0::2] == a.phases * (len(mixed.phases) // 2 // len(a.phases))
    assert mixed.phases[1::2] == b.phases * (len(mixed.phases) // 2 // len(b.phases))


def test_algebra_refuses_what_does_not_fit():
    a = RulePhases((2, 2), ((Block((0,), (0,)),),))
    with pytest.raises(ScheduleError, match="different numbers of nodes"):
        compose(a, RulePhases((3,), ()))
    with pytest.raises(ScheduleError, match="at least once"):
        repeat(a, 0)
    with pytest.raises(ScheduleError, match="do not refine"):
        refine(RulePhases((2, 3), ()), (3, 2))
    with pytest.raises(ScheduleError, match="at least 1"):
        compose()
