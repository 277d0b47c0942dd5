"""Exact linear algebra: a symmetric matrix A is positive semidefinite (A ⪰ 0), by pivots or by a rounded factor.

**Pivots.** Elimination makes A = L·D·Lᵀ with ones on the diagonal of L and the pivots on that of D, and A has as many
negative eigenvalues as D has negative entries (Sylvester's law of inertia). So A ⪰ 0 iff no pivot is negative. A zero
pivot above a non-zero entry ends the elimination, and is refused: such a matrix is indefinite.

**A rounded factor.** *Theorem.* Let A and L be of integers and A − e·I = L·Lᵀ + R. If e + R_ii ≥ Σ_{j≠i} |R_ij| for
every i, then A ⪰ 0: L·Lᵀ is, and so is e·I + R, whose rows are dominated by their diagonal (Gershgorin). *Any* L will
do, so the elimination may round: R is the remainder. Below the diagonal L_ij is the integer nearest to a quotient by
L_jj, so |R_ij| ≤ L_jj/2; on it R_ii ≥ 0 is the remainder of an integer square root.

**A norm.** ‖M‖₂ ≤ c iff c²·I − MᵀM ⪰ 0; in the inner product with weights w > 0 iff c²·diag(w) − Mᵀ·diag(w)·M ⪰ 0.
"""

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
"""The smallest squared norm that is accepted: rounding smaller ones would need ever longer integers."""

SHIFT_BITS = 45
"""In `confirm_semidefinite` e is 2⁻⁴⁵ of the largest entry on the diagonal."""

FACTOR_BITS = 60
"""Fewest bits, approximately, of the entries of L in `confirm_semidefinite`, so that R stays far below e."""


def pivots(matrix: Matrix, place: str, work: Work) -> list[Fraction]:
    """Return the pivots of a symmetric matrix, overwriting it; raise a Refusal for a zero above nonzero entries."""
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


def confirm_norm_by_pivots(
    squared: Fraction, m: tuple[IntegerMatrix, int], sizes: Sequence[int], place: str, work: Work, *, on: str = ""
) -> None:
    """Confirm ‖M‖² ≤ `squared` in the inner product weighted by `sizes`; `m` has integer rows and their denominator."""
    rows, scale = m
    work.spend(len(sizes) ** 3 * (8 + scale.bit_length() // 64))
    columns = list(zip(*rows, strict=True))
    weighed = [list(map(mul, sizes, column)) for column in columns]
    matrix = [[Fraction(-inner_product(one, other), scale * scale) for other in columns] for one in weighed]
    for i, size in enumerate(sizes):
        matrix[i][i] += squared * size
    confirm(min(pivots(matrix, place, work)) >= 0, place, str(squared), f"a larger one{on}: the matrix is indefinite")


def inner_product(one: Sequence[int], other: Sequence[int]) -> int:
    """Return Σ one[i]·other[i]."""
    return sum(map(mul, one, other))


def symmetric(triangle: Sequence[int], size: int, place: str) -> IntegerMatrix:
    """Return the symmetric matrix of `size` rows whose lower triangle is given row by row."""
    confirm(2 * len(triangle) == size * (size + 1), place, len(triangle), f"{size * (size + 1) // 2} numbers")
    firsts = [row * (row + 1) // 2 for row in range(size)]
    return [[triangle[firsts[max(i, j)] + min(i, j)] for j in range(size)] for i in range(size)]


def confirm_norm(squared: Fraction, rows: IntegerMatrix, scale: int, place: str, work: Work) -> None:
    """Confirm ‖M‖₂² ≤ c² = `squared` for a square M = rows / scale of n rows, by a factor rounded to integers.

    Let N be 2ᵇ·M with each entry rounded to the nearest integer, so ‖2ᵇ·M − N‖₂ ≤ ‖2ᵇ·M − N‖_F ≤ n/2. With r ≤ 2ᵇ·c and
    m = r − ⌈n/2⌉ it suffices that ‖N‖₂ ≤ m, which is m²·I − NᵀN ⪰ 0. No entry of the factor is above m, so e = ⌈n·m/2⌉
    is above all that rounding leaves. With b chosen so that m has some 32 bits all this loses about n·2⁻³¹ of c².
    """
    n = len(rows)
    work.spend(n**3 + n)
    confirm(squared >= SMALLEST, place, str(squared), f"at least {SMALLEST}")
    b = max(0, NORM_BITS - (squared.numerator.bit_length() - squared.denominator.bit_length()) // 2)
    m = isqrt(squared.numerator * 4**b // squared.denominator) - (n + 1) // 2
    assert m > 0, "it has 32 bits, and there are fewer rows by far"
    rounded = [[((entry << (b + 1)) + scale) // (2 * scale) for entry in row] for row in rows]
    matrix = [[-product for product in row] for row in gram(rounded)]
    for i, row in enumerate(matrix):
        row[i] += m * m
    _confirm_factor(matrix, (n * m + 1) // 2, place, str(squared), "a larger one")


def gram(rows: IntegerMatrix) -> IntegerMatrix:
    """Return NᵀN for integers, by n² products of a long integer and a short one instead of n³ products of short ones.

    A row of entries is packed into one integer: the value at x = 2ʷ of the polynomial with these coefficients. Row i of
    NᵀN is then Σ N[k][i]·(row k); 2ʷ is so large that its coefficients, of either sign, do not overlap.
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
        data = (inner_product(column, packed) + halves).to_bytes(width * size, "little")
        parts = range(0, width * size, width)
        result.append([int.from_bytes(data[at : at + width], "little") - half for at in parts])
    return result


def confirm_semidefinite(matrix: IntegerMatrix, place: str, work: Work) -> None:
    """Confirm that a symmetric matrix of integers is positive semidefinite, by a rounded factor of a multiple of it.

    A matrix whose smallest eigenvalue is below about 2⁻⁴⁵ of its largest entry is rejected, although it may be positive
    semidefinite.
    """
    size = len(matrix)
    largest = max(matrix[i][i] for i in range(size))
    finer = max(0, FACTOR_BITS - largest.bit_length() // 2)  # f
    work.spend(size**3 // 3 * (40 + largest.bit_length() // 8))
    shifted = [[entry << 2 * finer for entry in row] for row in matrix]
    _confirm_factor(shifted, (largest << 2 * finer) >> SHIFT_BITS, place, "a matrix", "a positive semidefinite one")


def _confirm_factor(matrix: IntegerMatrix, shift: int, place: str, shown: str, better: str) -> None:
    """Confirm A = `matrix` ⪰ 0 (its lower triangle) by a rounded factor of A − `shift`·I; texts are for errors."""
    expected = f"{better}: the matrix is indefinite, or nearly so"
    factor: IntegerMatrix = []
    left_over = [0] * len(matrix)  # Σ_{j≠i} |R_ij| − R_ii
    for i, given in enumerate(matrix):
        row: list[int] = []
        for j in range(i):
            rest, pivot = given[j] - inner_product(row, factor[j]), factor[j][j]  # `row` ends before column j
            row.append((2 * rest + pivot) // (2 * pivot))
            remainder = abs(rest - row[j] * pivot)
            left_over[i] += remainder
            left_over[j] += remainder
        rest = given[i] - shift - inner_product(row, row)
        confirm(rest > 0, place, shown, expected)
        row.append(isqrt(rest))
        left_over[i] -= rest - row[i] * row[i]
        factor.append(row)
    confirm(max(left_over) <= shift, place, shown, expected)
