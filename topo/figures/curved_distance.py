"""How far apart averagings leave workers in a direction in which the loss is curved, in lockstep and a round late.

Along an eigenvector of a quadratic loss let h be the learning rate times the curvature: k steps of a worker's own
multiply its deviation from the mean by c = (1 − h)^k. In a direction in which the averaging W has the eigenvalue λ a
round in lockstep multiplies it by λc: deviations die by themselves, the more the longer a round is, so that long rounds
leave workers less far apart than the consensus distance says. Late, W acts on what the round began with,
x ← Wx + (c − 1)x, so that a round multiplies it by

    λ − 1 + c = λ − 1 + (1 − h)^k.

Perfect averaging, λ = 0, is the worst case: the factor nears −1 as h·k grows, so that deviations hardly die and change
sign from round to round, and from h = 1 on an odd k makes them grow. Flat directions (h = 0) do not see any of that:
there a late deviation is multiplied by λ as any other.

The *curved distance* is the consensus distance at a given h: fresh unit noise in every step, a mean square over all
instants of a period, after as many periods as a training has (a late factor near −1 needs long to reach its steady
state, one beyond it has none). Of a schedule whose averagings come late it is called its *late distance*. Where paces
differ all workers' deviations are taken to die as at the mean pace. Derived here; the tests compare it with the
recursion carried out on noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isfinite, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.figures.sectors import Batch, Sectors, adjoint

CURVATURE = 0.1
"""The h that the steps model prices: its fit over tasks of five kinds (`benchmarks.steps_to_loss.lateness`)."""
HORIZON = 256
"""Steps after which the distance is taken."""
MOST = 64
"""Directions of a sector; of larger ones the distance is estimated."""


def distances_of(
    sectors: Sectors,
    paces: Sequence[float],
    *,
    late: bool,
    built_at: float = 1.0,
    curvature: float = CURVATURE,
) -> npt.NDArray[np.float64]:
    """The consensus distance at a curvature, (paces,). O(paces Σ C g³ (T + log(HORIZON / T))) for a period of T rounds.

    Args:
        sectors: of the schedule, in lockstep.
        paces: steps of a round, in the mean over workers, with the same number of `doublings`.
        late: whether averagings come a round late.
        built_at: the mean pace that the sectors have.
        curvature: learning rate times curvature; 0 gives the consensus distance.
    """
    total = np.zeros(len(paces))
    for batch in sectors.batches:
        noises = [batch.off_mean_diagonal(noise / built_at) for noise in batch.round_steps.noise]
        total += _traces(batch.matrices, noises, _unit(batch), paces, curvature, late=late) @ batch.multiplicity
    return total / sectors.num_workers


def doublings(pace: float, period: int) -> int:
    """How often a period is doubled until it is as long as the horizon."""
    return ceil(log2(max(1.0, HORIZON / (pace * period))))


def distance_like(
    consensus_distance: float, pace: float, share: float, *, late: bool, curvature: float = CURVATURE
) -> float:
    """The same of what mixes in all directions alike, from its consensus distance as it runs. O(pace).

    It stands for averagings of which no more is known, or which are decided while the job runs: their one eigenvalue
    is that which gives this consensus distance at h = 0. `share` is that of a worker's noise off the mean, 1 − 1/n.
    """
    if not isfinite(consensus_distance):
        return inf
    steps = max(1, round(pace))
    begun = consensus_distance / share - (steps - 1) / 2  # what a round begins with, for each direction
    ends = max(float(steps), begun + (0 if late else steps))
    root, unit = np.full((1, 1, 1, 1), (1 - steps / ends) ** 0.5), np.ones((1, 1, 1))
    return share * float(_traces(root, [unit], unit, [steps], curvature, late=late)[0, 0])


def is_small(sectors: Sectors) -> bool:
    """Whether the distance at many paces costs less than it says: sectors of at most 64."""
    return all(batch.size <= MOST for batch in sectors.batches)


def _unit(batch: Batch) -> npt.NDArray[Any]:
    """What one step of every worker adds, (C, g, g)."""
    return batch.off_mean_diagonal(np.ones(batch.size))


def _traces(
    mixing: npt.NDArray[Any],
    noises: list[npt.NDArray[Any]],
    unit: npt.NDArray[Any],
    paces: Sequence[float],
    curvature: float,
    *,
    late: bool,
) -> npt.NDArray[np.float64]:
    """The traces of Σ, (paces, C), in the mean of a period's instants; `mixing` (T, C, g, g), the others (C, g, g)."""
    own = 1 - curvature
    inner = [np.arange(1, ceil(pace)) * (pace / ceil(pace)) for pace in paces]  # steps that are made within a round
    kept = np.array([(abs(own) ** (2 * steps)).sum() for steps in inner])  # variance that is left there of what was
    added = np.array([_summed(steps, own).sum() for steps in inner])  # and that was added
    made, after = _summed(np.array(paces, float), own), np.array([own**pace for pace in paces])  # by a whole round
    made, after = made[:, None, None, None], after[:, None, None, None]
    matrices = [matrix - (1 - after) * unit if late else after * matrix for matrix in mixing]  # (paces, C, g, g) each
    fresh = [noise if late else matrix @ noise @ adjoint(matrix) for matrix, noise in zip(mixing, noises, strict=True)]
    product = np.broadcast_to(np.eye(mixing.shape[-1]), matrices[0].shape)
    covariance = np.zeros_like(matrices[0])
    for matrix, noise in zip(matrices, fresh, strict=True):
        covariance, product = matrix @ covariance @ adjoint(matrix) + made * noise, matrix @ product
    times = doublings(paces[0], len(mixing))
    covariance = lyapunov.steady_state(product, covariance, negligible=0.0, max_doublings=times).covariance
    total = np.zeros(covariance.shape[:2])
    for matrix, noise in zip(matrices, fresh, strict=True):
        total += kept[:, None] * _trace(covariance) + added[:, None] * _trace(unit)
        covariance = matrix @ covariance @ adjoint(matrix) + made * noise
        total += _trace(covariance)
    return total / (len(mixing) * np.array([[ceil(pace)] for pace in paces]))


def _summed(steps: npt.NDArray[np.float64], own: float) -> npt.NDArray[np.float64]:
    """The variance that so many steps leave of unit noise in each: Σ own²ʲ over j below the steps."""
    return steps if own == 1 else (1 - abs(own) ** (2 * steps)) / (1 - own**2)


def _trace(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(np.trace(stack, axis1=-2, axis2=-1).real)
