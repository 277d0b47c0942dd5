"""The same phases at another pace, in lockstep or late: figures by formula from those of one step a round in lockstep.

With one pace k for all workers and every gradient weighed alike, a round adds the noise kI and the push kb, so in
lockstep the covariance after a round is k times, and the state k times, what they are at pace 1. Within a round s of
its k steps have been added to what the round began with. A late averaging acts on what the round began with,
x ← Wx + u, and (W x) + u with x = x' + u' reads W(x' + u') + u: what a late schedule holds after a round is what the
lockstep one holds after a round *and* the steps of the next. Averaged over the k instants of a round, with d and D the
consensus distance and drift at pace 1 in lockstep, D' the drift at pace 1 late, e the mean square of one worker's noise
off the mean and b that of its push:

    consensus distance   k·d + e·(k−1)/2                       late: + k·e
    drift          k²·D + k(k−1)·c + b(k−1)(2k−1)/6      late: k²·D' + k(k−1)·(c+b) + b(k−1)(2k−1)/6

where c = (D' − D − b)/2 is how the state leans along the push. Derived here; the tests compare each with the solution
of the steady state for that pace.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from partreduce.topo.figures.base import Figure
from partreduce.topo.figures.late_distance import late_distance_like, late_distance_of
from partreduce.topo.figures.sectors import Sectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Retimed:
    """Figures of phases at pace 1 in lockstep, and `late_drift`; `noise` and `push` are the e and b of the module."""

    contraction: Figure
    consensus_distance: Figure
    drift: Figure
    late_drift: Figure
    noise: float
    push: float
    sectors: Sectors | None = None
    """None where the late distance is estimated."""
    _late_distances: dict[int, float] = field(default_factory=dict, compare=False)

    def consensus_distance_at(self, pace: int, *, late: bool) -> Figure:
        """At another pace, in lockstep or late. O(1)."""
        added = self.noise * ((pace - 1) / 2 + (pace if late else 0))
        return _mapped(self.consensus_distance, float(pace), added)

    def late_distance_at(self, pace: int) -> float:
        """How far apart late averagings leave workers in a curved direction (`topo.figures.late_distance`); kept."""
        if pace not in self._late_distances:
            if self.sectors is None:
                flat = self.consensus_distance_at(pace, late=True).value
                found = inf if flat is None else late_distance_like(flat, pace, self.noise)
            else:
                found = late_distance_of(self.sectors, pace)
            self._late_distances[pace] = found
        return self._late_distances[pace]

    def drift_at(self, pace: int, *, late: bool) -> Figure:
        """At another pace, in lockstep or late; absent where the two drifts at pace 1 are not both known. O(1)."""
        start = self.late_drift if late else self.drift
        if pace == 1:
            return start
        if self.drift.value is None or self.late_drift.value is None or self.drift.value == inf:
            return self.drift
        lean = (self.late_drift.value - self.drift.value - self.push) / 2 + (self.push if late else 0.0)
        inner = self.push * (pace - 1) * (2 * pace - 1) / 6
        return _mapped(start, float(pace) ** 2, pace * (pace - 1) * lean + inner)


def _mapped(figure: Figure, factor: float, added: float) -> Figure:
    """A figure times factor plus added."""
    return figure if figure.value is None else replace(figure, value=factor * figure.value + added)
