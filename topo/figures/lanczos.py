"""The norm of a chain by Lanczos: a lower bound that holds, and an upper bound that holds with stated probability.

Golub–Kahan–Lanczos on MᵀM with reorthogonalisation from a random start. The reported value is ‖My‖ for an actual
unit vector y off the mean, so the norm is at least that. From above: for a start uniform on the sphere in d dimensions,
k steps miss a largest eigenvalue λ by more than ελ with probability at most 1.648 √d exp(−√ε (2k − 1)) (Kuczyński and
Woźniakowski, SIAM J. Matrix Anal. Appl. 13, 1992).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partreduce.topo.figures.chain import Chain, inner

FAILURE = 1e-6
"""The probability with which the upper bound may fail."""


@dataclass(frozen=True, slots=True)
class NormEstimate:
    """`lower` ≤ norm always (up to rounding); norm ≤ `upper` with probability 1 − 10⁻⁶.

    `residual` = ‖MᵀMy − θ²y‖ / θ for the vector that attains `lower` = θ: some singular value lies that near to θ.
    """

    lower: float
    upper: float
    residual: float
    steps: int


def lanczos_norm(chain: Chain, *, seed: int = 0, max_steps: int = 60, tolerance: float = 1e-5) -> NormEstimate:
    """Estimate the norm of the chain off the mean. O(steps · (chain + steps · K)) for vectors of K entries.

    Stops when the value has changed by less than `tolerance` (relative) in each of three steps.
    """
    dimension = len(chain.mean_in)
    if dimension < 2:
        return NormEstimate(0.0, 0.0, 0.0, 0)
    max_steps = min(max_steps, dimension - 1)
    basis = np.empty((max_steps, dimension), dtype=np.float32)
    vector = chain.off_mean(np.random.default_rng(seed).standard_normal(dimension))
    current = np.zeros(dimension)
    diagonal: list[float] = []
    off: list[float] = []
    ritz, weights, calm = 0.0, np.ones(1), 0
    for step in range(max_steps):
        previous, current = current, vector / math.sqrt(inner(vector, vector))
        basis[step] = current
        image = chain.forward(current)
        diagonal.append(inner(image, image))
        vector = chain.off_mean(chain.backward(image)) - diagonal[-1] * current
        if off:
            vector -= off[-1] * previous
        # Single precision halves the memory: orthogonality to √ε is all that the recurrence needs (Simon, 1984).
        known = basis[: step + 1]
        vector -= known.T @ (known @ vector.astype(np.float32))
        length = math.sqrt(inner(vector, vector))
        old = ritz
        ritz, weights = _top(diagonal, off)
        calm = calm + 1 if abs(ritz - old) <= tolerance * ritz else 0
        if calm >= 3 or length <= 1e-13 * max(1.0, ritz):
            break
        off.append(length)
    return _confirmed(chain, basis[: len(diagonal)], weights, exhausted=len(diagonal) >= dimension - 1)


def _top(diagonal: list[float], off: list[float]) -> tuple[float, npt.NDArray[np.float64]]:
    """The largest eigenvalue of the tridiagonal matrix, and its vector."""
    from scipy.linalg import eigh_tridiagonal

    last = len(diagonal) - 1
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(off[:last]), select="i", select_range=(last, last))
    return float(values[0]), np.asarray(vectors[:, 0])


def _confirmed(
    chain: Chain, basis: npt.NDArray[np.float32], weights: npt.NDArray[np.float64], *, exhausted: bool
) -> NormEstimate:
    """Evaluate the found vector anew, so that the lower bound rests on nothing but one application."""
    vector = chain.off_mean((basis.T @ weights.astype(np.float32)).astype(np.float64))
    vector /= np.linalg.norm(vector)
    image = chain.forward(vector)
    lower = float(np.linalg.norm(image))
    back = chain.off_mean(chain.backward(image))
    residual = float(np.linalg.norm(back - lower**2 * vector)) / max(lower, np.finfo(np.float64).tiny)
    steps = len(basis)
    if exhausted:
        return NormEstimate(lower, lower, residual, steps)
    root = math.log(1.648 * math.sqrt(len(vector) - 1) / FAILURE) / (2 * steps - 1)
    upper = lower / math.sqrt(1 - root**2) if root < 1 else math.inf
    return NormEstimate(lower, upper, residual, steps)
