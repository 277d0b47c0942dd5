"""The expected round times of partial all-reduces that wait for a quorum of Q workers, computed without a run.

Worker w computes for X_w seconds per gradient. Late gradients count for the next round, and a worker that finds a
result when it calls continues at once. So a worker contributes at most one gradient to a round, and no more than it
computes. Workers are assumed *free*: they arrive independently of one another and hardly any worker waits. With T
seconds from round to round a worker needs E[max(X_w, T)] per gradient, and T solves
sum over w of T / E[max(X_w, T)] = Q, whose left side grows with T from 0 to P, the number of workers; a round takes at
least the start message and the all-reduce. Under majority a round lasts until the drawn worker arrives next: for the
rest of its computing, E[X²]/(2E[X]) on average, or all of it if it was drawn in the previous round, too, with
probability 1/P; the others contribute if they arrive by then.

The other extreme are workers *in step*: those for which a round waits begin the next one together. The
simulator, which assumes neither, lies in between (docs/theory/partial-collectives.md has derivations and comparisons).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partreduce.topo.fields import Floats
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.timing.compute import ComputeTimes

SAMPLED = 256
"""The number of sampled steps per worker that stand for the distribution of varying step times."""
DRAWN = 64
"""The number of round lengths that `_majority` samples for each worker that may be drawn."""
HALVINGS = 60


@dataclass(frozen=True, slots=True)
class ManyRounds:
    """The expected `seconds` per round, and the expected number of gradients in a round, `active`."""

    seconds: float
    active: float

    @property
    def gradients_per_second(self) -> float:
        """The gradients of all workers per second; infinite if rounds take no time."""
        return self.active / self.seconds if self.seconds else float("inf")


def sample_seconds(times: ComputeTimes, num_workers: int, *, seed: int = 0) -> Floats:
    """Return sampled compute seconds of all workers, shape (`SAMPLED`, num_workers); one row if steps do not vary."""
    if times.is_fixed:
        return times.fixed(num_workers)[None, :]
    rng = np.random.default_rng(seed)
    return np.concatenate([times.step_seconds(num_workers, step, rng) for step in range(SAMPLED)])


def balance(seconds: Floats, setting: PartialAllReduce, *, word: float = 0.0, sum_seconds: float = 0.0) -> ManyRounds:
    """Return the expected length of a round and its number of gradients, for workers that arrive independently.

    `seconds` (samples, num_workers) are compute times per gradient, `word` the latency in seconds of the message that
    starts a round, `sum_seconds` the time of an all-reduce. Of `setting` only the quorum counts: late gradients join
    the open round, no queue is full, and `grace` is 0. O(samples · n); under majority O(n² log samples).
    """
    least = word + sum_seconds
    if setting.quorum is QuorumStart.MAJORITY:
        return _majority(seconds, least)
    needed, low, high = setting.needed(seconds.shape[1]), 0.0, float(seconds.max())
    if high == 0.0:
        return ManyRounds(least, float(seconds.shape[1]))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _num_gradients(seconds, middle) < needed else (low, middle)
    period = max(high, least)
    return ManyRounds(period, _num_gradients(seconds, period))


def _num_gradients(seconds: Floats, period: float) -> float:
    return float((period / np.maximum(seconds, period).mean(axis=0)).sum())


def _majority(seconds: Floats, least: float) -> ManyRounds:
    """Return the result of `balance` if a round lasts until a randomly drawn worker arrives, but at least `least` s.

    `seconds` (samples, num_workers) are compute times. Workers that arrive earlier take part in the round.
    """
    count, means = seconds.shape[1], seconds.mean(axis=0)
    if not means.all():
        return ManyRounds(least, float(count))
    rng = np.random.default_rng(0)
    lasting = np.empty((count, DRAWN))
    for worker, own in enumerate(seconds.T):
        # A random instant lies in a long step with more probability, and uniformly within it.
        left = rng.choice(own, DRAWN, p=own / own.sum()) * rng.random(DRAWN)
        lasting[worker] = np.where(rng.random(DRAWN) < 1 / count, rng.choice(own, DRAWN), left)
    lasting = np.maximum(lasting, least)
    active = np.ones((count, DRAWN))  # the worker that is drawn
    for other, own in enumerate(seconds.T):
        # Its next call comes within t with probability E[min(X, t)] / E[X].
        ordered = np.sort(own)
        below = np.searchsorted(ordered, lasting)
        sums = np.concatenate(([0.0], np.cumsum(ordered)))
        within = (sums[below] + (len(own) - below) * lasting) / own.sum()
        active += np.where(np.arange(count)[:, None] == other, 0.0, within)
    length = float(lasting.mean())
    return ManyRounds(length, min(float(active.mean()), length * float((1 / means).sum())))  # at most those computed
