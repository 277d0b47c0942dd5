"""Mixing matrices in all their forms say the same, and rows and columns sum to 1."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partreduce import Cluster, Schedule
from partreduce.errors import InputError, ScheduleError
from partreduce.strategies import AllReduce, Group, GroupPhases, Phase, Round, StaticGroups
from partreduce.topo.mixing import (
    Operators,
    exact_product,
    has_negative_entries,
    is_doubly_stochastic,
    mixing_matrix,
    period_product,
)

FACTORS = [Fraction(1), Fraction(1, 3), Fraction(4, 3), Fraction(7, 4), Fraction(2)]
FEW = settings(max_examples=30)


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


@FEW
@given(st.one_of(phases(), rounds()))
def test_dense_sparse_and_exact_agree(step):
    exact = exact_product([step]).rows()
    floats = np.array([[float(value) for value in row] for row in exact])
    assert mixing_matrix(step) == pytest.approx(floats, abs=1e-14)
    assert Operators((step,)).period_operator() @ np.eye(step.num_workers) == pytest.approx(floats, abs=1e-14)
    assert all(sum(row) == 1 for row in exact)
    assert is_doubly_stochastic(step) == all(sum(column) == 1 for column in zip(*exact, strict=True))
    assert has_negative_entries(step) == any(value < 0 for row in exact for value in row)


@FEW
@given(phases())
def test_phases_are_symmetric_doubly_stochastic_and_equal_apply(phase):
    matrix = mixing_matrix(phase)
    assert is_doubly_stochastic(phase)
    assert matrix == pytest.approx(matrix.T, abs=1e-15)
    x = np.linspace(-1, 3, phase.num_workers)
    assert matrix @ x == pytest.approx(phase.apply(x), abs=1e-13)


def test_negative_entries_begin_above_k_over_k_minus_1():
    for relaxation, negative in ((Fraction(3, 2), False), (Fraction(3, 2) + Fraction(1, 100), True)):
        phase = Phase.from_groups(4, [Group((0, 1, 2), relaxation)])
        assert has_negative_entries(phase) is negative


def test_a_period_is_applied_to_a_million_workers():
    n = 10**6
    ranks = np.arange(n, dtype=np.int32)
    phase = Phase.from_arrays(n, ranks, np.full(n // 4, 4))
    schedule = Schedule("big", Cluster.regular(n // 4, 4), StaticGroups(phases=GroupPhases((phase,))))
    x = np.arange(n, dtype=float)
    assert (Operators(schedule.steps()).period_operator() @ x)[:4] == pytest.approx([1.5] * 4)


def test_allreduce_mixes_everything():
    schedule = Schedule("a", Cluster.parse("3,2"), AllReduce())
    assert period_product(schedule) == pytest.approx(np.full((5, 5), 0.2))


def test_overlapping_groups_and_sizes_are_refused():
    phase = Phase.from_groups(4, [(0, 1), (1, 2)])
    for function in (
        mixing_matrix,
        lambda step: Operators((step,)),
        lambda step: exact_product([step]),
        is_doubly_stochastic,
    ):
        with pytest.raises(ScheduleError, match="worker 1"):
            function(phase)
    big = Phase.from_groups(30_000, [(0, 1)])
    with pytest.raises(InputError, match="period_operator"):
        mixing_matrix(big)
    with pytest.raises(InputError, match="exact_consensus_distance"):
        exact_product([big])
