"""Fit the weights of many candidates at once by least squares, and turn a numerical solution into exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

SOLVED = 1e-20
"""Squared residual under which a numerical solution is worth an exact attempt."""

DENOMINATORS = (1, 2, 3, 5, 8, 13, 21, 64)
"""Largest denominators tried, one after the other, when a weight is rounded to a fraction."""


class Linearised(NamedTuple):
    """Of every candidate: squared residual (count,), JᵀR (count, p) and JᵀJ (count, p, p), for p weights."""

    error: Floats
    gradient: Floats
    gram: Floats


def fit(
    linearise: Callable[[Floats], Linearised], weights: Floats, free: Mask, *, num_iterations: int
) -> tuple[Floats, Floats]:
    """Levenberg-Marquardt for many candidates; returns weights (count, p) and their squared residuals (count,).

    `free` (count, p) marks the weights that may move. Candidates are independent; each keeps its own damping.
    """
    moves = free.astype(np.float64)
    both = moves[:, :, None] * moves[:, None, :]  # (count, p, p): rows and columns of weights that may not move are 0
    damping = np.full(len(weights), 1e-2)
    identity = np.eye(weights.shape[1])
    at = linearise(weights)
    for _ in range(num_iterations):
        matrix = at.gram * both + (damping[:, None, None] + 1e-13) * identity
        trial = weights - np.linalg.solve(matrix, (at.gradient * moves)[:, :, None])[:, :, 0]
        new = linearise(trial)
        better = new.error < at.error
        damping = np.where(better, damping * 0.2, np.minimum(damping * 5.0, 1e6))
        weights = np.where(better[:, None], trial, weights)
        at = Linearised(
            np.where(better, new.error, at.error),
            np.where(better[:, None], new.gradient, at.gradient),
            np.where(better[:, None, None], new.gram, at.gram),
        )
    return weights, at.error


def as_fractions(linearise: Callable[[Floats], Linearised], weights: Floats) -> list[Fraction] | None:
    """Fractions near one numerical solution (p,) that still solve it numerically, or None.

    Weights that stand near a simple fraction are fixed to it one by one, the others refitted after each, because
    solutions come in continuous families. The caller has the last word, by an exact product.
    """
    current = weights[None].copy()
    free = np.ones((1, len(weights)), dtype=bool)
    fractions = [Fraction(0)] * len(weights)
    while free.any():
        misses = []
        for place in np.flatnonzero(free[0]).tolist():
            for limit in DENOMINATORS:
                guess = Fraction(float(current[0, place])).limit_denominator(limit)
                digits = 6 if limit < DENOMINATORS[-1] else 9
                misses.append((round(abs(float(guess) - current[0, place]), digits), guess.denominator, place, guess))
        miss, _, place, guess = min(misses)
        fractions[place], current[0, place], free[0, place] = guess, float(guess), False
        if miss > 1e-9:
            current, error = fit(linearise, current, free, num_iterations=40)
            if error[0] > SOLVED:
                return None
    return fractions
