"""Exact linear algebra on fractions: the prover's own, which the checker does not share."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

Matrix = list[list[Fraction]]


def gram(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    """MᵀM. O(n³)."""
    columns = list(zip(*rows, strict=True))
    size = len(columns)
    result = [[Fraction(0)] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            entry = sum((a * b for a, b in zip(columns[i], columns[j], strict=True) if a and b), Fraction(0))
            result[i][j] = result[j][i] = entry
    return result


def shifted(squared: Fraction, rows: Matrix) -> Matrix:
    """The matrix squared · I − rows."""
    return [[squared * (i == j) - entry for j, entry in enumerate(row)] for i, row in enumerate(rows)]


def pivots(rows: Matrix) -> list[Fraction] | None:
    """The diagonal D of A = L·D·Lᵀ, in order without exchanges; None if a zero pivot has a non-zero column below it.

    A symmetric A is positive semidefinite iff the result is a list without negative numbers, and by Sylvester's law
    of inertia A has as many negative eigenvalues as the list has negative numbers. O(n³).
    """
    work = [list(row[: i + 1]) for i, row in enumerate(rows)]
    size = len(work)
    result: list[Fraction] = []
    for k in range(size):
        pivot = work[k][k]
        result.append(pivot)
        below = [i for i in range(k + 1, size) if work[i][k]]
        if not pivot:
            if below:
                return None
            continue
        factors = {i: work[i][k] / pivot for i in below}
        for i in below:
            row, factor = work[i], factors[i]
            for j in below:
                if j > i:
                    break
                row[j] -= factor * work[j][k]
    return result


def is_semidefinite(rows: Matrix) -> list[Fraction] | None:
    """The pivots of a positive semidefinite matrix, None for any other."""
    found = pivots(rows)
    return found if found is not None and min(found, default=Fraction(0)) >= 0 else None


def to_floats(rows: Sequence[Sequence[Fraction]]) -> npt.NDArray[np.float64]:
    """The nearest floats, shape (n, m)."""
    return np.array([[float(entry) for entry in row] for row in rows], dtype=np.float64)


def candidates(value: float) -> Iterable[Fraction]:
    """Simple fractions next to a float that may be its exact value, then dyadic ones safely above it."""
    seen = set()
    for limit in (1, 16, 64, 256, 1024, 4096, 2**14, 2**17):
        guess = Fraction(value).limit_denominator(limit)
        if abs(float(guess) - value) <= 1e-10 and guess not in seen:
            seen.add(guess)
            yield guess
    for bits in (40, 30, 20):
        yield Fraction(ceil((value + 2.0 ** (2 - bits)) * 2**bits), 2**bits)


def least_square(matrices: Sequence[Matrix]) -> tuple[Fraction, list[list[Fraction]]]:
    """The least c² among simple fractions with c²·I − MᵀM ⪰ 0 for every M, with the pivots that prove it."""
    grams = [gram(rows) for rows in matrices]
    top = max((float(np.linalg.norm(to_floats(rows), 2)) ** 2 for rows in matrices if rows), default=0.0)
    for squared in candidates(top):
        proofs = []
        for rows in grams:
            found = is_semidefinite(shifted(squared, rows))
            if found is None:
                break
            proofs.append(found)
        else:
            return squared, proofs
    raise AssertionError("a dyadic fraction safely above the float norm is always a bound")
