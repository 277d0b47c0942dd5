"""Exact linear algebra: what a symmetric matrix is, decided by its pivots, or by a factor rounded to integers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from operator import mul

from .refusal import Work, confirm

Matrix = list[list[Fraction]]
IntegerMatrix = list[list[int]]

NORM_BITS = 32
"""A norm is compared in steps of about 2⁻³² of itself."""

SMALLEST = Fraction(1, 2**128)
"""Norms whose square is said to be smaller are not looked at: rounding them would need ever longer integers."""


def pivots(matrix: Matrix, place: str, work: Work) -> list[Fraction]:
    """The diagonal D of A = L D Lᵀ for a symmetric A, which is overwritten.

    *Sylvester's law of inertia:* A has as many negative (positive, zero) eigenvalues as D has negative (positive, zero)
    entries. So A is positive semidefinite iff no pivot is negative. A zero pivot above a non-zero entry ends the
    elimination, and is refused: such a matrix is indefinite, and no certificate of the prover leads there.
    """
    size = len(matrix)
    for k in range(size):
        below = [i for i in range(k + 1, size) if matrix[i][k]]
        usable = matrix[k][k] or not below
        confirm(usable, place, "indefinite", "a bound whose matrix has no zero pivot above other entries")
        for i in below:
            factor = matrix[i][k] / matrix[k][k]
            bits = factor.numerator.bit_length() + factor.denominator.bit_length()
            work.spend(len(below) * (100 + bits * bits // 10**4))
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


def confirm_norm(squared: Fraction, rows: IntegerMatrix, scale: int, place: str, work: Work) -> None:
    """Confirm ‖M‖₂² ≤ c² for a square M = rows / scale of n rows, by a factor that is rounded to integers.

    *Rounding M.* Let N be 2ᵇ·M with each entry rounded to the nearest integer. Then ‖2ᵇ·M − N‖₂ ≤ ‖2ᵇ·M − N‖_F ≤ n/2.
    So with r ≤ 2ᵇ·c and m = r − ⌈n/2⌉ it suffices that ‖N‖₂ ≤ m, which is m²·I − NᵀN ⪰ 0.

    *Theorem.* If the rounded elimination below ends, then A + ⌈n·m/2⌉·I ⪰ 0 for the A that it is given, a matrix with
    no entry above m² on its diagonal. It makes a lower triangular L of integers with A = L·Lᵀ + R. Below the diagonal
    L[i][j] is the nearest integer to a quotient by L[j][j], so |R[i][j]| ≤ L[j][j]/2 ≤ m/2, as L[j][j]² ≤ A[j][j] ≤ m²;
    on the diagonal R is what an integer root leaves, so it is not negative. Hence R + ⌈n·m/2⌉·I has on its diagonal at
    least the sum of the absolute values beside it, which makes it positive semidefinite, and L·Lᵀ is so as well.

    So A is m²·I − NᵀN less ⌈n·m/2⌉·I. With b chosen so that m has some 32 bits all this loses about n·2⁻³¹ of c².
    """
    n = len(rows)
    work.spend(n**3 + n)
    confirm(squared >= SMALLEST, place, str(squared), f"at least {SMALLEST}")
    b = max(0, NORM_BITS - (squared.numerator.bit_length() - squared.denominator.bit_length()) // 2)
    m = isqrt(squared.numerator * 4**b // squared.denominator) - (n + 1) // 2
    assert m > 0, "it has 32 bits, and there are fewer rows by far"
    rounded = [[((entry << (b + 1)) + scale) // (2 * scale) for entry in row] for row in rows]
    shift = m * m - (n * m + 1) // 2
    factor: IntegerMatrix = []
    for i, products in enumerate(gram(rounded)):
        row: list[int] = []
        for j in range(i):
            left = -products[j] - sum(map(mul, row, factor[j]))  # of A[i][j]; `row` ends before column j
            pivot = factor[j][j]
            row.append((2 * left + pivot) // (2 * pivot))
        left = shift - products[i] - sum(map(mul, row, row))
        is_bound = left > 0
        confirm(is_bound, place, str(squared), "a larger one: the matrix is indefinite, or nearly so")
        row.append(isqrt(left))
        factor.append(row)


def gram(rows: IntegerMatrix) -> IntegerMatrix:
    """NᵀN for integers, by n² products of a long integer and a short one instead of n³ products of short ones.

    A row of entries is one integer, its value at x = 2ʷ as a polynomial with these coefficients. Row i of NᵀN is then
    Σ N[k][i]·(row k); 2ʷ is so large that its coefficients, of either sign, do not run into one another.
    """
    largest = max(abs(entry) for row in rows for entry in row)
    width = (2 * largest.bit_length() + len(rows).bit_length() + 2 + 7) // 8  # w, in bytes
    size, half = len(rows[0]), 1 << (8 * width - 1)
    halves = int.from_bytes(half.to_bytes(width, "little") * size, "little")  # added, it makes coefficients positive
    packed = [
        int.from_bytes(b"".join((entry + half).to_bytes(width, "little") for entry in row), "little") - halves
        for row in rows
    ]
    result = []
    for column in zip(*rows, strict=True):
        data = (sum(map(mul, column, packed)) + halves).to_bytes(width * size, "little")
        parts = range(0, width * size, width)
        result.append([int.from_bytes(data[at : at + width], "little") - half for at in parts])
    return result


SHIFT_BITS = 45
"""e is 2⁻⁴⁵ of the largest entry on the diagonal."""

FACTOR_BITS = 60
"""The entries of L have at least about so many bits, so that the remainders stay far below e."""


def confirm_semidefinite(matrix: IntegerMatrix, place: str, work: Work) -> None:
    """Positive semidefinite, decided without fractions: a rounded factor, and what it leaves over.

    *Theorem.* Let A be a symmetric matrix of integers, and A − e·I = L·Lᵀ + R with a symmetric R. If e + R_ii ≥ Σ_{j≠i}
    |R_ij| for every i, then A is positive semidefinite: L·Lᵀ is, and so is e·I + R, whose rows are dominated by their
    diagonal (Gershgorin). *Any* L will do, so it may be rounded: the elimination below divides with a remainder, and R
    is made of just these remainders. Nothing is lost by rounding as long as A stays clear of the edge by more than
    about 2⁻⁴⁵ of its largest entry; a matrix closer to the edge is refused though it may be positive.
    Numbers: Confirm that a symmetric matrix of integers is positive semidefinite; its lower triangle is read.
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
