"""Exact arithmetic against direct computations."""

from fractions import Fraction

import numpy as np
import pytest

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, gram, pivots, semidefinite_pivots, solve
from partreduce.topo.arithmetic.lyapunov import exact_steady_state, steady_state
from partreduce.topo.arithmetic.pareto import dominates, non_dominated
from partreduce.topo.arithmetic.whole_numbers import fewest_factors


def draw_rows(rng, rows, columns):
    return [
        [Fraction(int(rng.integers(-6, 7)), int(rng.choice([1, 2, 3, 4, 9]))) for _ in range(columns)]
        for _ in range(rows)
    ]


def multiply(left, right):
    return [[sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in zip(*right, strict=True)]
            for row in left]  # fmt: skip


def ldl(rows):
    """Return the pivots of elimination in fractions."""
    work, diagonal = [list(row) for row in rows], []
    for k in range(len(work)):
        diagonal.append(work[k][k])
        if not work[k][k]:
            if any(work[i][k] for i in range(k + 1, len(work))):
                return None
            continue
        for i in range(k + 1, len(work)):
            factor = work[i][k] / work[k][k]
            work[i] = [a - factor * b for a, b in zip(work[i], work[k], strict=True)]
    return diagonal


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_exact_matrices_agree_with_fractions(size):
    rng = np.random.default_rng(size)
    for _ in range(10):
        one, two = draw_rows(rng, size, size), draw_rows(rng, size, size)
        a, b = ExactMatrix.of_rows(one), ExactMatrix.of_rows(two)
        assert a.rows() == one
        assert (a @ b).rows() == multiply(one, two)
        assert (a + b).rows() == [[x + y for x, y in zip(p, q, strict=True)] for p, q in zip(one, two, strict=True)]
        assert (a - a).is_zero()
        assert (a @ b).reduced().rows() == (a @ b).rows()
        assert a.plus(Fraction(2, 7)).rows() == [[x + Fraction(2, 7) for x in row] for row in one]
        assert a.trace() == sum(one[i][i] for i in range(size))
        assert gram(a).rows() == multiply([list(c) for c in zip(*one, strict=True)], one)
        assert np.array_equal(a.floats(), np.array([[float(x) for x in row] for row in one]))


@pytest.mark.parametrize("size", [1, 3, 6])
def test_pivots_match_elimination_in_fractions(size):
    rng = np.random.default_rng(size)
    refused = 0
    for trial in range(60):
        # Low rank and zeros on the diagonal make zero pivots, with and without nonzero entries below.
        rows = draw_rows(rng, size, max(1, size - trial % 3))
        square = multiply(rows, [list(c) for c in zip(*rows, strict=True)])
        shift = Fraction(int(rng.integers(-3, 4)), 2)
        for i in range(size):
            square[i][i] = square[i][i] - shift if trial % 2 else square[i][i] * (trial % 5 > 0)
        expected = ldl(square)
        refused += expected is None
        assert pivots(ExactMatrix.of_rows(square)) == expected
        if expected is not None:
            assert (semidefinite_pivots(ExactMatrix.of_rows(square)) is None) == (min(expected) < 0)
    assert refused > 0 or size == 1


@pytest.mark.parametrize("size", [1, 2, 5])
def test_solve_satisfies_the_equations_and_rejects_singular_ones(size):
    rng = np.random.default_rng(size)
    solved = 0
    for _ in range(20):
        rows, right = draw_rows(rng, size, size), draw_rows(rng, 1, size)[0]
        answer = solve(ExactMatrix.of_rows(rows), right)
        singular = abs(np.linalg.det(np.array(rows, dtype=float))) < 1e-9
        assert (answer is None) == singular
        if answer is not None:
            solved += 1
            assert [sum(a * x for a, x in zip(row, answer, strict=True)) for row in rows] == right
    assert solved > 5
    assert (
        solve(ExactMatrix.of_rows([[Fraction(1), Fraction(2)], [Fraction(2), Fraction(4)]]), [Fraction(1)] * 2) is None
    )


def test_averaged_rows_equal_the_product_with_the_mixing_matrix():
    rng = np.random.default_rng(2)
    rows, relaxation = draw_rows(rng, 5, 3), Fraction(3, 5)
    mixed = ExactMatrix.of_rows(rows).averaged([((0, 2, 4), relaxation, True), ((1, 3), Fraction(1), False)]).rows()
    mean = [sum(rows[i][c] for i in (0, 2, 4)) / 3 for c in range(3)]
    for i in range(5):
        if i in (1, 3):
            assert mixed[i] == [0, 0, 0]
        else:
            assert mixed[i] == [x + relaxation * (m - x) for x, m in zip(rows[i], mean, strict=True)]


def test_long_denominators_are_reduced():
    matrix = ExactMatrix.identity(4)
    for _ in range(500):
        matrix = matrix.averaged([((0, 1, 2, 3), Fraction(1), True)])
    assert matrix.denominator.bit_length() < 300
    assert matrix.is_everywhere(Fraction(1, 4))
    assert not matrix.is_everywhere(Fraction(1, 5))


@pytest.mark.parametrize("size", [1, 3])
def test_steady_states_are_fixed_points_in_floats_and_exactly(size):
    rng = np.random.default_rng(size)
    rows = draw_rows(rng, size, size)
    period = ExactMatrix.of_rows(rows).scaled(Fraction(1, 40))
    noise = gram(ExactMatrix.of_rows(draw_rows(rng, size, size)))
    exact = exact_steady_state(period, noise)
    assert (period @ exact @ period.transposed + noise - exact).is_zero()
    stack = np.stack([period.floats(), np.zeros((size, size))])
    found = steady_state(stack, np.stack([noise.floats(), noise.floats()]), negligible=1e-18)
    assert found.covariance[0] == pytest.approx(exact.floats(), rel=1e-12)
    assert found.covariance[1] == pytest.approx(noise.floats(), rel=1e-12)
    assert np.abs(found.remainder).max() <= 1e-18


def test_no_steady_state_without_contraction():
    one = ExactMatrix.identity(2)
    assert exact_steady_state(one, one) is None
    for growth in (1.0, 1.5):
        assert np.abs(steady_state(growth * np.eye(2), np.eye(2), negligible=1e-18).remainder).max() >= 1


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_non_dominated_is_the_pareto_front(dimensions):
    rng = np.random.default_rng(dimensions)
    for _ in range(40):
        options = [tuple(row) for row in rng.integers(0, 6, (30, dimensions)).astype(float).tolist()]
        front = non_dominated(options, lambda option: option)
        assert sorted(front) == front
        assert set(front) == {o for o in options if not any(p != o and dominates(p, o) for p in options)}
        assert len(set(front)) == len(front)


def test_rounding_does_not_change_the_front():
    assert non_dominated([(1.0, 5.0), (1.0 + 1e-13, 3.0)], lambda o: o) == [(1.0 + 1e-13, 3.0)]
    assert non_dominated([(1.0, 3.0 + 1e-13), (1.5, 3.0)], lambda o: o) == [(1.0, 3.0 + 1e-13)]
    named = [((1.0, 2.0), "long"), ((1.0, 2.0), "brief")]
    assert non_dominated(named, lambda o: o[0], lambda o: (o[1],)) == [((1.0, 2.0), "brief")]
    assert non_dominated([(float("inf"), 1.0), (2.0, 1.0)], lambda o: o) == [(2.0, 1.0)]


def test_fewest_factors_are_balanced():
    assert fewest_factors(12, 6) == (4, 3)
