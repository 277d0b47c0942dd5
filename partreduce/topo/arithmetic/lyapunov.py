"""Solve the discrete Lyapunov (Stein) equation Σ = P Σ Pᴴ + Q, in floats by doubling and in exact fractions.

The solution is the steady state of Σ ← P Σ Pᴴ + Q. P is the effect of one period on differences from the mean, Q the
noise that one period adds. Doubling: after k squarings the noise of 2^k periods is summed,
Σ ← Σ + P^(2^k) Σ P^(2^k)ᴴ. Source: Smith, SIAM J. Appl. Math. 16, 1968.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, solve

GROWN = 1e70
"""A power of P with an entry this large counts as divergent; it is far enough from overflow to be squared."""


class SteadyState(NamedTuple):
    """The steady-state covariance, and the last power of P (`remainder`), which is small if the sum converged."""

    covariance: npt.NDArray[Any]
    remainder: npt.NDArray[Any]


def steady_state(
    period: npt.NDArray[Any], noise: npt.NDArray[Any], *, negligible: float, max_doublings: int = 64
) -> SteadyState:
    """Solve Σ = P Σ Pᴴ + Q for stacks of real or complex P (`period`) and Q (`noise`), shape (…, g, g).

    Doubling stops when every entry of the power of P is at most `negligible`, when one is at least `GROWN`, or after
    `max_doublings`. O(doublings · stack · g³).
    """
    power, covariance = period, noise
    for _ in range(max_doublings):
        largest = np.abs(power).max(initial=0.0)
        if largest <= negligible or not largest < GROWN:
            break
        covariance = covariance + power @ covariance @ power.conj().swapaxes(-1, -2)
        power = power @ power
    return SteadyState(covariance, power)


def exact_steady_state(period: ExactMatrix, noise: ExactMatrix) -> ExactMatrix | None:
    """Solve Σ = P Σ Pᵀ + Q exactly, P = `period`, Q = `noise` (symmetric), of size g; None if Σ is not unique.

    Elimination over the g(g+1)/2 entries of the upper triangle, O(g⁶). The system is singular iff two eigenvalues of P
    have product 1: for ‖P‖ ≤ 1 that is, iff the spectral radius of P is 1.
    """
    size = period.size
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    entries, square = period.numerators.tolist(), period.denominator**2
    equations = np.zeros((len(pairs), len(pairs)), dtype=object)
    for row, (i, j) in enumerate(pairs):
        for column, (k, m) in enumerate(pairs):
            image = entries[i][k] * entries[j][m]
            if k != m:
                image += entries[i][m] * entries[j][k]
            equations[row, column] = (square if row == column else 0) - image
    right = [Fraction(noise.numerators[i, j], noise.denominator) for i, j in pairs]
    values = solve(ExactMatrix(equations, square), right)
    if values is None:
        return None
    covariance = dict(zip(pairs, values, strict=True))
    return ExactMatrix.of_rows([[covariance[min(i, j), max(i, j)] for j in range(size)] for i in range(size)])
