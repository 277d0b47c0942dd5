"""Exact linear algebra: what a symmetric matrix of fractions is, decided by its pivots."""

from __future__ import annotations

from fractions import Fraction
from operator import mul
from typing import TYPE_CHECKING

from .refusal import confirm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .refusal import Work

Matrix = list[list[Fraction]]
IntegerMatrix = list[list[int]]


def pivots(matrix: Matrix, place: str, work: Work) -> list[Fraction]:
    """The diagonal D of A = L D Lᵀ for a symmetric A, which is overwritten.

    *Sylvester's law of inertia:* A has as many negative (positive, zero) eigenvalues as D has negative (positive, zero)
    entries. So A is positive semidefinite iff no pivot is negative. A zero pivot above a non-zero entry ends the
    elimination, and is refused: such a matrix is indefinite, and no certificate of the prover leads there.

    Raises:
        Refusal: a zero pivot stands above a non-zero entry, or the work is too much.
    """
    size = len(matrix)
    for k in range(size):
        below = [i for i in range(k + 1, size) if matrix[i][k]]
        usable = matrix[k][k] or not below
        confirm(usable, place, "indefinite", "a bound whose matrix has no zero pivot above other entries")
        for i in below:
            factor = matrix[i][k] / matrix[k][k]
            bits = factor.numerator.bit_length() + factor.denominator.bit_length()
            work.spend(len(below) * (100 + bits * bits // 10**4), place)
            for j in below:
                matrix[i][j] -= factor * matrix[k][j]
    return [matrix[k][k] for k in range(size)]


def bound_minus_gram(squared: Fraction, rows: IntegerMatrix, scale: int) -> Matrix:
    """c²·I − MᵀM for M = rows / scale: positive semidefinite iff ‖M‖₂ ≤ c."""
    columns = list(zip(*rows, strict=True))
    result = [[Fraction(-inner_product(a, b), scale * scale) for b in columns] for a in columns]
    for i, row in enumerate(result):
        row[i] += squared
    return result


def inner_product(one: Sequence[int], other: Sequence[int]) -> int:
    """Σ one[i]·other[i]."""
    return sum(map(mul, one, other))


def largest_absolute_sum(rows: Sequence[Sequence[int]], scale: int) -> Fraction:
    """‖M‖∞ of M = rows / scale; of the transposed matrix it is ‖M‖₁."""
    return Fraction(max(sum(map(abs, row)) for row in rows), scale)
