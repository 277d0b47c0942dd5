"""Laws of group values: one phase, four ways to build it, one meaning."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partreduce.errors import ScheduleError
from partreduce.strategies import Group, Phase

laws = settings(max_examples=60)
relaxes = st.one_of(st.just(Fraction(1)), st.fractions(-2, 3, max_denominator=12))


@st.composite
def labeled(draw):
    """(labels, relaxation per label): every partition with skips of up to 12 workers."""
    labels = draw(st.lists(st.integers(-2, 5), min_size=2, max_size=12))
    return labels, {label: draw(relaxes) for label in sorted(set(labels)) if label >= 0}


def groups_of(labels, relaxation):
    """The plain meaning of labels: equal ones average together, negative and single ones skip."""
    members = {}
    for worker, label in enumerate(labels):
        if label >= 0:
            members.setdefault(label, []).append(worker)
    return [Group(tuple(workers), relaxation[label]) for label, workers in members.items() if len(workers) >= 2]


def dense(phase):
    """W as a matrix, from the definition x ← x + relaxation·(mean − x)."""
    result = np.eye(phase.num_workers)
    for group in phase:
        members = list(group.members)
        factor = float(group.relaxation)
        result[members, members] -= factor
        result[np.ix_(members, members)] += factor / len(members)
    return result


@laws
@given(labeled(), st.randoms(use_true_random=False))
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


@laws
@given(labeled())
def test_labels_are_the_inverse_of_from_labels(labels_and_relaxation):
    labels, relaxation = labels_and_relaxation
    phase = Phase.from_labels(labels, relaxation)
    found = phase.labels()
    factors = dict(enumerate(phase.relaxation or ()))
    assert Phase.from_labels(found, factors) == phase
    for worker, label in enumerate(found.tolist()):
        assert (worker in phase[label].members) if label >= 0 else all(worker not in g.members for g in phase)


@laws
@given(labeled(), st.integers(0, 2**32 - 1), st.sampled_from([(), (3,), (2, 2)]))
def test_apply_is_the_dense_matrix(labels_and_relaxation, seed, shape):
    phase = Phase.from_labels(*labels_and_relaxation)
    values = np.random.default_rng(seed).normal(size=(phase.num_workers, *shape))
    before = values.copy()
    expected = np.tensordot(dense(phase), values, axes=1)
    np.testing.assert_allclose(phase.apply(values), expected, atol=1e-12)
    np.testing.assert_array_equal(values, before)


@laws
@given(labeled())
def test_rows_and_columns_sum_to_one_and_the_mean_is_kept(labels_and_relaxation):
    phase = Phase.from_labels(*labels_and_relaxation)
    matrix = dense(phase)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
    values = np.arange(phase.num_workers, dtype=float)
    assert abs(phase.apply(values).mean() - values.mean()) < 1e-9


@laws
@given(labeled())
def test_plain_means_are_projections(labels_and_relaxation):
    phase = Phase.from_labels(labels_and_relaxation[0])
    assert phase.relaxation is None
    once = phase.apply(np.arange(phase.num_workers, dtype=float))
    np.testing.assert_allclose(phase.apply(once), once, atol=1e-12)


@pytest.mark.parametrize(
    ("groups", "words"),
    [([[0]], "at least 2 workers"), ([[]], "at least 2 workers"), ([[0, 0]], "stands twice"),
     ([[0, 4]], "ranks are 0..3"), ([[-1, 0]], "ranks are 0..3")],
)  # fmt: skip
def test_from_groups_refuses(groups, words):
    with pytest.raises(ScheduleError, match=words):
        Phase.from_groups(4, groups)


def test_overlapping_groups_exist_but_cannot_be_applied():
    phase = Phase.from_groups(4, [[0, 1], [1, 2]])
    assert [group.members for group in phase] == [(0, 1), (1, 2)]
    for use in (phase.labels, lambda: phase.apply(np.zeros(4))):
        with pytest.raises(ScheduleError, match="worker 1 stands in 2 groups"):
            use()


def test_empty_phase_and_empty_labels():
    phase = Phase.from_groups(3, [])
    assert phase == Phase.from_labels([-1, -1, -1]) == Phase.from_labels([0, 1, 2])
    assert len(phase) == 0
    np.testing.assert_array_equal(phase.apply(np.ones(3)), np.ones(3))
    assert phase.labels().tolist() == [-1, -1, -1]


def test_phases_are_frozen():
    phase = Phase.from_groups(4, [[0, 1], [2, 3]])
    with pytest.raises(ValueError, match="read-only"):
        phase.members[0] = 3
    assert phase != Phase.from_groups(5, [[0, 1], [2, 3]])
    assert phase != "phase"


def test_groups_print_as_people_write_them():
    assert str(Group((0, 4))) == "{0,4}"
    assert str(Group((0, 4), Fraction(4, 3))) == "{0,4} relaxation 4/3"
