"""Archive: the best consensus distance seen at every communication cost, in bins whose edges include the budgets asked.

Arrays have one entry per bin; a *value* is the figure that is kept low, consensus distance mostly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.alphabet import Indices
from partreduce.schedulers.synthesis.problem import up_to
from partreduce.topo.arithmetic.pareto import non_dominated

Floats = npt.NDArray[np.float64]

NUM_BINS = 240
FINEST = 1 / 200
"""The geometric half of the bins starts at this share of the greatest cost: cheap schedules differ by factors."""


class Archive:
    """One schedule per cost bin: the one with the least value there. Bin edges are upper limits, budgets included."""

    def __init__(self, most: float, budgets: tuple[float, ...] = ()) -> None:
        """`most` is the greatest cost worth keeping; each of `budgets` becomes an edge of its own."""
        even, growing = np.linspace(0.0, most, NUM_BINS), most * np.geomspace(FINEST, 1.0, NUM_BINS)
        edges = np.concatenate([even, growing, [up_to(b) for b in budgets]])
        self.edges: Floats = np.unique(edges)
        self.values: Floats = np.full(len(self.edges), np.inf)
        self.costs: Floats = np.full(len(self.edges), np.inf)
        self.indices: list[Indices | None] = [None] * len(self.edges)

    def offer(self, costs: Floats, values: Floats, indices: Callable[[int], Indices]) -> bool:
        """Keep what improves its bin; `indices(i)` is only called for those. Returns whether any did."""
        bins = np.searchsorted(self.edges, costs, side="left")
        inside = np.isfinite(values) & (bins < len(self.edges))
        better = np.flatnonzero(inside & (values < self.values[np.minimum(bins, len(self.edges) - 1)] - 1e-12))
        improved = False
        for index in better[np.argsort(values[better])].tolist():
            place = int(bins[index])
            if values[index] < self.values[place] - 1e-12:
                self.values[place], self.costs[place] = values[index], costs[index]
                self.indices[place] = indices(index)
                improved = True
        return improved

    def best_within(self, budget: float) -> tuple[float, float, Indices] | None:
        """(value, cost, indices) of the least value at a cost of at most `budget`."""
        return self._least(self.values, self.costs <= up_to(budget))

    def cheapest_below(self, value: float) -> tuple[float, float, Indices] | None:
        """(value, cost, indices) of the least cost at a value of at most `value`."""
        return self._least(self.costs, self.values <= up_to(value))

    def _least(self, measure: Floats, permitted: npt.NDArray[np.bool_]) -> tuple[float, float, Indices] | None:
        places = np.flatnonzero(permitted & np.isfinite(self.values))
        return self._entry(int(places[np.argmin(measure[places])])) if len(places) else None

    def _entry(self, place: int) -> tuple[float, float, Indices]:
        indices = self.indices[place]
        assert indices is not None, "bins with a finite value hold a period"
        return float(self.values[place]), float(self.costs[place]), indices

    def front(self) -> list[tuple[float, float, Indices]]:
        """The non-dominated (value, cost, indices), by rising cost."""
        entries = [self._entry(place) for place in np.flatnonzero(np.isfinite(self.values)).tolist()]
        return non_dominated(entries, lambda entry: (entry[1], entry[0]))
