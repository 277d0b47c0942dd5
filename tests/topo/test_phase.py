"""Phases and rules: all constructors agree, and their mixing matrices."""

from fractions import Fraction
from itertools import chain, combinations, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.figures_by_definition import rounds_of
from helpers.refusals import check_error
from helpers.small import of_phases
from partreduce import Cluster, Schedule
from partreduce.errors import InputError, ScheduleError
from partreduce.strategies import Block, Group, GroupPhases, NeighborAveraging, Phase, Round, StaticGroups
from partreduce.topo.mixing import (
    Operators,
    exact_product,
    has_negative_entries,
    is_doubly_stochastic,
    mixing_matrix,
)
from partreduce.topo.rule import RuleView, check_rule, digit_of, group_of, nodes_of_group, representative, strides_of

properties = settings(max_examples=60)
relaxes = st.one_of(st.just(Fraction(1)), st.fractions(-2, 3, max_denominator=12))


@st.composite
def partitions(draw):
    """(labels, relaxation per label) of partitions with idle workers, up to 12 workers."""
    labels = draw(st.lists(st.integers(-2, 5), min_size=2, max_size=12))
    relaxed = [label for label in sorted(set(labels)) if label >= 0 and not draw(st.booleans())]
    return labels, {label: draw(relaxes) for label in relaxed}


def dense(step):
    """Return W of a phase or a round by its definition."""
    strategy = (
        NeighborAveraging(rounds=(step,)) if isinstance(step, Round) else StaticGroups(phases=GroupPhases((step,)))
    )
    ((matrix, _),) = rounds_of(Schedule("s", Cluster.regular(1, step.num_workers), strategy))
    return matrix


def groups_of(labels, relaxation):
    """Return groups of equal labels; negative and single labels are idle."""
    members = {}
    for worker, label in enumerate(labels):
        if label >= 0:
            members.setdefault(label, []).append(worker)
    return [
        Group(tuple(workers), relaxation.get(label, Fraction(1)))
        for label, workers in members.items()
        if len(workers) >= 2
    ]


@properties
@given(partitions(), st.randoms(use_true_random=False))
def test_from_labels_equals_from_groups_in_any_order(labels_and_relaxation, random):
    labels, relaxation = labels_and_relaxation
    groups = groups_of(labels, relaxation)
    shuffled = [Group(tuple(random.sample(g.members, len(g.members))), g.relaxation) for g in groups]
    random.shuffle(shuffled)
    phase = Phase.from_labels(labels, relaxation)
    for other in (Phase.from_groups(len(labels), groups), Phase.from_groups(len(labels), shuffled)):
        assert other == phase
        assert hash(other) == hash(phase)
    assert list(phase) == sorted(groups, key=lambda group: group.members)
    assert len(phase) == len(groups)
    assert phase.sizes.tolist() == [len(group.members) for group in phase]


@properties
@given(partitions())
def test_labels_invert_from_labels(labels_and_relaxation):
    labels, relaxation = labels_and_relaxation
    assert Phase.from_labels(labels).relaxation is None
    phase = Phase.from_labels(labels, relaxation)
    found = phase.labels()
    factors = dict(enumerate(phase.relaxation or ()))
    assert Phase.from_labels(found, factors) == phase
    for worker, label in enumerate(found.tolist()):
        assert (worker in phase[label].members) if label >= 0 else all(worker not in g.members for g in phase)


@properties
@given(partitions(), st.integers(0, 2**32 - 1), st.sampled_from([(), (3,), (2, 2)]))
def test_apply_equals_the_dense_matrix(labels_and_relaxation, seed, shape):
    phase = Phase.from_labels(*labels_and_relaxation)
    values = np.random.default_rng(seed).normal(size=(phase.num_workers, *shape))
    before = values.copy()
    expected = np.tensordot(dense(phase), values, axes=1)
    np.testing.assert_allclose(phase.apply(values), expected, atol=1e-12)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    ("groups", "words"),
    [([[0]], "at least 2 workers"), ([[]], "at least 2 workers"), ([[0, 0]], "stands twice"),
     ([[0, 4]], "ranks are 0..3"), ([[-1, 0]], "ranks are 0..3")],
)  # fmt: skip
def test_invalid_groups_are_rejected(groups, words):
    check_error(ScheduleError, words, Phase.from_groups, 4, groups)


def test_overlapping_groups_cannot_be_applied():
    phase = Phase.from_groups(4, [[0, 1], [1, 2]])
    assert [group.members for group in phase] == [(0, 1), (1, 2)]
    for use in (phase.labels, lambda: phase.apply(np.zeros(4))):
        check_error(ScheduleError, "worker 1 stands in 2 groups", use)


def test_empty_phase_and_empty_labels():
    phase = Phase.from_groups(3, [])
    assert phase == Phase.from_labels([-1, -1, -1]) == Phase.from_labels([0, 1, 2])
    assert len(phase) == 0
    np.testing.assert_array_equal(phase.apply(np.ones(3)), np.ones(3))
    assert phase.labels().tolist() == [-1, -1, -1]


def test_phases_are_immutable():
    phase = Phase.from_groups(4, [[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="read-only"):
        phase.members[0] = 3
    assert phase != Phase.from_groups(5, [[0, 1], [2, 3]])
    assert phase != "phase"


def test_groups_have_a_readable_string():
    assert str(Group((0, 4))) == "{0,4}"
    assert str(Group((0, 4), Fraction(4, 3))) == "{0,4} relaxation 4/3"


# Rules: digits, and the group of a worker against the expansion of the phase


RADICES = [(), (2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (2, 2, 2), (4, 2), (3, 3)]


def subsets(items):
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def partial_partitions(items):
    """Yield every choice of disjoint, non-empty sets of items."""
    if not items:
        yield []
        return
    for rest in partial_partitions(items[1:]):
        yield rest
        yield [(items[0],), *rest]
        for index, part in enumerate(rest):
            yield [*rest[:index], (items[0], *part), *rest[index + 1 :]]


def rule_phases(size, digits):
    """Yield every rule phase over `size` local ranks and `digits` digits."""
    for parts in partial_partitions(tuple(range(size))):
        for across in product(list(subsets(range(digits))), repeat=len(parts)):
            yield tuple(Block(local, digits_of) for local, digits_of in zip(parts, across, strict=True))


@pytest.mark.parametrize("radices", RADICES, ids=str)
def test_digits_and_strides_are_positional_notation(radices):
    strides = strides_of(radices)
    for node, digits in enumerate(product(*map(range, radices))):
        assert tuple(digit_of(node, s, r) for s, r in zip(strides, radices, strict=True)) == digits
        assert sum(s * d for s, d in zip(strides, digits, strict=True)) == node


@pytest.mark.parametrize("radices", RADICES, ids=str)
def test_nodes_of_a_group_agree_on_the_other_digits(radices):
    every = list(product(*map(range, radices)))
    for across in subsets(range(len(radices))):
        kept = [d for d in range(len(radices)) if d not in across]
        for node, digits in enumerate(every):
            expected = tuple(m for m, other in enumerate(every) if all(other[d] == digits[d] for d in kept))
            assert nodes_of_group(node, radices, across) == expected
            assert nodes_of_group(node, radices, across[::-1]) == expected
            assert representative(node, radices, across) == expected[0]


@pytest.mark.parametrize(
    ("size", "radices"),
    [(size, radices) for size in (1, 2, 3) for radices in RADICES if size < 3 or len(radices) < 3],
    ids=str,
)
def test_group_of_a_worker_is_in_the_expansion(size, radices):
    """Exhaustive over every rule phase of every small cluster."""
    cluster = Cluster.regular(prod(radices), size)
    for phase in rule_phases(size, len(radices)):
        groups = {group.members: group for group in RuleView(radices, (phase,), cluster.workers_per_node).expand(0)}
        mine = [group_of(worker, phase, size, radices) for worker in range(cluster.num_workers)]
        for worker, group in enumerate(mine):
            assert group is None or worker in group.members
        assert {group.members: group for group in mine if group} == groups
        assert sum(map(len, groups)) == sum(group is not None for group in mine)


def test_overlapping_blocks_are_rejected_by_expand_only():
    phase, cluster = (Block((0, 1)), Block((1, 2))), Cluster.regular(2, 3)
    check_rule([phase], cluster, (2,))
    check_error(ScheduleError, "share a local rank", RuleView((2,), (phase,), cluster.workers_per_node).expand, 0)


@pytest.mark.parametrize(("block", "radices", "words"), [
    (Block((0, 2)), (2, 2), r"phases\[0\]\[0\].local: local rank 2 is out of range"),
    (Block((-1,)), (2, 2), "local rank -1 is out of range"),
    (Block((0, 0)), (2, 2), "names a local rank twice"),
    (Block(()), (2, 2), "is empty"),
    (Block((0,), (2,)), (2, 2), "digit 2 is out of range"),
    (Block((0,), (1, 1)), (2, 2), "names a digit twice"),
    (Block((0,)), (2, 3), "their product is the number of nodes, 4"),
    (Block((0,)), (4, 1), "every radix is >= 2"),
])  # fmt: skip
def test_invalid_rules_are_rejected(block, radices, words):
    check_error(ScheduleError, words, check_rule, [(block,)], Cluster.regular(4, 2), radices)


def test_rules_need_equally_sized_nodes():
    check_error(ScheduleError, "equally sized nodes", check_rule, [], Cluster.parse("3,2"), (2,))
    check_error(ScheduleError, "equally sized nodes", check_rule, [], Cluster.irregular([[0, 2], [1, 3]]), (2,))


def test_group_of_needs_time_for_its_group_only():
    phase = (Block((0,), (0,)), Block((1, 3)))
    assert group_of(4 * 10**12, phase, 4, (2, 10**12)).members == (0, 4 * 10**12)
    assert group_of(4 * 10**12 + 3, phase, 4, (2, 10**12)).members == (4 * 10**12 + 1, 4 * 10**12 + 3)


def test_blocks_have_a_readable_string():
    assert str(Block((0, 3))) == "LW{0,3} inside each node"
    assert str(Block((1,), (0, 2), Fraction(4, 3))) == "LW{1} across digits {0,2} relaxation 4/3"


# All forms of mixing matrices agree, and rows and columns sum to 1


FACTORS = [Fraction(1), Fraction(1, 3), Fraction(4, 3), Fraction(7, 4), Fraction(2)]


@st.composite
def phases(draw, n=None):
    count = n or draw(st.integers(2, 10))
    labels = draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))
    return Phase.from_labels(labels, {k: draw(st.sampled_from(FACTORS)) for k in range(4)})


@st.composite
def rounds(draw, n=None):
    count = n or draw(st.integers(2, 8))
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=12))
    return Round.from_edges(count, [(i, j, Fraction(draw(st.integers(-2, 5)), 6)) for i, j in chosen])


@settings(max_examples=30)
@given(st.one_of(phases(), rounds()))
def test_dense_sparse_and_exact_matrices_agree(step):
    exact = exact_product([step]).rows()
    assert np.array(exact, dtype=float) == pytest.approx(dense(step), abs=1e-14)
    assert mixing_matrix(step) == pytest.approx(dense(step), abs=1e-14)
    assert Operators((step,)).period_operator() @ np.eye(step.num_workers) == pytest.approx(dense(step), abs=1e-14)
    assert all(sum(row) == 1 for row in exact)
    assert is_doubly_stochastic(step) == all(sum(column) == 1 for column in zip(*exact, strict=True))
    assert has_negative_entries(step) == any(value < 0 for row in exact for value in row)


def test_entries_are_negative_above_k_over_k_minus_1():
    for relaxation, negative in ((Fraction(3, 2), False), (Fraction(3, 2) + Fraction(1, 100), True)):
        phase = Phase.from_groups(4, [Group((0, 1, 2), relaxation)])
        assert has_negative_entries(phase) is negative


def test_period_is_applied_to_a_million_workers():
    n = 10**6
    ranks = np.arange(n, dtype=np.int32)
    phase = Phase.from_arrays(n, ranks, np.full(n // 4, 4))
    schedule = of_phases("big", Cluster.regular(n // 4, 4), (phase,))
    x = np.arange(n, dtype=float)
    assert (Operators(schedule.steps()).period_operator() @ x)[:4] == pytest.approx([1.5] * 4)


def test_overlapping_groups_and_large_matrices_are_rejected():
    phase = Phase.from_groups(4, [(0, 1), (1, 2)])
    of_steps = (lambda step: Operators((step,)), lambda step: exact_product([step]))
    for function in (mixing_matrix, is_doubly_stochastic, *of_steps):
        check_error(ScheduleError, "worker 1", function, phase)
    big = Phase.from_groups(30_000, [(0, 1)])
    check_error(InputError, "period_operator", mixing_matrix, big)
    check_error(InputError, "exact_consensus_distance", exact_product, [big])
