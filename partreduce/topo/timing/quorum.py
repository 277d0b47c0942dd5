"""Expected round times of partial all-reduce without a run: worker w computes for X_w seconds; a round needs Q workers.

Late gradients count for the next round, and a worker that finds a result when it calls continues at once. So a
worker brings at most one gradient to a round, and no more than it computes. Workers are assumed *free*: they arrive
independently of one another and hardly any worker waits. With T seconds from round to round a worker needs
E[max(X_w, T)] for a gradient, and T solves  sum over w of T / E[max(X_w, T)] = Q, whose left side grows with T from 0
to P; a round takes no less than the start message and the sum. Under majority a round lasts until the drawn worker
arrives next: for the rest of its computing, E[X²]/(2E[X]) on average, or all of it if it was drawn before, too, with
probability 1/P; others are in it if they arrive by then.

The other extreme are workers *in step*, of whom those that a round waits for begin the next one together. Virtual time,
which assumes neither, lies between (docs/theory/partial-collectives.md has derivations and comparisons).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partreduce.topo.fields import Floats
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.timing.compute import ComputeTimes

SAMPLED = 256
"""Steps of all workers that stand for their distribution, where step times vary."""
DRAWN = 64
"""Lengths of a round that stand for those that end with one worker, under majority."""
HALVINGS = 60


@dataclass(frozen=True, slots=True)
class ManyRounds:
    """Expected seconds per round, and gradients in each round."""

    seconds: float
    active: float

    @property
    def gradients_per_second(self) -> float:
        """Gradients of all workers per second; infinite if rounds take no time."""
        return self.active / self.seconds if self.seconds else float("inf")


def sample_seconds(times: ComputeTimes, num_workers: int, *, seed: int = 0, steps: int = SAMPLED) -> Floats:
    """Sampled compute seconds of all workers, shape (steps, num_workers); one row if all steps are equal."""
    if times.is_fixed:
        return times.fixed(num_workers)[None, :]
    rng = np.random.default_rng(seed)
    return np.concatenate([times.step_seconds(num_workers, step, rng) for step in range(steps)])


def balance(seconds: Floats, setting: PartialAllReduce, *, word: float = 0.0, sum_seconds: float = 0.0) -> ManyRounds:
    """Expected rounds of workers that arrive independently. O(samples · n); under majority O(n² log samples).

    `seconds` (samples, num_workers) are compute times per gradient; `word` is the latency in seconds of the message
    that starts a round, or announces an arrival, and `sum_seconds` the time of a sum. Late gradients count for the open
    round, no queue is full, and there is no grace.
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
    """A round lasts until a worker comes that is drawn evenly; others are in it if they come by then."""
    count, means = seconds.shape[1], seconds.mean(axis=0)
    if not means.all():
        return ManyRounds(least, float(count))
    rng = np.random.default_rng(0)
    lasting = np.empty((count, DRAWN))
    for worker, own in enumerate(seconds.T):
        # An instant falls into a long step more often, and evenly within it.
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
    return ManyRounds(length, min(float(active.mean()), length * float((1 / means).sum())))  # no more than is computed
