"""Chains: a period of many workers as a product of sparse factors that is applied, never multiplied out.

When every group takes the plain mean, W_t = S_tᵀ S_t with the K_t × n matrix S_t of orthonormal rows 1_group/√size (a
worker that skips is a group of one). Then P = S_Tᵀ (S_T S_{T−1}ᵀ) … (S_2 S_1ᵀ) S_1, and since S_Tᵀ and S_1 keep
lengths, ‖P − J‖ is the norm of the product of the T−1 small factors: vectors shrink from n to n/g entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from partreduce.topo.mixing import mixing_sparse
from partreduce.topo.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from scipy.sparse import csr_array

    from partreduce.topo.round import MixingStep

    Vector = npt.NDArray[np.float64]


class Factor(Protocol):
    """One linear map of a chain."""

    def forward(self, x: Vector) -> Vector:
        """Apply it."""

    def backward(self, x: Vector) -> Vector:
        """Apply its transpose."""


class Step(Factor, Protocol):
    """The mixing matrix W of one round, on the workers."""

    def column_squares(self) -> Vector:
        """‖W e_j − mean‖² for every worker j: how much of its noise is left after the round."""


def inner(x: Vector, y: Vector) -> float:
    """The inner product in one thread: for vectors in cache, waking BLAS threads costs more than the product."""
    return float(np.einsum("i,i->", x, y))


@dataclass(frozen=True, slots=True, eq=False)
class Averaging:
    """A phase on the workers: x ← x + relax·(mean − x) in each group. Symmetric. O(n)."""

    sums: csr_array
    labels: npt.NDArray[np.int32]
    share: Vector
    stay: Vector | None

    @classmethod
    def of(cls, phase: Phase) -> Averaging:
        """Prepare a phase whose groups are disjoint."""
        from scipy.sparse import csr_array

        labels, count = phase.labels(), len(phase)
        # One more slot, always zero, is what workers that skip read.
        ones, offsets = np.ones(len(phase.members)), np.append(phase.offsets, phase.offsets[-1])
        sums = csr_array((ones, phase.members, offsets), shape=(count + 1, phase.num_workers))
        factors = phase.relax_factors()
        share = np.append(factors / phase.sizes, 0.0)
        keep = np.append(1 - factors, 1.0)[labels]
        return cls(sums, np.where(labels < 0, count, labels).astype(np.int32), share, keep if keep.any() else None)

    def forward(self, x: Vector) -> Vector:
        moved: Vector = (self.share * (self.sums @ x)).take(self.labels)
        if self.stay is not None:
            moved += self.stay * x
        return moved

    backward = forward

    def column_squares(self) -> Vector:
        """(stay + share)² of itself and share² of each other member; all columns sum to 1."""
        share = self.share[self.labels]
        stay = 0.0 if self.stay is None else self.stay
        sizes = np.diff(self.sums.indptr)[self.labels]
        result: Vector = stay**2 + 2 * stay * share + sizes * share**2 - 1 / len(self.labels)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Any sparse matrix and its transpose."""

    matrix: csr_array
    transposed: csr_array

    @classmethod
    def of(cls, step: MixingStep) -> Sparse:
        """The mixing matrix of a round."""
        matrix = mixing_sparse(step)
        return cls(matrix, matrix.T.tocsr())

    def forward(self, x: Vector) -> Vector:
        result: Vector = self.matrix @ x
        return result

    def backward(self, x: Vector) -> Vector:
        result: Vector = self.transposed @ x
        return result

    def column_squares(self) -> Vector:
        """From the entries of each column."""
        totals = self.transposed @ np.ones(self.matrix.shape[0])
        result: Vector = self.transposed.power(2) @ np.ones(self.matrix.shape[0]) - totals**2 / self.matrix.shape[0]
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """S_{t+1} S_tᵀ: from the means of one partition to those of the next. O(n), vectors of n/g entries."""

    onward: csr_array
    back: csr_array
    first: Vector
    second: Vector

    def forward(self, x: Vector) -> Vector:
        result: Vector = self.second * (self.onward @ (self.first * x))
        return result

    def backward(self, x: Vector) -> Vector:
        result: Vector = self.first * (self.back @ (self.second * x))
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A product of factors, the first applied first; `mean_in` is the mean's unit vector on its input."""

    factors: tuple[Factor, ...]
    mean_in: Vector

    @classmethod
    def of_workers(cls, steps: Sequence[MixingStep], start: int = 0) -> Chain:
        """The period product on the workers themselves. Equal phases are prepared once."""
        n = steps[0].num_workers
        mean = np.full(n, 1 / np.sqrt(n))
        return cls(on_workers([steps[(start + t) % len(steps)] for t in range(len(steps))]), mean)

    @classmethod
    def of_norm(cls, steps: Sequence[MixingStep]) -> Chain:
        """A chain whose norm off the mean is the period's contraction: on group means where all phases are plain."""
        if any(not isinstance(step, Phase) or step.relax is not None for step in steps):
            return cls.of_workers(steps)
        partitions = [Partition.of(step) for step in steps if isinstance(step, Phase)]
        factors = tuple(transfer(a, b) for a, b in pairwise(partitions))
        n = steps[0].num_workers
        return cls(factors, np.sqrt(partitions[0].sizes / n))

    def forward(self, x: Vector) -> Vector:
        for factor in self.factors:
            x = factor.forward(x)
        return x

    def backward(self, x: Vector) -> Vector:
        for factor in reversed(self.factors):
            x = factor.backward(x)
        return x

    def off_mean(self, x: Vector) -> Vector:
        """Take the mean's direction out of an input of the chain."""
        return x - self.mean_in * inner(self.mean_in, x)


def on_workers(steps: Sequence[MixingStep]) -> tuple[Step, ...]:
    """Each round on the workers themselves. Equal ones are prepared once."""
    ready: dict[MixingStep, Step] = {}
    for step in steps:
        if step not in ready:
            ready[step] = Averaging.of(step) if isinstance(step, Phase) else Sparse.of(step)
    return tuple(ready[step] for step in steps)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A phase as a full partition: groups first, then the workers that skip, one by one."""

    labels: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    sizes: Vector

    @classmethod
    def of(cls, phase: Phase) -> Partition:
        """Prepare a phase whose groups are disjoint. O(n)."""
        labels = phase.labels()
        idle = np.flatnonzero(labels < 0).astype(np.int32)
        labels[idle] = len(phase) + np.arange(len(idle), dtype=np.int32)
        last = int(phase.offsets[-1])
        offsets = np.concatenate([phase.offsets, last + 1 + np.arange(len(idle))])
        return cls(labels, np.concatenate([phase.members, idle]), offsets, np.diff(offsets).astype(np.float64))


def transfer(first: Partition, second: Partition) -> Transfer:
    """S_second S_firstᵀ, on the means of partition `first`. O(n)."""
    from scipy.sparse import csr_array

    ones = np.ones(len(first.labels))
    shape = (len(second.sizes), len(first.sizes))
    onward = csr_array((ones, first.labels[second.order], second.offsets), shape=shape)
    back = csr_array((ones, second.labels[first.order], first.offsets), shape=shape[::-1])
    return Transfer(onward, back, 1 / np.sqrt(first.sizes), 1 / np.sqrt(second.sizes))
