"""Operators and Fourier classes against dense NumPy on random schedules, and invariants of metrics."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.drawn_schedules import KINDS, draw_schedules, random_groups, random_rule
from helpers.figures_by_definition import metrics_of, outer_radius_of, rounds_of
from helpers.refusals import check_error
from helpers.small import of_groups, of_phases, of_rule
from partreduce import Cluster, Schedule, metrics
from partreduce.errors import InputError, ScheduleError, UndecidedError
from partreduce.strategies import Block, OuterParams, OuterStep, Phase, StaticGroups, Synchronous
from partreduce.topo.metrics import consensus_distance, contraction, exact_consensus_distance
from partreduce.topo.metrics.decomposition import dense_sectors, merged_classes, rule_sectors
from partreduce.topo.metrics.sectors import contraction_of
from partreduce.topo.metrics.stability import outer_radius
from partreduce.topo.metrics.steady_state import consensus_distance_of, drift_of
from partreduce.topo.mixing import Operators, exact_product, period_product
from partreduce.topo.strategies import AllReduce, Averaging, GroupPhases
from partreduce.types import MetricLimits


def test_classes_are_merged_by_averaged_digit_sets():
    radices = (2,) * 19
    phases = ((Block((0,), tuple(range(10))), Block((1,), tuple(range(10, 19)))), (Block((0, 1)),))
    schedule = of_rule("many digits", Cluster.regular(2**19, 2), radices, phases)
    rule = schedule.rule()
    assert rule is not None
    classes = merged_classes(rule)
    assert len(classes) == 4
    assert sum(c.multiplicity for c in classes) == 2**19
    assert contraction(schedule).value is not None


def test_too_many_classes_are_rejected_in_one_line():
    phases = (tuple(Block((r,), (r,)) for r in range(16)),)
    schedule = of_rule("x", Cluster.regular(2**16, 16), (2,) * 16, phases)
    check_error(UndecidedError, "character classes", contraction, schedule)
    found = metrics(schedule)
    assert found.contraction.value is None
    assert "character classes" in found.contraction.how


def test_many_local_ranks_are_merged():
    size = 100_000
    phases = (
        (Block(tuple(range(size // 2))), Block(tuple(range(size // 2, size)))),
        (Block(tuple(range(size)), (0,)),),
    )
    schedule = of_rule("fat nodes", Cluster.regular(10, size), (10,), phases)
    assert contraction(schedule).value == 0
    after_halves = (10 * 2 - 1) / (10 * size)
    assert consensus_distance(schedule).value == pytest.approx(after_halves / 2, rel=1e-9)


def test_unequal_steps_in_nodes_fall_back_to_dense():
    steps_per_round = (1, 1, 1, 1, 5, 1, 1, 1)
    schedule = Schedule("slow worker", Cluster.parse("2x4"), AllReduce(steps_per_round=steps_per_round))
    assert rule_sectors(schedule) is None
    found = consensus_distance(schedule)
    assert "dense" in found.how
    # The distance is 0 after a round; inside one, only the slow worker computes in every step.
    steps = np.array([[s * p // 5 for p in steps_per_round] for s in range(1, 5)])
    assert found.value == pytest.approx((1 - 1 / 8) * steps.mean(axis=1).sum() / 5, rel=1e-12)


def test_overlapping_blocks_are_rejected():
    phases = ((Block((0, 1)), Block((1, 2))),)
    schedule = of_rule("is_delayed", Cluster.parse("2x3"), (2,), phases)
    check_error(ScheduleError, "share a local rank", contraction, schedule)
    assert metrics(schedule).consensus_distance.value is None
    explicit = StaticGroups(phases=GroupPhases((Phase.from_groups(4, [(0, 1), (1, 2)]),)))
    assert "worker 1" in metrics(Schedule("o", Cluster.parse("4x1"), explicit)).contraction.how


def test_exact_consensus_distance_needs_a_rule():
    schedule = of_groups("e", Cluster.parse("4x1"), [(0, 1)])
    check_error(InputError, "no rule", exact_consensus_distance, schedule)


def alter(schedule, **members):
    return replace(schedule, strategy=replace(schedule.strategy, **members))


@settings(max_examples=20)
@given(draw_schedules(random_groups), st.integers(0, 3))
def test_prologue_changes_no_metric(schedule, prologue):
    before, after = metrics(schedule), metrics(alter(schedule, prologue=prologue))
    assert before.to_json() == after.to_json()


def is_for_simulation(schedule, late):
    """Return whether unequal, normalized steps are mixed by some group and the steady state is reached soon."""
    worker_steps, strategy = schedule.worker_steps(), schedule.strategy
    if len(set(worker_steps)) < 2 or strategy.is_delayed != late or strategy.averaging is Averaging.MEAN:
        return False
    groups = [list(group.members) for t in range(schedule.period) for group in schedule.phase(t)]
    is_scaled = any(len(set(worker_steps[group])) > 1 for group in groups)
    return is_scaled and 0 < contraction_of(dense_sectors(schedule)) < 0.95


@pytest.mark.parametrize("late", [False, True])
def test_reference_metrics_equal_a_simulation(late):
    """Simulate many independent copies of the recursion: the metrics are within 5 standard errors."""
    rng = np.random.default_rng(4000)
    schedule = next(one for one in iter(lambda: random_rule(rng), None) if is_for_simulation(one, late))
    expected = metrics_of(schedule)
    copies, n, period = 1500, schedule.num_workers, schedule.period
    worker_steps, instants = schedule.worker_steps(), int(schedule.worker_steps().max())
    x = np.zeros((n, copies))
    push = rng.standard_normal((n, copies))
    z = np.zeros((n, copies))
    squares = {"noise": np.zeros(copies), "push": np.zeros(copies)}
    warm, last = 60 * period, 64 * period
    for round_ in range(last):
        phase = schedule.phase(round_)
        scale = np.ones(n)
        for group in phase:
            members = list(group.members)
            scale[members] = worker_steps[members].mean() / worker_steps[members]
        noise, done = np.zeros((n, copies)), np.zeros(n, dtype=np.int64)
        for s in range(1, instants + 1):
            due = s * worker_steps // instants - done
            noise += np.sqrt(due)[:, None] * rng.standard_normal((n, copies))
            done += due
            if s < instants and round_ >= warm:
                squares["noise"] += (x + noise).var(axis=0)
                squares["push"] += (z + done[:, None] * push).var(axis=0)
        noise, moved = noise * scale[:, None], (worker_steps * scale)[:, None] * push
        if late:
            x, z = phase.apply(x) + noise, phase.apply(z) + moved
        else:
            x, z = phase.apply(x + noise), phase.apply(z + moved)
        if round_ >= warm:
            squares["noise"] += x.var(axis=0)
            squares["push"] += z.var(axis=0)
    for name, figure in (("noise", expected["consensus_distance"]), ("push", expected["worker"])):
        samples = squares[name] / ((last - warm) * instants)
        error = samples.std() / math.sqrt(copies)
        assert abs(samples.mean() - figure) < 5 * error, name


def test_limits_choose_the_method():
    labels = np.arange(64).reshape(8, 8)
    phases = tuple(Phase.from_labels(a.reshape(-1)) for a in (labels // 8, labels % 8))
    schedule = of_phases("grid", Cluster.parse("8x8"), phases)
    assert "dense" in contraction(schedule).how
    assert "svds" in contraction(schedule, limit=MetricLimits(dense_workers=10)).how


# Operators and their metrics against independent dense matrices


def check(schedule, expected):
    """Check all forms of the rounds and all metrics; return whether the schedule converges."""
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
    found = contraction(schedule, limit=MetricLimits(dense_workers=1))
    assert found.value == pytest.approx(expected["contraction"], rel=1e-6, abs=1e-12)
    found = metrics(schedule)
    assert found.contraction.value == pytest.approx(expected["contraction"], abs=1e-10)
    by_class, is_rule = rule_sectors(schedule), schedule.rule(by_node=True) is not None
    steps_of_nodes = schedule.worker_steps().reshape(schedule.cluster.num_nodes if is_rule else 1, -1)
    assert (by_class is not None) == (is_rule and bool((steps_of_nodes == steps_of_nodes[0]).all()))
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


def check_sectors(sectors, expected, *, keeps_mean):
    if keeps_mean:  # otherwise it is not the norm of P − J
        assert contraction_of(sectors) == pytest.approx(expected["contraction"], abs=1e-10)
    # NumPy also finds a defective eigenvalue only to the square root of the rounding error.
    assert sectors.radius == pytest.approx(expected["radius"], abs=2e-4)
    for name, found in (
        ("consensus_distance", consensus_distance_of(sectors)),
        ("worker", drift_of(sectors, "worker")),
        ("node", drift_of(sectors, "node")),
    ):
        assert found == pytest.approx(expected.get(name, math.inf), rel=1e-8, abs=1e-12)


def check_classes(schedule, expected):
    """Check a rule's classes in fractions, in floats, and with equal local ranks merged."""
    if schedule.cluster.workers_per_node <= 4:
        exact = exact_consensus_distance(schedule)
        distance = expected.get("consensus_distance", math.inf)
        assert (math.inf if exact is None else float(exact)) == pytest.approx(distance, rel=1e-8, abs=1e-12)
    rule = schedule.rule(by_node=True)
    classes = [merged.digits for merged in merged_classes(rule)]
    ranks = Operators.of_rule(rule, classes)
    last = tuple(range(rule.workers_per_node))
    equal = [r for r in last if all((r in b.local) == (last[-1] in b.local) for p in rule.phases for b in p)]
    places = [(r,) for r in last if r not in equal] + [tuple(equal)]
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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_random_rounds_and_metrics_equal_dense_floats(kind, seed):
    rng, converging = np.random.default_rng(1000 + seed), 0
    for _ in range(20):
        schedule = KINDS[kind](rng)
        expected = metrics_of(schedule)
        converging += check(schedule, expected)
        if kind == "rule":
            check_classes(schedule, expected)
    assert converging >= 2


@pytest.mark.parametrize("kind", ["rule", "groups"])
def test_outer_radius_of_random_groups_equals_per_worker_steps(kind):
    rng = np.random.default_rng(7)
    for _ in range(40):
        schedule = KINDS[kind](rng)
        lr, momentum = Fraction(int(rng.integers(1, 8)), 4), Fraction(int(rng.integers(1, 4)), 4)
        setting = {"lr": lr, "momentum": momentum, "nesterov": bool(rng.random() < 0.5)}
        schedule = with_outer(schedule, OuterStep(**setting, outer_params=OuterParams.PER_WORKER))
        # A defective eigenvalue is found only to the square root of the rounding error.
        assert outer_radius(schedule) == pytest.approx(outer_radius_of(schedule), abs=2e-4)


def with_outer(schedule, outer):
    """Return the schedule with per-worker outer steps, which exclude a relaxation."""
    strategy = schedule.strategy
    phases = strategy.phases
    if hasattr(phases, "node_radices"):
        plain = replace(
            phases, phases=tuple(tuple(replace(b, relaxation=Fraction(1)) for b in p) for p in phases.phases)
        )
    else:
        plain = replace(phases, phases=tuple(replace(p, relaxation=None) for p in phases.phases))
    payload = replace(strategy.payload, outer=outer)
    setting = {"steps_per_round": 2, "sync": Synchronous(), "averaging": Averaging.MEAN}
    return alter(schedule, phases=plain, payload=payload, **setting)
