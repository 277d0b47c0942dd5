"""Disagreement: the steady-state mean squared distance to the mean under fresh unit noise in every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from preduce.topo.figures.rate import NEVER, radius_of
from preduce.topo.figures.sectors import Batch, Sectors, adjoint

if TYPE_CHECKING:
    import numpy.typing as npt


def disagreement_of(sectors: Sectors) -> float:
    """The average over all instants of tr Σ / n, infinite if the workers never converge. O(Σ C g³ log(1/gap)).

    Σ solves the periodic Lyapunov equation Σ ← W(Σ + D)Wᵀ (with overlap Σ ← WΣWᵀ + D) off the mean, by doubling:
    k squarings sum the noise of 2^k periods.
    """
    if radius_of(sectors) >= NEVER:
        return math.inf
    return sum(_batch_trace(batch, overlap=sectors.overlap) for batch in sectors.batches) / sectors.num_workers


def _batch_trace(batch: Batch, *, overlap: bool) -> float:
    """Σ over sectors of multiplicity · (average over instants of tr Σ)."""
    noises = [batch.off_mean_diagonal(batch.progress.noise[t]) for t in range(batch.period)]
    covariance = steady_state(batch, noises, overlap=overlap)
    inner = _traces(batch.off_mean_diagonal(batch.progress.partial))
    instants = batch.progress.instants
    total = np.zeros(len(batch.multiplicity))
    for matrix, noise in zip(batch.matrices, noises, strict=True):
        total += (instants - 1) * _traces(covariance) + inner
        covariance = _advance(covariance, matrix, noise, overlap=overlap)
        total += _traces(covariance)
    return float(batch.multiplicity @ total) / (batch.period * instants)


def steady_state(batch: Batch, noises: list[npt.NDArray[Any]], *, overlap: bool) -> npt.NDArray[Any]:
    """The covariance at the start of phase 0 that one period reproduces, shape (C, g, g)."""
    covariance = np.zeros_like(noises[0])
    for matrix, noise in zip(batch.matrices, noises, strict=True):
        covariance = _advance(covariance, matrix, noise, overlap=overlap)
    power = batch.product()
    while (size := np.abs(power).max()) > 1e-18:
        assert size < 1e150, "the radius was checked to be below 1"
        covariance = covariance + power @ covariance @ adjoint(power)
        power = power @ power
    return covariance


def _advance(
    covariance: npt.NDArray[Any], matrix: npt.NDArray[Any], noise: npt.NDArray[Any], *, overlap: bool
) -> npt.NDArray[Any]:
    if overlap:
        result: npt.NDArray[Any] = matrix @ covariance @ adjoint(matrix) + noise
    else:
        result = matrix @ (covariance + noise) @ adjoint(matrix)
    return result


def _traces(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(np.trace(stack, axis1=-2, axis2=-1).real, dtype=np.float64)
