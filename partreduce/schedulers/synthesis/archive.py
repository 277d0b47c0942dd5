"""Keep the best consensus distance at every communication cost, in bins whose edges include the requested budgets.

Arrays have one entry per bin; a *value* is the minimized metric, mostly consensus distance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.alphabet import Indices
from partreduce.schedulers.synthesis.problem import up_to
from partreduce.topo.arithmetic.pareto import non_dominated

Floats = npt.NDArray[np.float64]

NUM_BINS = 240
FINEST = 1 / 200
"""The geometric half of the bins starts at this share of the greatest cost: cheap schedules differ by factors."""


EQUAL = 1e-12
"""Values that differ by less are equal."""


class Entry(NamedTuple):
    """A period of the archive; its cost is in seconds per step."""

    value: float
    cost: float
    indices: Indices


class Archive:
    """One schedule per cost bin: the one with the least value there. Bin edges are upper limits, budgets included."""

    def __init__(self, most: float, budgets: tuple[float, ...] = ()) -> None:
        """Make bins up to the greatest cost to keep, `most`, with an edge at each of `budgets`."""
        even, growing = np.linspace(0.0, most, NUM_BINS), most * np.geomspace(FINEST, 1.0, NUM_BINS)
        edges = np.concatenate([even, growing, [up_to(b) for b in budgets]])
        self.edges: Floats = np.unique(edges)
        self.values: Floats = np.full(len(self.edges), np.inf)
        self.costs: Floats = np.full(len(self.edges), np.inf)
        self.indices: list[Indices | None] = [None] * len(self.edges)

    def offer(self, costs: Floats, values: Floats, indices: Callable[[int], Indices]) -> None:
        """Keep what improves its bin, and of equal values the shorter period: it needs fewer communicators."""
        bins = np.searchsorted(self.edges, costs, side="left")
        inside = np.isfinite(values) & (bins < len(self.edges))
        as_good = np.flatnonzero(inside & (values < self.values[np.minimum(bins, len(self.edges) - 1)] + EQUAL))
        for index in as_good[np.argsort(values[as_good])].tolist():
            place, period = int(bins[index]), indices(index)
            known = self.indices[place]
            if values[index] < self.values[place] - EQUAL or known is None or len(period) < len(known):
                self.values[place], self.costs[place], self.indices[place] = values[index], costs[index], period

    def best_within(self, budget: float) -> Entry | None:
        """The least value at a cost of at most `budget`."""
        return self._least(self.values, self.costs <= up_to(budget))

    def cheapest_below(self, value: float) -> Entry | None:
        """The least cost at a value of at most `value`."""
        return self._least(self.costs, self.values <= up_to(value))

    def _least(self, measure: Floats, permitted: npt.NDArray[np.bool_]) -> Entry | None:
        places = np.flatnonzero(permitted & np.isfinite(self.values))
        return self._entry(int(places[np.argmin(measure[places])])) if len(places) else None

    def _entry(self, place: int) -> Entry:
        indices = self.indices[place]
        assert indices is not None, "bins with a finite value hold a period"
        return Entry(float(self.values[place]), float(self.costs[place]), indices)

    def front(self) -> list[Entry]:
        """The non-dominated entries, by rising cost."""
        entries = [self._entry(place) for place in np.flatnonzero(np.isfinite(self.values)).tolist()]
        return non_dominated(entries, lambda entry: (entry.cost, entry.value))
