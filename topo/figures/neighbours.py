"""The effective number of neighbours n_eff(γ): how much averaging helps at a given speed of forgetting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.errors import InputError
from preduce.topo.figures.noise import steady_state

if TYPE_CHECKING:
    from preduce.topo.figures.sectors import Batch, Sectors


def effective_neighbours_of(sectors: Sectors, gamma: float) -> float:
    """n_eff = (1/(1−γ)) / (mean variance of x) for x ← W(√γ x + unit noise), averaged over phases. O(Σ C g³).

    1 for no averaging at all, n for all-reduce in every step (Vogels, Hendrikx and Jaggi, NeurIPS 2022). Paces and
    overlap are left aside, as in the definition. For a fixed symmetric W: 1/n_eff = (1−γ) mean λ²/(1−γλ²).

    Raises:
        InputError: γ outside 0 ≤ γ < 1, or a schedule whose random walk diverges at this γ (relax above 2).
    """
    if not 0 <= gamma < 1:
        raise InputError(f"gamma: is {gamma}; it lies in 0 <= gamma < 1")
    off_mean = sum(_batch_trace(batch, gamma) for batch in sectors.batches)
    return sectors.num_workers / (1 + (1 - gamma) * off_mean)


def _batch_trace(batch: Batch, gamma: float) -> float:
    """Σ over sectors of multiplicity · (average over phases of the trace of the covariance off the mean)."""
    walk = batch.scaled(math.sqrt(gamma))
    if np.abs(np.linalg.eigvals(walk.product())).max() >= 1:
        raise InputError(f"gamma: at {gamma} the random walk on this schedule has no steady state; take a smaller one")
    # W(√γ x + noise) = √γ W x + W noise: the noise meets the unscaled matrix, so it is scaled up by 1/√γ beforehand.
    noise = batch.off_mean_diagonal(np.ones(batch.size))
    if gamma == 0:
        traces = sum((np.abs(matrix) ** 2).sum(axis=(-2, -1)) for matrix in batch.matrices)
        return float(batch.multiplicity @ traces) / batch.period
    covariance = steady_state(walk, [noise / gamma] * batch.period, overlap=False)
    total = np.zeros(len(batch.multiplicity))
    for matrix in walk.matrices:
        covariance = matrix @ (covariance + noise / gamma) @ matrix.conj().swapaxes(-1, -2)
        total += np.trace(covariance, axis1=-2, axis2=-1).real
    return float(batch.multiplicity @ total) / batch.period
