"""Consensus distance and drift of large explicit schedules by random probes, applied round by round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
import numpy.typing as npt

from partreduce.topo.figures.chain import Step, inner, on_workers
from partreduce.topo.figures.round_steps import RoundSteps, group_paces
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging

Vector = npt.NDArray[np.float64]

REMAINDER = 1e-4
"""A probe is followed until what is left of it is below this part of the sum."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Mean and spread (standard error of the mean) over the probes; `finished` False when time ran out first.

    An unfinished value is what had been summed up by then: too small, in expectation.
    """

    value: float
    spread: float
    probes: int
    finished: bool


@dataclass(frozen=True, slots=True, eq=False)
class Motion:
    """A schedule ready to be run on vectors: its factors and each worker's steps per round."""

    rounds: tuple[Step, ...]
    paces: npt.NDArray[np.int64]
    scale: npt.NDArray[np.float64] | None
    overlap: bool
    node_of: npt.NDArray[np.int32]

    @classmethod
    def of(cls, schedule: Schedule) -> Motion:
        steps, strategy, paces = schedule.steps(), schedule.mixing, schedule.paces()
        scale = None
        if strategy.averaging is Averaging.STEP_NORMALISED:
            scale = group_paces(steps, paces) / paces
        return cls(on_workers(steps), paces, scale, strategy.mixes_late, schedule.cluster.node_of())

    @property
    def period(self) -> int:
        """T, the number of rounds in a period."""
        return len(self.rounds)

    def push(self, t: int) -> Vector:
        """What the steps push before round t averages, per worker."""
        pace = self.paces.astype(np.float64)
        return pace if self.scale is None else pace * self.scale[t % self.period]

    def deviation(self, t: int) -> Vector:
        """Standard deviation of the noise that round t averages, per worker."""
        root = np.sqrt(self.paces.astype(np.float64))
        return root if self.scale is None else root * self.scale[t % self.period]

    def average(self, t: int, x: Vector) -> Vector:
        """Apply the mixing matrix of round t, then take out the mean that rounding put in."""
        moved = self.rounds[t % self.period].forward(x)
        result: Vector = moved - moved.mean()
        return result


def sampled_consensus_distance(motion: Motion, *, probes: int, seed: int, seconds: float) -> Sampled:
    """Hutchinson's estimate of the average of tr Σ / n: probes of random signs, one per phase in which noise arises.

    E‖Φ D^½ z‖² = tr(Φ D Φᵀ) for signs z, so following a probe through the rounds and adding its squared lengths gives
    the noise that is still there. What its first round leaves of it is known from W's columns, and only what survives
    further rounds is sampled. Relative spread about √(2/n) per probe of that. O(probes · T · rounds · n).
    """
    n, period, instants = len(motion.paces), motion.period, int(motion.paces.max())
    known = (1 - 1 / n) * _inner_sum(motion.paces) / (n * instants)
    for t in range(period):
        left = motion.rounds[t].column_squares() + ((1 - 1 / n) if motion.overlap else 0.0)
        known += inner(motion.deviation(t) ** 2, left) / (period * n)
    generator, deadline = np.random.default_rng(seed), time.monotonic() + seconds
    values: list[float] = []
    finished = True
    for _ in range(probes):
        total, complete = 0.0, True
        for start in range(period):
            probe = motion.average(start, motion.deviation(start) * generator.choice((-1.0, 1.0), size=n))
            part, done = follow(motion.average, period, probe, start + 1, deadline)
            total, complete = total + part, complete and done
        if complete or not values:  # a probe that time cut off counts only if there is no other
            values.append(known + total / (period * n))
            finished = complete
        if time.monotonic() > deadline:
            break
    return summary(values, finished=finished)


def _inner_sum(paces: npt.NDArray[np.int64]) -> float:
    distinct, counts = np.unique(paces, return_counts=True)
    round_steps = RoundSteps.of(distinct, np.ones((1, len(distinct))), Averaging.MEAN, int(distinct[-1]))
    return float(round_steps.partial @ counts)


def follow(
    onward: Callable[[int, Vector], Vector], period: int, probe: Vector, start: int, deadline: float
) -> tuple[float, bool]:
    """Σ_k ‖probe after k rounds‖² for k ≥ 1, and whether the rest is negligible by the decay of the last period."""
    total, squares = 0.0, [inner(probe, probe)]
    for t in count(start):
        probe = onward(t, probe)
        squares.append(inner(probe, probe))
        total += squares[-1]
        if squares[-1] <= 1e-30 * squares[0]:
            return total, True
        if len(squares) > period:
            decay = squares[-1] / squares[-1 - period]
            rest = sum(squares[-period:]) * decay / (1 - decay) if decay < 1 else math.inf
            if rest <= REMAINDER * (squares[0] + total):
                return total + rest, True
        if time.monotonic() > deadline:
            return total, False
    raise AssertionError("count() never ends")


def sampled_drift(
    motion: Motion, push: Literal["worker", "node"], *, probes: int, seed: int, seconds: float
) -> Sampled:
    """Draw the constant push at random, run the rounds until they repeat, average the squared distances. O(rounds · n).

    Pushes are random signs, one per worker or one per node, so that the mean over draws is the drift itself.
    """
    generator, deadline = np.random.default_rng(seed), time.monotonic() + seconds
    values: list[float] = []
    finished = True
    for _ in range(probes):
        if push == "worker":
            signs = generator.choice((-1.0, 1.0), size=len(motion.paces))
        else:
            signs = generator.choice((-1.0, 1.0), size=int(motion.node_of.max()) + 1)[motion.node_of]
        value, done = _settle(motion, signs, deadline)
        if done or not values:  # a probe that time cut off counts only if there is no other
            values.append(value)
            finished = done
        if time.monotonic() > deadline:
            break
    return summary(values, finished=finished)


def _settle(motion: Motion, signs: Vector, deadline: float) -> tuple[float, bool]:
    """The mean square of the periodic state under a constant push, and whether it was reached."""
    state = np.zeros(len(signs))
    before = math.inf
    while True:
        old = state
        square, state = _one_period(motion, state, signs)
        change = math.sqrt(inner(state - old, state - old))
        if is_settled(change, before, math.sqrt(inner(state, state))):
            return _one_period(motion, state, signs)[0], True
        before = change
        if time.monotonic() > deadline:
            return square, False


def is_settled(change: float, before: float, size: float) -> bool:
    """Whether a sequence of states has all but reached its limit, by the last two changes."""
    decay = change / before if before else 0.0
    return change == 0 or (decay < 1 and math.isfinite(before) and change * decay / (1 - decay) <= REMAINDER * size)


def _one_period(motion: Motion, state: Vector, signs: Vector) -> tuple[float, Vector]:
    instants, total = int(motion.paces.max()), 0.0
    for t in range(motion.period):
        for s in range(1, instants):
            total += float((state + (s * motion.paces // instants) * signs).var())
        move = motion.push(t) * signs
        state = motion.average(t, state) + move if motion.overlap else motion.average(t, state + move)
        state -= state.mean()
        total += inner(state, state) / len(state)
    return total / (motion.period * instants), state


def summary(values: list[float], *, finished: bool) -> Sampled:
    """Mean and standard error of one value per probe."""
    mean = math.fsum(values) / len(values)
    spread = math.inf
    if len(values) > 1:
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return Sampled(mean, spread, len(values), finished)
