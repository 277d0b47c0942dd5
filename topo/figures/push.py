"""Drift: the steady-state mean squared distance to the mean under a constant push, as data that differ cause it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from preduce.topo.figures.rate import NEVER, radius_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from preduce.topo.figures.sectors import Batch, Sectors

Push = Literal["worker", "node"]


def drift_of(sectors: Sectors, push: Push) -> float:
    """The average over all instants of E‖z − mean‖²/n, infinite if the workers never converge. O(Σ C g³).

    z ← W(z + pace·b) (with overlap z ← Wz + pace·b) for a constant random b of mean zero and unit variance,
    independent per worker, or one b for all workers of a node.
    """
    if radius_of(sectors) >= NEVER:
        return math.inf
    return sum(_batch_square(batch, push, overlap=sectors.overlap) for batch in sectors.batches) / sectors.num_workers


def _batch_square(batch: Batch, push: Push, *, overlap: bool) -> float:
    count, size = len(batch.multiplicity), batch.size
    if push == "worker":
        columns: npt.NDArray[Any] = np.broadcast_to(np.eye(size), (count, size, size))
    else:
        assert batch.node_columns is not None
        columns = batch.node_columns
    pushes = [batch.off_mean(batch.progress.push[t][:, None] * columns) for t in range(batch.period)]
    state = np.zeros_like(batch.matrices[0] @ pushes[0])
    for matrix, move in zip(batch.matrices, pushes, strict=True):
        state = _advance(state, matrix, move, overlap=overlap)
    state = np.linalg.solve(np.eye(size) - batch.product(), state)
    instants = batch.progress.instants
    inner = batch.off_mean(batch.progress.partial[:, None] * columns)
    constant = _inner_squares(batch, columns)
    total = np.zeros(count)
    for matrix, move in zip(batch.matrices, pushes, strict=True):
        total += (instants - 1) * _squares(state) + 2 * (state.conj() * inner).sum(axis=(-2, -1)).real + constant
        state = _advance(state, matrix, move, overlap=overlap)
        total += _squares(state)
    return float(batch.multiplicity @ total) / (batch.period * instants)


def _inner_squares(batch: Batch, columns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Σ_s ‖Π F_s U‖² over the inner instants, F_s = diag(steps made so far), from Σ_s of products of steps alone."""
    gram = batch.progress.gram
    whole = (np.abs(columns) ** 2).sum(axis=-1) @ np.diag(gram)
    along = batch.mean.conj()[:, :, None] * columns
    return np.asarray(whole - (along.conj() * (gram @ along)).sum(axis=(-2, -1)).real)


def _advance(
    state: npt.NDArray[Any], matrix: npt.NDArray[Any], move: npt.NDArray[Any], *, overlap: bool
) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = matrix @ state + move if overlap else matrix @ (state + move)
    return result


def _squares(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray((np.abs(stack) ** 2).sum(axis=(-2, -1)), dtype=np.float64)
