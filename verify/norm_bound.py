"""The least simple fraction c² with ‖M‖₂ ≤ c for given exact matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, gram, semidefinite_pivots


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
    if value > 1:  # a float's error grows with its value
        yield Fraction(ceil(Fraction(value) * (2**20 + 1)), 2**20)


def least_square(matrices: Sequence[ExactMatrix]) -> Fraction:
    """The least c² among simple fractions with c²·I − MᵀM ⪰ 0 for every M, as its exact pivots say."""
    grams = [gram(matrix) for matrix in matrices]
    for squared in _guesses(matrices, grams):
        if all(semidefinite_pivots(shifted(squared, square)) is not None for square in grams):
            return squared
    raise AssertionError("no eigenvalue of a Gram matrix is above its trace")


def _guesses(matrices: Sequence[ExactMatrix], grams: Sequence[ExactMatrix]) -> Iterable[Fraction]:
    """What floats say, as far as they reach, and at last the trace, which is exact and always a bound."""
    try:
        norms = [float(np.linalg.norm(matrix.floats(), 2)) for matrix in matrices if matrix.size]
        yield from candidates(max(norms, default=0.0) ** 2)
    except (OverflowError, np.linalg.LinAlgError):
        pass  # entries beyond floats, as of a relax of 60 digits
    yield max((square.trace() for square in grams if square.size), default=Fraction(0))


def shifted(squared: Fraction, matrix: ExactMatrix) -> ExactMatrix:
    """The matrix c²·I − A."""
    return ExactMatrix.identity(matrix.size).scaled(squared) - matrix
