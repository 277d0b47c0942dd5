"""The class path against dense NumPy on random rules, and the laws that metrics obey."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.drawn_schedules import RELAXATION, random_rule
from helpers.figures_by_definition import spectrum_of
from partreduce import Cluster, Schedule, metrics
from partreduce.errors import InputError, ScheduleError, UndecidedError
from partreduce.strategies import Block, Group, Phase
from partreduce.topo.metrics import consensus_distance, contraction, drift, exact_consensus_distance
from partreduce.topo.metrics.decomposition import dense_sectors, merged_classes, rule_and_worker_steps, rule_sectors
from partreduce.topo.metrics.sectors import contraction_of, contraction_per_start
from partreduce.topo.mixing import Operators, exact_product, period_product
from partreduce.topo.strategies import (
    AllReduce,
    Averaging,
    DelayedAveraging,
    GroupPhases,
    RulePhases,
    StaticGroups,
    Synchronous,
)
from partreduce.types import MetricLimits


@pytest.mark.parametrize("seed", range(5))
def test_class_matrices_hold_the_whole_spectrum(seed):
    """Traces of all powers of the period product, class by class, in fractions."""
    rng = np.random.default_rng(3000 + seed)
    schedule = random_rule(rng)
    n = schedule.num_workers
    product = period_product(schedule)
    sectors = rule_sectors(schedule)
    assert sectors is not None
    values, counts = spectrum_of(sectors)
    assert int(counts.sum()) == n
    for power in (1, 2, 3):
        expected = np.trace(np.linalg.matrix_power(product, power))
        assert (counts * values**power).sum() == pytest.approx(expected, abs=1e-9)
    rule, _ = rule_and_worker_steps(schedule)
    classes = merged_classes(rule)
    assert sum(c.multiplicity for c in classes) == schedule.cluster.num_nodes
    operators = Operators.of_rule(rule, [c.digits for c in classes])
    for t in range(schedule.period):
        whole = sum(row[i] for i, row in enumerate(exact_product([schedule.phase(t)]).rows()))
        parts = sum(c.multiplicity * operators.exact(t, which).trace() for which, c in enumerate(classes))
        assert whole == parts


def test_classes_are_merged_by_the_digit_sets_they_meet():
    radices = (2,) * 19
    phases = ((Block((0,), tuple(range(10))), Block((1,), tuple(range(10, 19)))), (Block((0, 1)),))
    schedule = Schedule("many digits", Cluster.regular(2**19, 2), StaticGroups(phases=RulePhases(radices, phases)))
    rule = schedule.rule()
    assert rule is not None
    classes = merged_classes(rule)
    assert len(classes) == 4
    assert sum(c.multiplicity for c in classes) == 2**19
    assert contraction(schedule).value is not None


def test_too_many_classes_are_refused_in_one_line():
    phases = (tuple(Block((r,), (r,)) for r in range(16)),)
    schedule = Schedule("x", Cluster.regular(2**16, 16), StaticGroups(phases=RulePhases((2,) * 16, phases)))
    with pytest.raises(UndecidedError, match="character classes"):
        contraction(schedule)
    found = metrics(schedule)
    assert found.contraction.value is None
    assert "character classes" in found.contraction.how


def test_many_local_ranks_are_merged():
    size = 100_000
    phases = (
        (Block(tuple(range(size // 2))), Block(tuple(range(size // 2, size)))),
        (Block(tuple(range(size)), (0,)),),
    )
    schedule = Schedule("fat nodes", Cluster.regular(10, size), StaticGroups(phases=RulePhases((10,), phases)))
    assert contraction(schedule).value == 0
    after_halves = (10 * 2 - 1) / (10 * size)
    assert consensus_distance(schedule).value == pytest.approx(after_halves / 2, rel=1e-9)


def test_steps_per_round_that_differs_between_nodes_falls_back_to_dense():
    steps_per_round = (1, 1, 1, 1, 5, 1, 1, 1)
    schedule = Schedule("slow worker", Cluster.parse("2x4"), AllReduce(steps_per_round=steps_per_round))
    assert rule_sectors(schedule) is None
    found = consensus_distance(schedule)
    assert "dense" in found.how
    # Nothing is left after a round; inside one, the slow worker is the one that is busy all the time.
    steps = np.array([[s * p // 5 for p in steps_per_round] for s in range(1, 5)])
    assert found.value == pytest.approx((1 - 1 / 8) * steps.mean(axis=1).sum() / 5, rel=1e-12)


def test_overlapping_blocks_are_refused():
    phases = ((Block((0, 1)), Block((1, 2))),)
    schedule = Schedule("is_delayed", Cluster.parse("2x3"), StaticGroups(phases=RulePhases((2,), phases)))
    with pytest.raises(ScheduleError, match="share a local rank"):
        contraction(schedule)
    assert metrics(schedule).consensus_distance.value is None
    explicit = StaticGroups(phases=GroupPhases((Phase.from_groups(4, [(0, 1), (1, 2)]),)))
    assert "worker 1" in metrics(Schedule("o", Cluster.parse("4x1"), explicit)).contraction.how


def test_exact_matrices_refuse_what_is_no_rule():
    schedule = Schedule("e", Cluster.parse("4x1"), StaticGroups(phases=GroupPhases((Phase.from_groups(4, [(0, 1)]),))))
    with pytest.raises(InputError, match="no rule"):
        exact_consensus_distance(schedule)


@st.composite
def explicit_schedules(draw, relaxed=True):
    n = draw(st.integers(2, 12))
    phases = []
    for _ in range(draw(st.integers(1, 4))):
        labels = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
        factors = {k: draw(st.sampled_from(RELAXATION if relaxed else [Fraction(1)])) for k in range(4)}
        phases.append(Phase.from_labels(labels, factors))
    steps_per_round = draw(st.one_of(st.integers(1, 3), st.tuples(*[st.integers(1, 4)] * n)))
    strategy = StaticGroups(
        phases=GroupPhases(tuple(phases)),
        steps_per_round=steps_per_round,
        sync=DelayedAveraging() if draw(st.booleans()) else Synchronous(),
    )
    return Schedule("h", Cluster.regular(n, 1), strategy)


FEW = settings(max_examples=20)


@FEW
@given(explicit_schedules())
def test_contraction_is_at_most_1(schedule):
    found = contraction(schedule).value
    assert found is not None
    assert found <= 1 + 1e-12


@FEW
@given(explicit_schedules(), st.randoms(use_true_random=False))
def test_metrics_do_not_depend_on_the_numbering_of_workers(schedule, random):
    n, strategy = schedule.num_workers, schedule.strategy
    assert isinstance(strategy, StaticGroups)
    order = list(range(n))
    random.shuffle(order)  # type: ignore[attr-defined]
    phases = tuple(
        Phase.from_groups(n, [Group(tuple(order[w] for w in group.members), group.relaxation) for group in phase])
        for phase in strategy.phases.phases
    )
    steps_per_round = schedule.worker_steps().copy()
    steps_per_round[order] = schedule.worker_steps()
    other = Schedule(
        "p",
        schedule.cluster,
        StaticGroups(phases=GroupPhases(phases), steps_per_round=tuple(steps_per_round.tolist()), sync=strategy.sync),
    )
    for metric in (contraction, consensus_distance, lambda s: drift(s, "worker")):
        a, b = metric(schedule).value, metric(other).value
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


@FEW
@given(explicit_schedules())
def test_an_allreduce_phase_makes_contraction_0(schedule):
    n, strategy = schedule.num_workers, schedule.strategy
    assert isinstance(strategy, StaticGroups)
    everybody = Phase.from_groups(n, [range(n)])
    phases = (*strategy.phases.phases, everybody)
    assert contraction(Schedule("a", schedule.cluster, StaticGroups(phases=GroupPhases(phases)))).value == 0


@FEW
@given(explicit_schedules(relaxed=False))
def test_relax_1_is_the_default(schedule):
    strategy = schedule.strategy
    assert isinstance(strategy, StaticGroups)
    spelled = tuple(Phase(p.num_workers, p.members, p.offsets, (Fraction(1),) * len(p)) for p in strategy.phases.phases)
    other = Schedule(
        "r",
        schedule.cluster,
        StaticGroups(phases=GroupPhases(spelled), steps_per_round=strategy.steps_per_round, sync=strategy.sync),
    )
    assert contraction(other).value == pytest.approx(contraction(schedule).value, abs=1e-14)
    assert consensus_distance(other).value == pytest.approx(consensus_distance(schedule).value, rel=1e-12)


@FEW
@given(explicit_schedules(), st.integers(0, 3))
def test_prologue_changes_no_figure(schedule, prologue):
    strategy = schedule.strategy
    assert isinstance(strategy, StaticGroups)
    other = StaticGroups(
        phases=strategy.phases, steps_per_round=strategy.steps_per_round, sync=strategy.sync, prologue=prologue
    )
    before, after = metrics(schedule), metrics(Schedule("p", schedule.cluster, other))
    assert before.to_json() == after.to_json()


@FEW
@given(explicit_schedules())
def test_radius_is_at_most_the_least_contraction_of_any_start(schedule):
    sectors = dense_sectors(schedule)
    starts = contraction_per_start(sectors)
    assert starts[0] == contraction_of(sectors)
    assert sectors.radius <= min(starts) + 2e-4


@pytest.mark.parametrize("seed", range(3))
def test_consensus_distance_and_drift_equal_a_simulation(seed):
    """Run the recursion itself on many independent copies: the metric lies within 5 standard errors."""
    rng = np.random.default_rng(4000 + seed)
    schedule = random_rule(rng)
    while consensus_distance(schedule).value in (0.0, math.inf) or contraction_of(dense_sectors(schedule)) > 0.95:
        schedule = random_rule(rng)
    strategy = schedule.strategy
    assert isinstance(strategy, StaticGroups)
    copies, n, period = 4000, schedule.num_workers, schedule.period
    worker_steps, instants = schedule.worker_steps(), int(schedule.worker_steps().max())
    x = np.zeros((n, copies))
    push = rng.standard_normal((n, copies))
    z = np.zeros((n, copies))
    squares = {"noise": np.zeros(copies), "push": np.zeros(copies)}
    warm, last = 60 * period, 64 * period
    for round_ in range(last):
        phase = schedule.phase(round_)
        scale = np.ones(n)
        if strategy.averaging is Averaging.STEP_NORMALIZED:
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
        if strategy.is_delayed:
            x, z = phase.apply(x) + noise, phase.apply(z) + moved
        else:
            x, z = phase.apply(x + noise), phase.apply(z + moved)
        if round_ >= warm:
            squares["noise"] += x.var(axis=0)
            squares["push"] += z.var(axis=0)
    for name, metric in (("noise", consensus_distance(schedule)), ("push", drift(schedule, "worker"))):
        samples = squares[name] / ((last - warm) * instants)
        error = samples.std() / math.sqrt(copies)
        assert abs(samples.mean() - metric.value) < 5 * error, name


def test_limits_choose_the_method():
    labels = np.arange(64).reshape(8, 8)
    phases = tuple(Phase.from_labels(a.reshape(-1)) for a in (labels // 8, labels % 8))
    schedule = Schedule("grid", Cluster.parse("8x8"), StaticGroups(phases=GroupPhases(phases)))
    assert "dense" in contraction(schedule).how
    assert "svds" in contraction(schedule, limit=MetricLimits(dense_workers=10)).how
