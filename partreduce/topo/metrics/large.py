"""The contraction of explicit schedules that are too large for dense matrices: scipy's Lanczos on sparse factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.metrics.base import Kind, Metric, absent
from partreduce.topo.metrics.sectors import ZERO
from partreduce.topo.mixing import mixing_sparse
from partreduce.topo.phase import Phase

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

    from partreduce.topo.round import MixingStep
    from partreduce.topo.schedule import Schedule

ACCURACY = 1e-4
"""The relative residual, of the square of the singular value, at which `svds` stops."""
MAX_RESTARTS = 200
TRANSPORT = f"scipy's svds on sparse factors, to a relative residual of {ACCURACY:g}; the contraction is at least that"


def large_contraction(schedule: Schedule, start: int) -> Metric:
    """‖P − J‖₂ as an estimate from below. O(steps · T · n)."""
    from scipy.sparse.linalg import ArpackNoConvergence, aslinearoperator, svds

    n = schedule.num_workers
    mean = aslinearoperator(np.full((n, 1), 1 / n)) @ aslinearoperator(np.ones((1, n)))
    off_mean, probe = period_operator(schedule, start) - mean, np.random.default_rng(0).standard_normal(n)
    if np.linalg.norm(off_mean @ probe) <= ZERO * np.linalg.norm(probe):  # svds needs a largest value above rounding
        return Metric(0.0, Kind.ESTIMATE, TRANSPORT)
    try:
        norms = svds(off_mean, k=1, tol=ACCURACY, v0=probe, maxiter=MAX_RESTARTS, return_singular_vectors=False)
    except ArpackNoConvergence:
        return absent(f"not found: scipy's svds did not converge in {MAX_RESTARTS} restarts")
    return Metric(float(norms[0]), Kind.ESTIMATE, TRANSPORT)


def period_operator(schedule: Schedule, start: int = 0) -> LinearOperator:
    """P = W_T … W_1 of the period that begins at phase `start`, as factors that are never multiplied out."""
    steps = schedule.steps()
    factors = {step: _mixing_operator(step) for step in set(steps)}
    first, *others = (factors[steps[(start + t) % len(steps)]] for t in range(len(steps)))
    for factor in others:
        first = factor @ first
    return first


def _mixing_operator(step: MixingStep) -> LinearOperator:
    """W of one round; of group means as x + relaxation·(mean − x), without the k² entries of a group of k."""
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import aslinearoperator

    if not isinstance(step, Phase):
        return aslinearoperator(mixing_sparse(step))
    shape, factors = (len(step), step.num_workers), np.repeat(step.relaxation_factors(), step.sizes)
    sums = csr_array((np.ones(len(step.members)), step.members, step.offsets), shape=shape)
    shares = csr_array((factors / np.repeat(step.sizes, step.sizes), step.members, step.offsets), shape=shape)
    stay = np.ones(step.num_workers)
    stay[step.members] -= factors
    means = aslinearoperator(shares.T) @ aslinearoperator(sums)
    return aslinearoperator(diags_array(stay)) + means if stay.any() else means
