"""Rule algebra and rule families: the published rules, generalizations, laws of the algebra."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partreduce.schedulers import registry
from partreduce.schedulers.rules.algebra import compose, interleave, refine, repeat
from partreduce.schedulers.rules.nested import figure_10_rule
from partreduce.topo.arithmetic.whole_numbers import (
    ceil_log,
    divisors,
    fewest_factors,
    prime_factors,
    smallest_prime_factor,
)
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.metrics import contraction
from partreduce.topo.rule import Block, RuleView
from partreduce.topo.strategies import RulePhases, StaticGroups


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
def test_a_period_is_exact(name, text):
    assert contraction(registry.build(name, Cluster.parse(text))).value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("limit", [2, 3, 4, 8])
def test_hyper_cuboid_is_exact_whenever_primes_allow(limit):
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
    StaticGroups(phases=joined).check(cluster)


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
