"""How far apart averagings that come a round late leave workers, in a direction in which the loss is curved.

Along an eigenvector of a quadratic loss let h be the learning rate times the curvature: k steps of a worker's own
multiply its deviation from the mean by c = (1 − h)^k. In a direction in which the averaging W has the eigenvalue λ a
round synchronously multiplies it by λc. Late, W acts on what the round began with, x ← Wx + (c − 1)x, so that a round
multiplies it by

    λ − 1 + c = λ − 1 + (1 − h)^k.

Perfect averaging, λ = 0, is the worst case: the factor nears −1 as h·k grows, so that deviations hardly die and change
sign from round to round, and from h = 1 on an odd k makes them grow. Flat directions (h = 0) do not see any of that:
there a late deviation is multiplied by λ as any other, which the consensus distance already holds.

The *late distance* is the consensus distance at a given h of a schedule whose averagings come late: fresh unit noise in
every step, a mean square over all instants of a period, after as many periods as a training has (a factor near −1
needs long to reach its steady state, one beyond it has none). Derived here; the tests compare it with the recursion
carried out on noise.
"""

from __future__ import annotations

from math import ceil, inf, isfinite, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.metrics.sectors import Sectors, adjoint

CURVATURE = 0.25
"""The h that the steps model prices: its fit over tasks of five kinds (`benchmarks.steps_to_loss.delay`)."""
HORIZON = 256
"""Steps after which the distance is taken."""
MOST = 64
"""Directions of a sector; of larger ones the late distance is estimated."""


def late_distance_of(sectors: Sectors, steps_per_round: int, curvature: float = CURVATURE) -> float:
    """The late distance, from synchronous averages with 1 step per round. O(Σ C g³ log(HORIZON / period)).

    Args:
        sectors: of the schedule.
        steps_per_round: steps of a round, the same for all workers.
        curvature: learning rate times curvature; 0 gives the consensus distance of the late schedule.
    """
    total = sum(
        float(
            batch.multiplicity
            @ _traces(batch.matrices, batch.off_mean_diagonal(np.ones(batch.size)), steps_per_round, curvature)
        )
        for batch in sectors.batches
    )
    return total / sectors.num_workers


def late_distance_like(
    consensus_distance: float, steps_per_round: float, share: float, curvature: float = CURVATURE
) -> float:
    """The late distance where all directions mix equally, from the late consensus distance. O(steps_per_round).

    It stands for averagings of which no more is known, or which are decided while the job runs: their one eigenvalue
    is that which gives this consensus distance at h = 0. `share` is that of a worker's noise off the mean, 1 − 1/n.
    """
    if not isfinite(consensus_distance):
        return inf
    steps = max(1, round(steps_per_round))
    ends = max(float(steps), consensus_distance / share - (steps - 1) / 2)  # what a round ends with, for each direction
    root = np.full((1, 1, 1, 1), (1 - steps / ends) ** 0.5)
    return share * float(_traces(root, np.ones((1, 1, 1)), steps, curvature)[0])


def is_small(sectors: Sectors) -> bool:
    """Whether the late distance at many steps per round costs less than it says: sectors of at most 64."""
    return all(batch.size <= MOST for batch in sectors.batches)


def _traces(
    mixing: npt.NDArray[Any], off_mean: npt.NDArray[Any], steps_per_round: int, curvature: float
) -> npt.NDArray[np.float64]:
    """The traces of Σ, (C,), averaged over the instants of a period; `mixing` (T, C, g, g), `off_mean` (C, g, g)."""
    kept = (1 - curvature) ** (
        2 * np.arange(steps_per_round + 1)
    )  # variance that is left after s own steps, (steps_per_round + 1,)
    added = np.concatenate([[0.0], np.cumsum(kept[:-1])])  # variance that s steps add
    period, noise = len(mixing), added[steps_per_round] * off_mean
    matrices = mixing - (1 - (1 - curvature) ** steps_per_round) * off_mean
    adjoints = adjoint(matrices)
    product, covariance = np.broadcast_to(np.eye(mixing.shape[-1]), noise.shape), np.zeros_like(noise)
    for matrix, turned in zip(matrices, adjoints, strict=True):
        covariance, product = matrix @ covariance @ turned + noise, matrix @ product
    doublings = ceil(log2(max(1.0, HORIZON / (steps_per_round * period))))
    covariance = lyapunov.steady_state(product, covariance, negligible=0.0, max_doublings=doublings).covariance
    total, left, inside = (
        np.zeros(len(noise)),
        kept[1:steps_per_round].sum(),
        added[1:steps_per_round].sum() * _trace(off_mean),
    )
    before = _trace(covariance)
    for matrix, turned in zip(matrices, adjoints, strict=True):
        covariance = matrix @ covariance @ turned + noise
        after = _trace(covariance)
        total += left * before + inside
        total += after
        before = after
    return total / (period * steps_per_round)


def _trace(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(np.trace(stack, axis1=-2, axis2=-1).real)
