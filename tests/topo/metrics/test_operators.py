"""Operators and the metrics that are made of them against dense floats, which the test writes down by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from helpers.drawn_schedules import random_allreduce, random_graph, random_groups, random_rule
from helpers.figures_by_definition import metrics_of, outer_radius_of, rounds_of
from partreduce.topo.metrics import MetricLimits, contraction, exact_consensus_distance, metrics
from partreduce.topo.metrics.decomposition import dense_sectors, merged_classes, rule_sectors
from partreduce.topo.metrics.sectors import Sectors, contraction_of
from partreduce.topo.metrics.stability import outer_radius
from partreduce.topo.metrics.steady_state import consensus_distance_of, drift_of
from partreduce.topo.mixing import Operators, exact_product, period_product
from partreduce.topo.strategies import Averaging, Synchronous
from partreduce.topo.strategies.payload import OuterParams, OuterStep

KINDS = {"rule": random_rule, "groups": random_groups, "graph": random_graph, "allreduce": random_allreduce}
LARGE = MetricLimits(dense_workers=1)


def check(schedule, expected):
    """All forms of the rounds, and all metrics; whether the schedule converges."""
    rounds = [matrix for matrix, _ in rounds_of(schedule)]
    n, steps = schedule.num_workers, schedule.steps()
    operators = Operators(steps)
    assert operators.matrices()[:, 0] == pytest.approx(np.array(rounds), abs=1e-13)
    for start in reversed(range(len(rounds))):
        product = np.eye(n)
        for matrix in [*rounds[start:], *rounds[:start]]:
            product = matrix @ product
        assert period_product(schedule, start) == pytest.approx(product, abs=1e-12)
        assert exact_product([*steps[start:], *steps[:start]]).floats() == pytest.approx(product, abs=1e-12)
        lazy = operators.period_operator(start)
        assert lazy @ np.eye(n) == pytest.approx(product, abs=1e-12)
        assert lazy.T @ np.eye(n) == pytest.approx(product.T, abs=1e-12)
    found = contraction(schedule, limit=LARGE)
    assert found.value == pytest.approx(expected["contraction"], rel=1e-6, abs=1e-12)
    found = metrics(schedule)
    assert found.contraction.value == pytest.approx(expected["contraction"], abs=1e-10)
    by_class = rule_sectors(schedule)
    assert (by_class is not None) == (schedule.rule(by_node=True) is not None and _has_equal_nodes(schedule))
    for sectors in filter(None, (by_class, dense_sectors(schedule))):
        check_sectors(sectors, expected, keeps_mean=bool(np.allclose(product.sum(axis=0), 1)))
    converges = "consensus_distance" in expected
    for name, value in (
        ("consensus_distance", found.consensus_distance),
        ("worker", found.drift.worker),
        ("node", found.drift.node),
    ):
        assert value.value == pytest.approx(expected.get(name, math.inf), rel=1e-8, abs=1e-12)
    return converges


def check_sectors(sectors: Sectors, expected, *, keeps_mean):
    if keeps_mean:  # otherwise it is not the norm of P − J
        assert contraction_of(sectors) == pytest.approx(expected["contraction"], abs=1e-10)
    # A defective eigenvalue is only found to the root of rounding, by NumPy as well as by us.
    assert sectors.radius == pytest.approx(expected["radius"], abs=2e-4)
    for name, found in (
        ("consensus_distance", consensus_distance_of(sectors)),
        ("worker", drift_of(sectors, "worker")),
        ("node", drift_of(sectors, "node")),
    ):
        assert found == pytest.approx(expected.get(name, math.inf), rel=1e-8, abs=1e-12)


def _has_equal_nodes(schedule):
    steps = schedule.worker_steps().reshape(schedule.cluster.num_nodes, -1)
    return bool((steps == steps[0]).all())


def check_classes(schedule, expected):
    """A rule's classes in fractions, in floats, and with one place for several local ranks."""
    if schedule.cluster.workers_per_node <= 4:
        exact = exact_consensus_distance(schedule)
        distance = expected.get("consensus_distance", math.inf)
        assert (math.inf if exact is None else float(exact)) == pytest.approx(distance, rel=1e-8, abs=1e-12)
    rule = schedule.rule(by_node=True)
    assert rule is not None
    classes = [merged.digits for merged in merged_classes(rule)]
    ranks = Operators.of_rule(rule, classes)
    last = tuple(range(rule.workers_per_node))
    alike = [r for r in last if all((r in b.local) == (last[-1] in b.local) for p in rule.phases for b in p)]
    places = [(r,) for r in last if r not in alike] + [tuple(alike)]
    lumped = Operators.of_rule(rule, classes, places)
    roots = np.sqrt([len(place) for place in places])
    spread = np.zeros((len(last), len(places)))
    for index, place in enumerate(places):
        spread[list(place), index] = 1
    floats, lumped_floats = ranks.matrices(), lumped.matrices()
    for t in range(len(rule.phases)):
        for which in range(len(classes)):
            exact, small = ranks.exact(t, which).floats(), lumped.exact(t, which).floats()
            assert floats[t, which] == pytest.approx(exact, abs=1e-14)
            assert lumped_floats[t, which] == pytest.approx(small * roots[:, None] / roots, abs=1e-14)
            assert exact @ spread == pytest.approx(spread @ small, abs=1e-14)


def campaign(kind, seed, count):
    """`count` schedules of a kind; how many of them converge."""
    rng, converging = np.random.default_rng(seed), 0
    for _ in range(count):
        schedule = KINDS[kind](rng)
        expected = metrics_of(schedule)
        converging += check(schedule, expected)
        if kind == "rule":
            check_classes(schedule, expected)
    return converging


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_and_metrics_of_random_schedules_are_those_of_dense_floats(kind, seed):
    count = 40
    assert count // 10 <= campaign(kind, 1000 + seed, count) <= count


@pytest.mark.parametrize("kind", ["rule", "groups"])
def test_outer_steps_of_random_groups_are_those_carried_out_worker_by_worker(kind):
    rng = np.random.default_rng(7)
    for _ in range(40):
        schedule = KINDS[kind](rng)
        lr, momentum = Fraction(int(rng.integers(1, 8)), 4), Fraction(int(rng.integers(1, 4)), 4)
        setting = {"lr": lr, "momentum": momentum, "nesterov": bool(rng.random() < 0.5)}
        schedule = with_outer(schedule, OuterStep(**setting, outer_params=OuterParams.PER_WORKER))
        # A defective eigenvalue is only found to the root of rounding.
        assert outer_radius(schedule) == pytest.approx(outer_radius_of(schedule), abs=2e-4)


def with_outer(schedule, outer):
    """The schedule with outer steps from own outer parameters, which groups make without a relaxation."""
    strategy = schedule.strategy
    phases = strategy.phases
    if hasattr(phases, "node_radices"):
        plain = replace(
            phases, phases=tuple(tuple(replace(b, relaxation=Fraction(1)) for b in p) for p in phases.phases)
        )
    else:
        plain = replace(phases, phases=tuple(replace(p, relaxation=None) for p in phases.phases))
    payload = replace(strategy.payload, outer=outer)
    changed = replace(
        strategy, phases=plain, payload=payload, steps_per_round=2, sync=Synchronous(), averaging=Averaging.MEAN
    )
    return replace(schedule, strategy=changed)
