"""Late distance: how far apart late averages leave workers, in a direction in which the loss is curved.

Along an eigenvector of a quadratic loss let h be the learning rate times the curvature: k local steps multiply a
worker's deviation from the mean by c = (1 − h)^k. In a direction in which the averaging W has the eigenvalue λ, a
synchronous round multiplies it by λc. If the average is late, W acts on the parameters at the start of the round, x ←
Wx + (c − 1)x, so that a round multiplies it by

    λ − 1 + c = λ − 1 + (1 − h)^k.

Perfect averaging, λ = 0, is the worst case: the factor approaches −1 as h·k grows, so that deviations hardly decay and
change sign from round to round, and from h = 1 on an odd k makes them grow. Flat directions (h = 0) are unaffected:
there a late deviation is multiplied by λ like any other, which the consensus distance already includes.

The *late distance* is the consensus distance at a given h of a schedule with late averages: independent unit noise in
every step, a mean square over all instants of a period, after `HORIZON` steps instead of in the steady state (a factor
near −1 reaches it slowly, one beyond −1 has none).

`RetimedMetrics` derives the metrics of the same phases at other steps_per_round, by formula, from those at 1
synchronous step per round.

With the same steps_per_round k for all workers and equal weights of all gradients, a round adds the noise kI and the
push kb, so with synchronous averages the covariance and the state after a round are k times those at steps_per_round 1.
Within a round, s of its k steps have been added to the parameters at its start. A late average acts on the parameters
at the start of the round, x ← Wx + u, and (W x) + u with x = x' + u' is W(x' + u') + u: the state of a late schedule
after a round is that of the synchronous one after a round *and* the steps of the next. Averaged over the k instants of
a round, with d and D the synchronous consensus distance and drift at steps_per_round 1, D' the late drift at
steps_per_round 1, e the mean square of one worker's noise off the mean and b that of its push:

    consensus distance   k·d + e·(k−1)/2                       late: + k·e
    drift          k²·D + k(k−1)·c + b(k−1)(2k−1)/6      late: k²·D' + k(k−1)·(c+b) + b(k−1)(2k−1)/6

where c = (D' − D − b)/2 is the correlation of the state with the push. Derived here; the tests compare the late
distance with the recursion run on noise, and the others with the steady state for that steps_per_round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isfinite, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.metrics.base import Metric
from partreduce.topo.metrics.sectors import Sectors, adjoint, traces
from partreduce.topo.metrics.steady_state import after_noise

CURVATURE = 0.25
"""The learning rate times curvature, h, at which the steps model takes the late distance.

Fitted over five kinds of tasks (benchmarks/results/steps_to_loss_lateness.md).
"""
HORIZON = 256
"""The number of training steps after which the late distance is taken."""
ASKED = 24
"""The most steps per round for which `RetimedMetrics` computes and caches late distances several at once."""
MOST = 64
"""The largest size of a sector for which the late distance is computed; for larger ones it is estimated."""


def late_distance_of(sectors: Sectors, steps_per_round: int, curvature: float = CURVATURE) -> float:
    """Return the late distance, defined in the module, if all workers take `steps_per_round`.

    `sectors` are those of the schedule at any steps per round; `curvature` is h, learning rate times curvature, and 0
    gives the consensus distance of late averages. O(Σ C g³ log(HORIZON / period)), over batches of C sectors of size g.
    """
    return _late_distances(sectors, (steps_per_round,), curvature)[steps_per_round]


def _late_distances(sectors: Sectors, steps: Sequence[int], curvature: float) -> dict[int, float]:
    """Return the late distance by number of steps per round, for all `steps`, which must have equal `_doublings`."""
    total = np.zeros(len(steps))
    for batch in sectors.batches:
        off_mean = batch.off_mean_diagonal(np.ones(batch.size))
        found = _traces(batch.matrices, off_mean, steps, curvature)
        total += [batch.multiplicity @ row for row in found]  # one at a time, for reproducible rounding
    return dict(zip(steps, (total / sectors.num_workers).tolist(), strict=True))


def late_distance_like(consensus_distance: float, steps_per_round: float, share: float) -> float:
    """Return an estimate of the late distance from `consensus_distance`, that of the schedule with late averages.

    For averages of unknown structure, as groups formed at run time: they are replaced by a matrix with one eigenvalue
    off the mean, which gives this consensus distance. `share` is 1 − 1/n, a worker's mean squared noise off the mean.
    O(steps_per_round).
    """
    if not isfinite(consensus_distance):
        return inf
    steps = max(1, round(steps_per_round))
    ends = max(float(steps), consensus_distance / share - (steps - 1) / 2)  # state at the end of a round, per direction
    root = np.full((1, 1, 1, 1), (1 - steps / ends) ** 0.5)
    return share * float(_traces(root, np.ones((1, 1, 1)), (steps,), CURVATURE)[0, 0])


def is_small(sectors: Sectors) -> bool:
    """Return whether all sectors have at most the size `MOST`, so that late distances are cheap to compute."""
    return all(batch.size <= MOST for batch in sectors.batches)


def _doublings(steps_per_round: int, period: int) -> int:
    """Return the smallest k for which 2^k periods have at least `HORIZON` steps."""
    return ceil(log2(max(1.0, HORIZON / (steps_per_round * period))))


def _traces(
    mixing: npt.NDArray[Any], off_mean: npt.NDArray[Any], steps: Sequence[int], curvature: float
) -> npt.NDArray[np.float64]:
    """Return tr Σ averaged over the instants of a period, (len(steps), C), for each steps per round and each sector.

    Σ is the covariance of the late schedule after `HORIZON` steps, at this learning rate times `curvature`. `mixing`
    (T, C, g, g) are the T rounds on C sectors of size g, `off_mean` (C, g, g) the projections that remove the mean.
    All `steps` must have equal `_doublings`.
    """
    most, period = max(steps), len(mixing)
    kept = (1 - curvature) ** (2 * np.arange(most + 1))  # variance that remains after s local steps
    added = np.concatenate([[0.0], np.cumsum(kept[:-1])])  # variance that s steps add
    moved = np.array([1 - (1 - curvature) ** k for k in steps])[:, None, None, None]
    noise = added[list(steps)][:, None, None, None] * off_mean
    matrices = mixing[:, None] - moved * off_mean  # (T, steps, C, g, g)
    rounds = list(zip(matrices, adjoint(matrices), strict=True))
    product, covariance = np.broadcast_to(np.eye(mixing.shape[-1]), noise.shape), np.zeros_like(noise)
    for matrix, turned in rounds:
        covariance, product = after_noise(covariance, matrix, turned, noise, is_delayed=True), matrix @ product
    doublings = _doublings(steps[0], period)
    covariance = lyapunov.steady_state(product, covariance, negligible=0.0, max_doublings=doublings).covariance
    left = np.array([kept[1:k].sum() for k in steps])[:, None]
    inside = np.array([added[1:k].sum() for k in steps])[:, None] * traces(off_mean)
    total = np.zeros(noise.shape[:2])
    for matrix, turned in rounds:
        total += left * traces(covariance) + inside
        covariance = after_noise(covariance, matrix, turned, noise, is_delayed=True)
        total += traces(covariance)
    return np.asarray(total / (period * np.array(steps)[:, None]), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetimedMetrics:
    """Metrics at 1 synchronous step per round, and methods that derive those at other steps per round and delays.

    `late_drift` is the drift at 1 step per round with averages one round late; `noise` and `push` are the mean squared
    distances from the mean that one step's noise or push gives a worker.
    """

    contraction: Metric
    consensus_distance: Metric
    drift: Metric
    late_drift: Metric
    noise: float
    push: float
    sectors: Sectors | None = None
    """The sectors from which the late distance is computed; None if it is estimated."""
    _late_distances: dict[int, float] = field(default_factory=dict, compare=False)

    def consensus_distance_at(self, steps_per_round: int, *, late: bool) -> Metric:
        """Return the consensus distance at this number of steps per round, synchronous or a round `late`. O(1)."""
        added = self.noise * ((steps_per_round - 1) / 2 + (steps_per_round if late else 0))
        return _scale(self.consensus_distance, float(steps_per_round), added)

    def late_distance_at(self, steps_per_round: int) -> float:
        """Return the late distance (consensus distance on a curved loss) at this number of steps per round; cached."""
        if steps_per_round not in self._late_distances:
            if self.sectors is None:
                flat = self.consensus_distance_at(steps_per_round, late=True).value
                found = inf if flat is None else late_distance_like(flat, steps_per_round, self.noise)
                self._late_distances[steps_per_round] = found
            else:
                period = len(self.sectors.batches[0].matrices)
                like = _doublings(steps_per_round, period)
                same = [k for k in range(1, ASKED + 1) if _doublings(k, period) == like]
                steps = same if steps_per_round in same else [steps_per_round]
                self._late_distances.update(_late_distances(self.sectors, steps, CURVATURE))
        return self._late_distances[steps_per_round]

    def drift_at(self, steps_per_round: int, *, late: bool) -> Metric:
        """Return the drift at this number of steps per round, synchronous or a round `late`. O(1).

        The result is `drift` if it or `late_drift` has no value, or it is infinite.
        """
        start = self.late_drift if late else self.drift
        if steps_per_round == 1:
            return start
        if self.drift.value is None or self.late_drift.value is None or self.drift.value == inf:
            return self.drift
        lean = (self.late_drift.value - self.drift.value - self.push) / 2 + (self.push if late else 0.0)
        inner = self.push * (steps_per_round - 1) * (2 * steps_per_round - 1) / 6
        return _scale(start, float(steps_per_round) ** 2, steps_per_round * (steps_per_round - 1) * lean + inner)


def _scale(metric: Metric, factor: float, added: float) -> Metric:
    """Return the metric with its value multiplied by `factor` and increased by `added`."""
    if metric.value is None:
        return metric
    return Metric(factor * metric.value + added, metric.kind, metric.how)
