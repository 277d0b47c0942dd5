"""Positive semidefinite, decided without fractions: a rounded factor, and what it leaves over.

*Theorem.* Let A be a symmetric matrix of integers, and A − e·I = L·Lᵀ + R with a symmetric R. If e + R_ii ≥ Σ_{j≠i}
|R_ij| for every i, then A is positive semidefinite: L·Lᵀ is, and so is e·I + R, whose rows are dominated by their
diagonal (Gershgorin). *Any* L will do, so it may be rounded: the elimination below divides with a remainder, and R is
made of just these remainders. Nothing is lost by rounding as long as A stays clear of the edge by more than about
2⁻⁴⁵ of its largest entry; a matrix closer to the edge is refused though it may be positive.
"""

from __future__ import annotations

from math import isqrt

from .linear_algebra import IntegerMatrix, inner_product
from .refusal import Work, confirm

SHIFT_BITS = 45
"""e is 2⁻⁴⁵ of the largest entry on the diagonal."""

FACTOR_BITS = 60
"""The entries of L have at least about so many bits, so that the remainders stay far below e."""


def confirm_semidefinite(matrix: IntegerMatrix, place: str, work: Work) -> None:
    """Confirm that a symmetric matrix of integers is positive semidefinite; its lower triangle is read.

    Raises:
        Refusal: a pivot is not positive, the remainders are too large, or the work is too much.
    """
    size = len(matrix)
    largest = max(matrix[i][i] for i in range(size))
    finer = max(0, FACTOR_BITS - largest.bit_length() // 2)  # A is taken 4^finer times
    shift = (largest << 2 * finer) >> SHIFT_BITS
    work.spend(size**3 // 3 * (40 + largest.bit_length() // 8))
    factor: IntegerMatrix = []
    left_over = [0] * size  # Σ_{j≠i} |R_ij| − R_ii
    for i in range(size):
        row: list[int] = []
        for j in range(i):
            rest = (matrix[i][j] << 2 * finer) - inner_product(row, factor[j])
            quotient, remainder = divmod(rest, factor[j][j])
            row.append(quotient)
            left_over[i] += remainder
            left_over[j] += remainder
        rest = (matrix[i][i] << 2 * finer) - shift - inner_product(row, row)
        confirm(rest > 0, place, f"a matrix with a negative direction in row {i}", "a positive semidefinite one")
        row.append(isqrt(rest))
        left_over[i] -= rest - row[i] * row[i]
        factor.append(row)
    confirm(max(left_over) <= shift, place, "a matrix near the edge", "one clear of it")
