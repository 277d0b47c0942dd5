"""Metrics of the same phases with another steps_per_round, by formula from those of 1 step per round, synchronous.

With the same steps_per_round k for all workers and every gradient weighed equally, a round adds the noise kI and the
push kb, so with synchronous averages the covariance after a round is k times, and the state k times, what they are at
steps_per_round 1. Within a round s of its k steps have been added to what the round began with. A late averaging acts
on what the round began with, x ← Wx + u, and (W x) + u with x = x' + u' reads W(x' + u') + u: what a late schedule
holds after a round is what the synchronous one holds after a round *and* the steps of the next. Averaged over the k
instants of a round, with d and D the consensus distance and drift at steps_per_round 1 synchronously, D' the drift at
steps_per_round 1 late, e the mean square of one worker's noise off the mean and b that of its push:

    consensus distance   k·d + e·(k−1)/2                       late: + k·e
    drift          k²·D + k(k−1)·c + b(k−1)(2k−1)/6      late: k²·D' + k(k−1)·(c+b) + b(k−1)(2k−1)/6

where c = (D' − D − b)/2 is how the state leans along the push. Derived here; the tests compare each with the solution
of the steady state for that steps_per_round.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from partreduce.topo.metrics.base import Metric
from partreduce.topo.metrics.late_distance import late_distance_like, late_distance_of
from partreduce.topo.metrics.sectors import Sectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Retimed:
    """Metrics of synchronous phases with steps_per_round 1, and `late_drift`; `noise`, `push` are the module's e, b."""

    contraction: Metric
    consensus_distance: Metric
    drift: Metric
    late_drift: Metric
    noise: float
    push: float
    sectors: Sectors | None = None
    """None where the late distance is estimated."""
    _late_distances: dict[int, float] = field(default_factory=dict, compare=False)

    def consensus_distance_at(self, steps_per_round: int, *, late: bool) -> Metric:
        """With another steps_per_round, synchronous or late. O(1)."""
        added = self.noise * ((steps_per_round - 1) / 2 + (steps_per_round if late else 0))
        return _mapped(self.consensus_distance, float(steps_per_round), added)

    def late_distance_at(self, steps_per_round: int) -> float:
        """How far apart late averagings leave workers in a curved direction (`topo.metrics.late_distance`); kept."""
        if steps_per_round not in self._late_distances:
            if self.sectors is None:
                flat = self.consensus_distance_at(steps_per_round, late=True).value
                found = inf if flat is None else late_distance_like(flat, steps_per_round, self.noise)
            else:
                found = late_distance_of(self.sectors, steps_per_round)
            self._late_distances[steps_per_round] = found
        return self._late_distances[steps_per_round]

    def drift_at(self, steps_per_round: int, *, late: bool) -> Metric:
        """With another steps_per_round, synchronous or late; absent unless both drifts at 1 are known. O(1)."""
        start = self.late_drift if late else self.drift
        if steps_per_round == 1:
            return start
        if self.drift.value is None or self.late_drift.value is None or self.drift.value == inf:
            return self.drift
        lean = (self.late_drift.value - self.drift.value - self.push) / 2 + (self.push if late else 0.0)
        inner = self.push * (steps_per_round - 1) * (2 * steps_per_round - 1) / 6
        return _mapped(start, float(steps_per_round) ** 2, steps_per_round * (steps_per_round - 1) * lean + inner)


def _mapped(metric: Metric, factor: float, added: float) -> Metric:
    """A metric times factor plus added."""
    return metric if metric.value is None else replace(metric, value=factor * metric.value + added)
