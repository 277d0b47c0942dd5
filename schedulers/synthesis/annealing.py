"""Annealing over the order of phases: Gibbs sweeps on one period, with moves that change its length.

A sweep visits the positions of a period in order and draws a new phase for each from all (or a sample of) the alphabet,
with probability falling in the objective; everything scored on the way is offered to the archive, so that one run at
one budget also fills in its neighbourhood of the front.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a run aims at: the least value within `budget`, or the least cost at a value of at most `value`."""

    budget: float | None = None
    value: float | None = None

    def energy(self, costs: Floats, values: Floats) -> Floats:
        """Lower is better; smooth enough to anneal."""
        with np.errstate(divide="ignore"):
            log_value, log_cost = np.log(values + 1e-3), np.log(costs + 1e-9)
        if self.budget is not None:
            return np.asarray(log_value + OVER_BUDGET * np.maximum(0.0, log_cost - np.log(self.budget + 1e-9)))
        assert self.value is not None
        return np.asarray(log_cost + OVER_BUDGET * np.maximum(0.0, log_value - np.log(self.value + 1e-3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Everything a run needs.

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

    def anneal(self, start: Indices, target: Target, *, num_sweeps: int, hot: float, cold: float) -> Indices:
        """Run from `start`, cooling geometrically; returns where it ended. Stops when `expired()`."""
        indices, maps = start, self.alphabet.covariance_maps()
        for sweep in range(num_sweeps):
            if self.expired():
                break
            temperature = hot * (cold / hot) ** (sweep / max(1, num_sweeps - 1))
            indices = self._sweep(indices, maps, target, temperature)
            indices = self._reshape(indices, maps, target, temperature)
        return indices

    def score(self, indices: Indices) -> tuple[float, float]:
        """(value, cost) of one period, offered to the archive."""
        table = np.array([indices])
        values, costs = self._values(table, self.alphabet.covariance_maps()), self._costs(table)
        values = self._permit(values, lambda _: indices)
        self.archive.offer(costs, values, lambda _: indices)
        return float(values[0]), float(costs[0])

    def _costs(self, table: Ints) -> Floats:
        return np.asarray(self.alphabet.costs[table].mean(axis=1) / self.alphabet.space.instants)

    def _values(self, table: Ints, maps: CovarianceMap) -> Floats:
        """The figure of whole periods, table (N, T)."""
        if self.figure is not None:
            return self.figure(table)
        space = self.alphabet.space
        period = scoring.compose_all(space, [maps[table[:, t]] for t in range(table.shape[1])])
        return scoring.consensus_distance(space, period)

    def _draw(self, energies: Floats, temperature: float) -> int:
        finite = np.where(np.isfinite(energies), energies, 1e9)
        weights = np.exp(-(finite - finite.min()) / temperature)
        return int(self.rng.choice(len(weights), p=weights / weights.sum()))

    def _sweep(self, indices: Indices, maps: CovarianceMap, target: Target, temperature: float) -> Indices:
        """One visit to every position."""
        space, length = self.alphabet.space, len(indices)
        current = list(indices)
        # suffix[t]: all phases after position t as one map; prefix: those before it, already drawn anew.
        suffix = [scoring.nothing(space)]
        for index in reversed(current[1:]):
            suffix.append(scoring.compose(space, maps[index], suffix[-1]))
        suffix.reverse()
        prefix = scoring.nothing(space)
        total = float(self.alphabet.costs[current].sum())
        for t in range(length):
            if self.expired():
                break
            sample = self._tried_at(current[t])
            if self.figure is None:
                rest = scoring.compose(space, suffix[t], prefix)
                values = scoring.consensus_distance(space, scoring.compose(space, rest, maps[sample]))
            else:
                table = np.tile(np.array(current), (len(sample), 1))
                table[:, t] = sample
                values = self.figure(table)
            other = total - float(self.alphabet.costs[current[t]])
            costs = (other + self.alphabet.costs[sample]) / (length * space.instants)
            made = _replacer(current, t, sample)
            values = self._permit(values, made)
            self.archive.offer(costs, values, made)
            chosen = self._draw(target.energy(costs, values), temperature)
            current[t] = int(sample[chosen])
            total = other + float(self.alphabet.costs[current[t]])
            prefix = scoring.compose(space, prefix, maps[current[t]])
        return tuple(current)

    def _tried_at(self, current: int) -> npt.NDArray[np.int64]:
        """The phases to try at one position, the current one among them; their indices, (A,)."""
        return np.unique(np.append(self.sample(), current))

    def sample(self) -> npt.NDArray[np.int64]:
        """Indices of the pool: all of them, or as many as the width allows."""
        pool = np.arange(len(self.alphabet)) if self.pool is None else self.pool
        return pool if len(pool) < self.width else self.rng.choice(pool, self.width - 1, replace=False)

    def _any(self) -> int:
        return int(self.rng.integers(len(self.alphabet)) if self.pool is None else self.rng.choice(self.pool))

    def figures_of(self, options: Sequence[Indices], maps: CovarianceMap) -> tuple[Floats, Floats]:
        """(values, costs) of periods of any lengths, offered to the archive; infinite where they break a limit."""
        values, costs = np.empty(len(options)), np.empty(len(options))
        for length in {len(option) for option in options}:
            members = [i for i, option in enumerate(options) if len(option) == length]
            table = np.array([options[i] for i in members])
            values[members], costs[members] = self._values(table, maps), self._costs(table)
        values = self._permit(values, lambda i: options[i])
        self.archive.offer(costs, values, lambda i: options[i])
        return values, costs

    def _permit(self, values: Floats, made: Callable[[int], Indices]) -> Floats:
        if self.allowed is None:
            return values
        return np.where([self.allowed(made(i)) for i in range(len(values))], values, np.inf)

    def _reshape(self, indices: Indices, maps: CovarianceMap, target: Target, temperature: float) -> Indices:
        """Swaps, moves, insertions, deletions and doublings: one is drawn as in a sweep."""
        options = [indices]
        for _ in range(24):
            mutant = self._mutate(indices)
            if self.min_period <= len(mutant) <= self.max_period:
                options.append(mutant)
        values, costs = self.figures_of(options, maps)
        return options[self._draw(target.energy(costs, values), temperature)]

    def _mutate(self, indices: Indices) -> Indices:
        kind, length = int(self.rng.integers(6)), len(indices)
        i, j = sorted(int(k) for k in self.rng.integers(0, length, 2))
        if kind == 0:
            swapped = list(indices)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            return tuple(swapped)
        if kind == 1:
            return indices[:i] + indices[i + 1 : j + 1] + (indices[i],) + indices[j + 1 :]
        if kind == 2:
            return (*indices[:i], self._any(), *indices[i:])
        if kind == 3:
            return indices[:i] + indices[i + 1 :]
        if kind == 4:
            return indices[:i] + indices[i : j + 1][::-1] + indices[j + 1 :]
        return indices + indices[i : j + 1]


def _replacer(indices: Sequence[int], place: int, sample: npt.NDArray[np.int64]) -> Callable[[int], Indices]:
    before, after = tuple(indices[:place]), tuple(indices[place + 1 :])
    return lambda i: (*before, int(sample[i]), *after)
