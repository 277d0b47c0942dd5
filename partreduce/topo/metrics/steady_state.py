"""Metrics of the steady state while workers step: consensus distance and drift.

All instants of a period count equally. `off the mean`, as everywhere in this package: the mean's direction is projected
out. Stacks have the shape (C, g, g) or (C, g, k) for the C sectors of size g of one batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.metrics.sectors import NEVER, Batch, Sectors, adjoint, radius_of

Push = Literal["worker", "node"]

NEGLIGIBLE = 1e-18
"""Entries of a power of the period below this add nothing to a covariance any more."""


def consensus_distance_of(sectors: Sectors) -> float:
    """The average over all instants of tr Σ / n, infinite if the workers never converge. O(Σ C g³ log(1/gap)).

    Every worker adds fresh unit noise in every step; Σ solves the periodic Lyapunov equation Σ ← W(Σ + D)Wᵀ (with
    overlap Σ ← WΣWᵀ + D) off the mean.
    """
    if radius_of(sectors) >= NEVER:
        return math.inf
    total = 0.0
    for batch in sectors.batches:
        made = after_period(batch, np.zeros_like(batch.matrices[0]), is_delayed=sectors.is_delayed)
        steady = lyapunov.steady_state(batch.product(), made, negligible=NEGLIGIBLE)
        assert np.abs(steady.remainder).max() <= NEGLIGIBLE, "the radius was checked to be below 1"
        total += noise_traces(batch, steady.covariance, is_delayed=sectors.is_delayed)
    return max(0.0, total) / sectors.num_workers  # rounding may leave a mean square a hair below 0


def noise_traces(batch: Batch, covariance: npt.NDArray[Any], *, is_delayed: bool) -> float:
    """The mean over a period's instants of tr Σ, over all sectors, from a Σ before phase 0, (C, g, g), off the mean."""
    inner = _traces(batch.off_mean_diagonal(batch.round_steps.partial))
    instants = batch.round_steps.instants
    total = np.zeros(len(batch.multiplicity))
    for matrix, noise in zip(batch.matrices, _noises(batch), strict=True):
        # Inside the round W has not acted yet: its instants have the covariance before it plus the steps made so far.
        total += (instants - 1) * _traces(covariance) + inner
        covariance = _after_noise(covariance, matrix, noise, is_delayed=is_delayed)
        total += _traces(covariance)
    return float(batch.multiplicity @ total) / (batch.period * instants)


def after_period(batch: Batch, covariance: npt.NDArray[Any], *, is_delayed: bool) -> npt.NDArray[Any]:
    """What one period with its noise makes of a covariance (C, g, g) before phase 0."""
    for matrix, noise in zip(batch.matrices, _noises(batch), strict=True):
        covariance = _after_noise(covariance, matrix, noise, is_delayed=is_delayed)
    return covariance


def _noises(batch: Batch) -> Iterator[npt.NDArray[Any]]:
    """The covariance that each round adds, off the mean."""
    return map(batch.off_mean_diagonal, batch.round_steps.noise)


def _after_noise(
    covariance: npt.NDArray[Any], matrix: npt.NDArray[Any], noise: npt.NDArray[Any], *, is_delayed: bool
) -> npt.NDArray[Any]:
    if is_delayed:
        result: npt.NDArray[Any] = matrix @ covariance @ adjoint(matrix) + noise
    else:
        result = matrix @ (covariance + noise) @ adjoint(matrix)
    return result


def _traces(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(np.trace(stack, axis1=-2, axis2=-1).real, dtype=np.float64)


def drift_of(sectors: Sectors, push: Push) -> float:
    """The average over all instants of E‖z − mean‖²/n, infinite if the workers never converge. O(Σ C g³).

    Data that differ between workers push each one constantly:
    z ← W(z + steps_per_round·b) (with overlap z ← Wz + steps_per_round·b) for a constant random b of mean zero and unit
    variance, independent per worker, or one b for all workers of a node.
    """
    if radius_of(sectors) >= NEVER:
        return math.inf
    total = sum(_push_squares(batch, push, is_delayed=sectors.is_delayed) for batch in sectors.batches)
    return max(0.0, total) / sectors.num_workers  # as above


def _push_squares(batch: Batch, push: Push, *, is_delayed: bool) -> float:
    count, size = len(batch.multiplicity), batch.size
    if push == "worker":
        columns: npt.NDArray[Any] = np.broadcast_to(np.eye(size), (count, size, size))
    else:
        assert batch.node_columns is not None
        columns = batch.node_columns
    pushes = [batch.off_mean(batch.round_steps.push[t][:, None] * columns) for t in range(batch.period)]
    state = np.zeros_like(batch.matrices[0] @ pushes[0])
    for matrix, move in zip(batch.matrices, pushes, strict=True):
        state = _after_push(state, matrix, move, is_delayed=is_delayed)
    state = np.linalg.solve(np.eye(size) - batch.product(), state)
    instants = batch.round_steps.instants
    inner = batch.off_mean(batch.round_steps.partial[:, None] * columns)
    constant = _inner_squares(batch, columns)
    total = np.zeros(count)
    for matrix, move in zip(batch.matrices, pushes, strict=True):
        total += (instants - 1) * _squares(state) + 2 * (state.conj() * inner).sum(axis=(-2, -1)).real + constant
        state = _after_push(state, matrix, move, is_delayed=is_delayed)
        total += _squares(state)
    return float(batch.multiplicity @ total) / (batch.period * instants)


def _inner_squares(batch: Batch, columns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Σ_s ‖Π F_s U‖² over the inner instants, F_s = diag(steps made so far), from Σ_s of products of steps alone."""
    gram = batch.round_steps.gram
    whole = (np.abs(columns) ** 2).sum(axis=-1) @ np.diag(gram)
    along = batch.mean.conj()[:, :, None] * columns
    return np.asarray(whole - (along.conj() * (gram @ along)).sum(axis=(-2, -1)).real)


def _after_push(
    state: npt.NDArray[Any], matrix: npt.NDArray[Any], move: npt.NDArray[Any], *, is_delayed: bool
) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = matrix @ state + move if is_delayed else matrix @ (state + move)
    return result


def _squares(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray((np.abs(stack) ** 2).sum(axis=(-2, -1)), dtype=np.float64)
