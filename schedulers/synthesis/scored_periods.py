"""Periods of an alphabet within the limits: scored in numbers, and every one offered to an archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis import scoring
from partreduce.schedulers.synthesis.alphabet import Alphabet, Indices
from partreduce.schedulers.synthesis.archive import Archive
from partreduce.schedulers.synthesis.scoring import CovarianceMap

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

OVER_BUDGET = 8.0
"""Weight of the logarithm of cost over budget against the logarithm of consensus distance."""
FEW = 6
"""Different phases of a period that is drawn at random, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is aimed at: the least value within `budget`, or the least cost at a value of at most `value`."""

    budget: float | None = None
    value: float | None = None

    def energy(self, costs: Floats, values: Floats) -> Floats:
        """Lower is better, also among those that miss it."""
        with np.errstate(divide="ignore"):
            log_value, log_cost = np.log(values + 1e-3), np.log(costs + 1e-9)
        if self.budget is not None:
            return np.asarray(log_value + OVER_BUDGET * np.maximum(0.0, log_cost - np.log(self.budget + 1e-9)))
        assert self.value is not None
        return np.asarray(log_cost + OVER_BUDGET * np.maximum(0.0, log_value - np.log(self.value + 1e-3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPeriods:
    """Scores periods and offers them to the archive.

    `allowed(indices)`, if given, refuses periods that break a limit other than the budget. `figure(table)`, if given,
    replaces consensus distance by another figure of whole periods, table (N, T) of phase indices → (N,); it is slower.
    `pool` holds the indices of the phases that are drawn, at most `width` at a time; all if None.
    """

    alphabet: Alphabet
    archive: Archive
    rng: np.random.Generator
    expired: Callable[[], bool]
    min_period: int
    max_period: int
    allowed: Callable[[Indices], bool] | None = None
    figure: Callable[[Ints], Floats] | None = None
    width: int = 128
    pool: Ints | None = None

    def score(self, indices: Indices) -> tuple[float, float]:
        """(value, cost) of one period."""
        values, costs = self.figures_of([indices], self.alphabet.covariance_maps())
        return float(values[0]), float(costs[0])

    def figures_of(self, options: Sequence[Indices], maps: CovarianceMap) -> tuple[Floats, Floats]:
        """(values, costs) of periods of any lengths; infinite where they break a limit."""
        values, costs = np.empty(len(options)), np.empty(len(options))
        for length in {len(option) for option in options}:
            members = [i for i, option in enumerate(options) if len(option) == length]
            table = np.array([options[i] for i in members])
            costs[members] = self.alphabet.costs[table].mean(axis=1) / self.alphabet.space.instants
            values[members] = self._values(table, maps)
        if self.allowed is not None:
            values = np.where([self.allowed(option) for option in options], values, np.inf)
        self.archive.offer(costs, values, lambda i: options[i])
        return values, costs

    def sample(self) -> Ints:
        """Indices of the pool: all of them, or as many as the width allows."""
        pool = np.arange(len(self.alphabet)) if self.pool is None else self.pool
        return pool if len(pool) < self.width else self.rng.choice(pool, self.width - 1, replace=False)

    def draw(self, count: int, most_phases: int | None = None) -> list[Indices]:
        """Random periods, each of a few different phases, `most_phases` at most."""
        few = min(most_phases or FEW, FEW)
        lengths = self.rng.integers(self.min_period, self.max_period + 1, count)
        return [tuple(self.rng.choice(self.rng.choice(self.sample(), few), length).tolist()) for length in lengths]

    def _values(self, table: Ints, maps: CovarianceMap) -> Floats:
        """The figure of whole periods, table (N, T)."""
        if self.figure is not None:
            return self.figure(table)
        space = self.alphabet.space
        period = scoring.compose_all(space, [maps[table[:, t]] for t in range(table.shape[1])])
        return scoring.consensus_distance(space, period)
