"""Mixing matrices of one phase or round: dense, sparse, exact, and their products over a period.

Column j of W says where worker j's parameters go, row i what worker i's become: x ← W x. A phase of group means with
factors `relaxation` is symmetric with unit row and column sums; a round of weighted averaging has unit row sums, and
unit column sums only when it is doubly stochastic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep, Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from scipy.sparse import csr_array

    from partreduce.topo.schedule import Schedule


MAX_DENSE_WORKERS = 20_000
MAX_EXACT_WORKERS = 2_000


def mixing_matrix(step: MixingStep) -> npt.NDArray[np.float64]:
    """The dense mixing matrix W, shape (n, n). O(n²).

    Raises:
        InputError: more than 20,000 workers: use `mixing_sparse`.
        ScheduleError: two groups of a phase share a worker.
    """
    _check_size(step.num_workers, MAX_DENSE_WORKERS, "use mixing_sparse")
    return np.asarray(mixing_sparse(step).todense(), dtype=np.float64)


def mixing_sparse(step: MixingStep) -> csr_array:
    """The mixing matrix in compressed rows; a group of k workers holds k² entries. O(number of entries).

    Raises:
        ScheduleError: two groups of a phase share a worker.
    """
    from scipy.sparse import coo_array, csr_array, diags_array

    n = step.num_workers
    if isinstance(step, Round):
        weights = step.edge_weights()
        stay = 1.0 - np.bincount(step.targets, weights=weights, minlength=n)
        moves = coo_array((weights, (step.targets, step.sources)), shape=(n, n))
        return csr_array(moves + diags_array(stay))
    labels = step.labels()
    member = labels >= 0
    averaging = csr_array(
        (np.ones(int(member.sum())), (labels[member], np.flatnonzero(member))), shape=(max(len(step), 1), n)
    )
    factor = np.zeros(max(len(step), 1))
    factor[: len(step)] = step.relaxation_factors()
    share = factor / np.maximum(1, np.bincount(labels[member], minlength=max(len(step), 1)))
    stay = np.where(member, 1.0 - factor[labels], 1.0)
    return csr_array(averaging.T @ diags_array(share) @ averaging + diags_array(stay))


def exact_product(steps: Sequence[MixingStep]) -> ExactMatrix:
    """W_T … W_1 of phases or rounds, the first applied first, over one common denominator. O(T · n · entries).

    Raises:
        InputError: more than 2,000 workers.
        ScheduleError: two groups of a phase share a worker.
    """
    n = steps[0].num_workers
    _check_size(n, MAX_EXACT_WORKERS, "rules have exact_consensus_distance, whatever their size")
    product = ExactMatrix.identity(n)
    for step in steps:
        if isinstance(step, Round):
            product = product.drawn(step.edges())
        else:
            step.labels()
            product = product.averaged((group.members, group.relaxation, True) for group in step)
    return product


def period_product(schedule: Schedule, start: int = 0) -> npt.NDArray[np.float64]:
    """W_{s+T−1} … W_{s+1} W_s, dense, for the period that starts at phase `start`; shape (n, n). O(T · entries · n).

    Raises:
        InputError: more than 20,000 workers.
        ScheduleError: the strategy has no fixed phases.
    """
    steps = schedule.steps()
    _check_size(schedule.num_workers, MAX_DENSE_WORKERS, "apply mixing_sparse round by round")
    product = np.eye(schedule.num_workers)
    for t in range(len(steps)):
        product = mixing_sparse(steps[(start + t) % len(steps)]) @ product
    return product


def is_doubly_stochastic(step: MixingStep) -> bool:
    """Whether rows *and* columns sum to 1, exactly. Entries may be negative (relaxation above |G|/(|G|−1)). O(entries).

    Raises:
        ScheduleError: two groups of a phase share a worker.
    """
    if isinstance(step, Phase):
        step.labels()
        return True
    return not step.surplus()


def has_negative_entries(step: MixingStep) -> bool:
    """Whether an entry of W is negative: a relaxation > |G|/(|G|−1), or weights that exceed 1. O(entries)."""
    if isinstance(step, Phase):
        if step.relaxation is None:
            return False
        return any(r * (k - 1) > k for r, k in zip(step.relaxation, step.sizes.tolist(), strict=True))
    return any(weight < 0 for weight in step.weights) or step.own_weight() < 0


def _check_size(n: int, limit: int, way_out: str) -> None:
    if n > limit:
        raise InputError(f"mixing matrix: {n} workers; at most {limit} are held as one matrix; {way_out}")
