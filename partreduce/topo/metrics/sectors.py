"""Sectors: subspaces that every mixing matrix of a schedule maps into itself; metrics are computed on each of them.

A phase acts on each sector as a small g×g matrix. A rule has one sector per character class, a circulant graph one per
frequency, and an unstructured schedule a single one of size n. A batch holds the sectors of one size; the mean's
direction is projected out, so that J acts as zero everywhere.

Between two averages workers add noise and a push. A round has P = max steps_per_round equal instants. At instant
s = 1 … P−1 worker i with k_i steps per round has taken floor(s · k_i / P) of them; at instant P it has taken all k_i
and the round's averaging is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.fields import Flags, Floats, Whole
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.strategies.base import Averaging

ZERO = 1e-14
"""Norms below this are rounding errors and count as 0."""

NEVER = 1 - 1e-12
"""A schedule with at least this radius, 1 up to rounding, counts as never converging."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundSteps:
    """The steps of g workers (or equal workers) in the T rounds of a period, each of P = `instants` equal parts.

    `push` (T, g) is a worker's progress, in steps, that is averaged at the end of a round, `noise` (T, g) its variance.
    With plain means both are steps_per_round; with step-normalized averaging they are steps_per_round·c and
    steps_per_round·c², where c = (mean steps_per_round of the group) / steps_per_round. With f_s (g,) the steps taken
    after s = 1 … P−1 parts: `partial` (g,) = Σ_s f_s, `gram` (g, g) = Σ_s f_s f_sᵀ.
    """

    instants: int
    noise: Floats
    push: Floats
    partial: Floats
    gram: Floats

    @classmethod
    def of(cls, worker_steps: Whole, group_worker_steps: Floats, averaging: Averaging, instants: int) -> RoundSteps:
        """Build from each worker's steps per round (g,) and its groups' mean steps per round (T, g).

        `instants` P is the largest steps per round of the schedule. O(P·d² + g²) for d distinct numbers of steps.
        """
        scale = np.ones_like(group_worker_steps)
        if averaging is Averaging.STEP_NORMALIZED:
            scale = group_worker_steps / worker_steps
        distinct, place = np.unique(worker_steps, return_inverse=True)
        if len(distinct) == 1 and distinct[0] == instants:  # closed sums: a million steps must not need a table
            sums = np.array([instants * (instants - 1) / 2])
            grams = np.array([[(instants - 1) * instants * (2 * instants - 1) / 6]])
        else:
            sums, grams = _sums(distinct, instants)
        return cls(instants, worker_steps * scale**2, worker_steps * scale, sums[place], grams[np.ix_(place, place)])

    @classmethod
    def equal(cls, steps_per_round: int, period: int) -> RoundSteps:
        """Return the steps of one worker that stands for all, with `steps_per_round` in each of `period` rounds."""
        group = np.full((period, 1), float(steps_per_round))
        return cls.of(np.array([steps_per_round]), group, Averaging.MEAN, steps_per_round)


def _sums(distinct: Whole, instants: int) -> tuple[Floats, Floats]:
    """Return Σ_s f_s and Σ_s f_s f_sᵀ over s = 1 … P−1, where f_s are the steps taken by instant s of P = `instants`.

    `distinct` (d,) are the distinct steps per round; the sums have the shapes (d,) and (d, d).
    """
    sums = np.zeros(len(distinct))
    grams = np.zeros((len(distinct), len(distinct)))
    width = max(1, 2**20 // len(distinct))
    for first in range(1, instants, width):
        s = np.arange(first, min(first + width, instants), dtype=np.int64)
        steps = (s[:, None] * distinct // instants).astype(np.float64)
        sums += steps.sum(axis=0)
        grams += steps.T @ steps
    return sums, grams


def group_worker_steps(steps: Sequence[MixingStep], worker_steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the mean steps per round of each worker's group in each of the T phases or rounds `steps`, (T, n).

    `worker_steps` (n,) are the steps per round of each worker. A worker that skips is its own group. In rounds of
    weighted averaging each worker with an edge gets the mean steps_per_round of all workers. Fractions stay fractions.
    """
    result = np.tile(worker_steps / 1, (len(steps), 1))
    for t, step in enumerate(steps):
        if not isinstance(step, Phase):
            result[t, np.union1d(step.sources, step.targets)] = worker_steps.mean()
        elif len(step):
            means = np.add.reduceat(worker_steps[step.members], step.offsets[:-1]) / step.sizes
            result[t, step.members] = np.repeat(means, step.sizes)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """C sectors of the same size g; each occurs `multiplicity` times in the space of all workers.

    `matrices` (T, C, g, g), real or complex, are those of the T phases with the mean projected out; `mean` (C, g) is
    the mean's unit vector in each sector, or zeros; `round_steps` are the steps of the g workers in a round. On each
    sector the matrix that is 1 for two workers on one node, else 0, is U Uᴴ with U = `node_columns` (C, g, k); None if
    it is unknown.
    """

    multiplicity: Floats
    matrices: npt.NDArray[Any]
    mean: npt.NDArray[Any]
    round_steps: RoundSteps
    node_columns: npt.NDArray[Any] | None

    @property
    def size(self) -> int:
        return int(self.matrices.shape[-1])

    @property
    def period(self) -> int:
        return int(self.matrices.shape[0])

    def product(self, start: int = 0) -> npt.NDArray[Any]:
        """Return the product W_{s+T−1} … W_s over a period from phase s = `start`, in each sector; shape (C, g, g)."""
        result: npt.NDArray[Any] = self.matrices[start % self.period]
        for t in range(1, self.period):
            result = self.matrices[(start + t) % self.period] @ result
        return result

    def off_mean(self, columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return `columns` (C, g, k) without their component along the mean."""
        along = self.mean.conj()[:, None, :] @ columns
        result: npt.NDArray[Any] = columns - self.mean[:, :, None] * along
        return result

    def off_mean_diagonal(self, diagonal: Floats) -> npt.NDArray[Any]:
        """Return Π diag(d) Π in each of the C sectors, Π the projection off the mean, d = `diagonal`, (C, g, g)."""
        full = np.broadcast_to(np.diag(diagonal), (len(self.multiplicity), self.size, self.size))
        half = self.off_mean(full)
        return adjoint(self.off_mean(adjoint(half)))


@dataclass(frozen=True, eq=False)
class Sectors:
    """The decomposition of one schedule into sectors, which together span the values of all workers.

    Sectors of equal size form a batch. `is_delayed`: averages are a round late; `how` is the method, for `Metric.how`.
    """

    num_workers: int
    batches: Sequence[Batch]
    is_delayed: bool
    how: str

    @cached_property
    def radius(self) -> float:
        """Return the spectral radius of a period's matrix with the mean projected out, the same for every start."""
        return _clean(max(float(spectral_radii(batch.product()).max()) for batch in self.batches))


def adjoint(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the conjugate transpose of every matrix in a stack (..., g, g)."""
    result: npt.NDArray[Any] = matrices.conj().swapaxes(-1, -2)
    return result


def traces(stack: npt.NDArray[Any]) -> Floats:
    """Return the real part of the trace of every matrix in a stack (..., g, g)."""
    return np.asarray(np.trace(stack, axis1=-2, axis2=-1).real, dtype=np.float64)


def spectral_norms(matrices: npt.NDArray[Any]) -> Floats:
    """Return ‖A‖₂ of every matrix A in a stack (C, g, g), shape (C,)."""
    if matrices.shape[-1] == 1:
        return np.asarray(np.abs(matrices[:, 0, 0]), dtype=np.float64)
    return np.asarray(np.linalg.svd(matrices, compute_uv=False)[:, 0], dtype=np.float64)


def spectral_radii(matrices: npt.NDArray[Any]) -> Floats:
    """Return the largest modulus of an eigenvalue of every matrix in a stack (C, g, g), shape (C,).

    Eigenvalue solvers return ε^(1/g) instead of 0 for nilpotent matrices (de Bruijn graphs); the function therefore
    first looks for a power that vanishes up to rounding.
    """
    if matrices.shape[-1] == 1:
        return np.asarray(np.abs(matrices[:, 0, 0]), dtype=np.float64)
    if np.array_equal(matrices, adjoint(matrices)):
        return np.asarray(np.abs(np.linalg.eigvalsh(matrices)).max(axis=1), dtype=np.float64)
    radii = np.asarray(np.abs(np.linalg.eigvals(matrices)).max(axis=1), dtype=np.float64)
    radii[_nilpotent(matrices)] = 0.0
    return radii


def _nilpotent(matrices: npt.NDArray[Any]) -> Flags:
    size = matrices.shape[-1]
    power = matrices
    vanished = np.zeros(len(matrices), dtype=np.bool_)
    exponent = 1
    while exponent < 2 * size:
        norms = np.linalg.norm(power, axis=(-2, -1))
        # A power far below the square of the previous one is due to cancellation, not only to contraction.
        vanished |= norms <= 4 * size * np.finfo(np.float64).eps
        power = power / np.where(vanished, 1.0, norms)[:, None, None]
        power = power @ power
        exponent *= 2
    return vanished


def contraction_of(sectors: Sectors, start: int = 0) -> float:
    """Return the largest factor by which the T rounds from phase `start` multiply the distance to the mean.

    If rounds are doubly stochastic it is ‖W_{s+T−1} … W_s − J‖₂. O(Σ C g³), over the batches of C sectors of size g.
    """
    return _clean(max(float(spectral_norms(batch.product(start)).max()) for batch in sectors.batches))


def contraction_per_start(sectors: Sectors) -> tuple[float, ...]:
    """Return the contraction (`contraction_of`) of the period that starts at each of its T phases.

    O(T² Σ C g³), over the batches of C sectors of size g.
    """
    return tuple(contraction_of(sectors, start) for start in range(sectors.batches[0].period))


def _clean(value: float) -> float:
    return 0.0 if value < ZERO else value
