"""The least simple fraction c² with ‖M‖₂ ≤ c for given exact matrices, and the pivots that prove it."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.arithmetic.exact_matrices import ExactMatrix, gram, semidefinite_pivots

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


def least_square(matrices: Sequence[ExactMatrix]) -> tuple[Fraction, list[list[Fraction]]]:
    """The least c² among simple fractions with c²·I − MᵀM ⪰ 0 for every M, with the pivots that prove it."""
    grams = [gram(matrix) for matrix in matrices]
    top = max((float(np.linalg.norm(matrix.floats(), 2)) ** 2 for matrix in matrices if matrix.size), default=0.0)
    for squared in candidates(top):
        proofs = []
        for square in grams:
            diagonal = semidefinite_pivots(shifted(squared, square))
            if diagonal is None:
                break
            proofs.append(diagonal)
        else:
            return squared, proofs
    raise AssertionError("a dyadic fraction safely above the float norm is always a bound")


def shifted(squared: Fraction, matrix: ExactMatrix) -> ExactMatrix:
    """The matrix c²·I − A."""
    return ExactMatrix.identity(matrix.size).scaled(squared) - matrix
