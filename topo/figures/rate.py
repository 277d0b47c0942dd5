"""How fast a period pulls workers together: contraction, spectral radius, rounds until agreement; random partitions."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.topo.errors import InputError
from partreduce.topo.figures.sectors import spectral_norms

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from partreduce.topo.figures.sectors import Sectors

ZERO = 1e-14
"""Norms below this are rounding: they are reported as 0."""

NEVER = 1 - 1e-12
"""A radius from here on is 1 up to rounding: such a schedule never converges."""


def contraction_of(sectors: Sectors, start: int = 0) -> float:
    """‖W_{s+T−1} … W_s − J‖₂. O(Σ C g³)."""
    return _clean(max(float(spectral_norms(batch.product(start)).max()) for batch in sectors.batches))


def contraction_per_start(sectors: Sectors) -> tuple[float, ...]:
    """The contraction of the period that starts at each phase. O(T Σ C g³ T)."""
    return tuple(contraction_of(sectors, start) for start in range(sectors.batches[0].period))


def radius_of(sectors: Sectors) -> float:
    """The spectral radius of the period product off the mean; it does not depend on the start. O(Σ C g³)."""
    return _clean(sectors.radius)


def spectrum_of(sectors: Sectors) -> tuple[npt.NDArray[np.complex128], npt.NDArray[np.int64]]:
    """All eigenvalues of the period product, and how often each stands in it; the mean's own 1 is among them."""
    values, counts = [], []
    for batch in sectors.batches:
        product = batch.product() + batch.mean[:, :, None] * batch.mean.conj()[:, None, :]
        values.append(np.linalg.eigvals(product).astype(np.complex128).reshape(-1))
        counts.append(np.repeat(np.rint(batch.multiplicity).astype(np.int64), batch.size))
    return np.concatenate(values), np.concatenate(counts)


def rounds_until(sectors: Sectors, epsilon: float) -> int | None:
    """The least t with ‖W_t … W_1 − J‖₂ ≤ epsilon, None if that never happens. O(log t) products.

    Assumes that no phase enlarges the distance to the mean, as group means with 0 ≤ relax ≤ 2 and doubly stochastic
    rounds never do.
    """
    if radius_of(sectors) >= NEVER:
        return None
    powers = [[batch.product() for batch in sectors.batches]]
    while _largest(powers[-1]) > epsilon:
        powers.append([power @ power for power in powers[-1]])
    current: list[npt.NDArray[Any]] = [
        np.broadcast_to(np.eye(b.size), (len(b.multiplicity), b.size, b.size)) for b in sectors.batches
    ]
    rounds, period = 0, sectors.batches[0].period
    for exponent in reversed(range(len(powers))):
        longer = [power @ matrix for power, matrix in zip(powers[exponent], current, strict=True)]
        if _largest(longer) > epsilon:
            current, rounds = longer, rounds + period * 2**exponent
    for t in range(period + 1):
        if rounds + t and _largest(current) <= epsilon:
            return rounds + t
        current = [b.matrices[t % period] @ m for b, m in zip(sectors.batches, current, strict=True)]
    return None


def _largest(stacks: Sequence[npt.NDArray[Any]]) -> float:
    return max(float(spectral_norms(stack).max()) for stack in stacks)


def _clean(value: float) -> float:
    return 0.0 if value < ZERO else value


def random_partition_factor(num_workers: int, group_size: int) -> Fraction:
    """E‖x − mean‖² after one round of means in uniformly random groups, as a part of what it was before. O(1).

    (E[K] − 1)/(n − 1) for K groups counting each skipping worker as one: a uniformly random projection of rank K keeps
    that part of the squared distance. Here K is the least number of groups of at most `group_size` workers that are
    all full but one. About 1/√group_size per round on the distance, whatever n.

    Raises:
        InputError: fewer than 2 workers, or a group size outside 1..num_workers.
    """
    if num_workers < 2:
        raise InputError(f"random partition: {num_workers} workers; at least 2 are needed")
    if not 1 <= group_size <= num_workers:
        raise InputError(f"random partition: group size {group_size}; it lies in 1..{num_workers}")
    return expected_partition_factor(num_workers, Fraction(-(-num_workers // group_size)))


def expected_partition_factor(num_workers: int, expected_blocks: Fraction) -> Fraction:
    """(E[K] − 1)/(n − 1), for any exchangeable random partition with E[K] blocks (skips included). O(1).

    Raises:
        InputError: fewer than 2 workers, or an expectation outside 1..num_workers.
    """
    if num_workers < 2 or not 1 <= expected_blocks <= num_workers:
        raise InputError(
            f"random partition: {expected_blocks} blocks expected of {num_workers} workers; 1 <= blocks <= workers"
        )
    return (Fraction(expected_blocks) - 1) / (num_workers - 1)
