"""A small interior-point method: minimise a linear function over a set given by its self-concordant barrier.

scipy has no semidefinite solver, and general ones, such as cvxpy brings, treat every matrix entry as a row: a hundred
workers and five hundred edges cost them minutes and gigabytes. The programs here (fastest mixing weights, MATCHA's
probabilities) have rank-one structure that makes a Newton step one Cholesky factorisation of the number of edges, so
that a thousand edges take seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from partreduce.topo.errors import UnknownError

Array = npt.NDArray[np.float64]
Barrier = Callable[[Array], tuple[float, Array, Array] | None]
"""Value, gradient and Hessian at a point, or None outside the set."""

GROWTH = 12.0
MAX_STEPS = 60


def minimise(cost: Array, barrier: Barrier, start: Array, *, parameter: float, gap: float = 1e-8) -> Array:
    """The x with the least cost·x within `gap` of the optimum, by following the central path from an interior point.

    `parameter` is the barrier's parameter ν (the sum of matrix orders and inequalities): on the central path at
    weight t the objective is within ν/t of the optimum.

    Raises:
        UnknownError: Newton's method did not converge (a degenerate program).
    """
    point, weight = start, 1.0
    while True:
        point = _centre(weight * cost, barrier, point)
        if parameter / weight < gap:
            return point
        weight *= GROWTH


def _centre(cost: Array, barrier: Barrier, point: Array) -> Array:
    """Newton's method with backtracking on cost·x + barrier(x)."""
    from scipy.linalg import (  # late: `partreduce design --list` reads the tables that name this file
        cho_factor,
        cho_solve,
    )

    state = barrier(point)
    assert state is not None, "the starting point lies inside"
    for _ in range(MAX_STEPS):
        value, gradient, hessian = state
        slope = cost + gradient
        factor = cho_factor(hessian + 1e-14 * np.trace(hessian) / len(point) * np.eye(len(point)))
        step = -cho_solve(factor, slope)
        decrement = float(-slope @ step)
        if decrement < 1e-9:
            return point
        length = 1.0 if decrement < 0.0625 else 1 / (1 + np.sqrt(decrement))
        for enlarged in (1.0, length):  # the damped step is always safe, the full one usually better
            trial = barrier(point + enlarged * step)
            if trial is not None and cost @ (enlarged * step) + trial[0] - value <= 1e-10 * abs(value):
                point, state = point + enlarged * step, trial
                break
        else:
            if decrement < 1e-5:  # as close as floating point lets us come
                return point
            raise UnknownError("weights: the convex program did not converge; use best-constant or metropolis")
    return point


def edge_gram(inverse: Array, ends: npt.NDArray[np.int32], others: npt.NDArray[np.int32]) -> Array:
    """Bᵀ X⁻¹ B for the incidence matrix B of the edges, shape (edges, edges); its square is a Hessian of −logdet X."""
    rows = inverse[ends] - inverse[others]
    gram: Array = rows[:, ends] - rows[:, others]
    return gram


def inverse_and_logdet(matrix: Array) -> tuple[Array, float] | None:
    """X⁻¹ and logdet X of a symmetric matrix, or None unless it is positive definite. O(n³)."""
    from scipy.linalg import cho_solve

    try:
        lower = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    inverse = cho_solve((lower, True), np.eye(len(matrix)))
    return inverse, 2 * float(np.log(np.diag(lower)).sum())
