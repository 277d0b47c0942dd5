"""Archive: the best disagreement seen at every communication cost, in bins whose edges include the budgets asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

NUM_BINS = 240
FINEST = 1 / 200
"""The geometric half of the bins starts at this share of the greatest cost: cheap schedules differ by factors."""


class Archive:
    """One schedule per cost bin: the one with the least value there. Bin edges are upper limits, budgets included."""

    def __init__(self, most: float, budgets: tuple[float, ...] = ()) -> None:
        """`most` is the greatest cost worth keeping; each of `budgets` becomes an edge of its own."""
        even, growing = np.linspace(0.0, most, NUM_BINS), most * np.geomspace(FINEST, 1.0, NUM_BINS)
        edges = np.concatenate([even, growing, [b * (1 + 1e-12) for b in budgets]])
        self.edges: Floats = np.unique(edges)
        self.values: Floats = np.full(len(self.edges), np.inf)
        self.costs: Floats = np.full(len(self.edges), np.inf)
        self.letters: list[tuple[int, ...] | None] = [None] * len(self.edges)

    def offer(self, costs: Floats, values: Floats, letters: Callable[[int], tuple[int, ...]]) -> bool:
        """Keep what improves its bin; `letters(i)` is only called for those. Returns whether any did."""
        bins = np.searchsorted(self.edges, costs, side="left")
        inside = np.isfinite(values) & (bins < len(self.edges))
        better = np.flatnonzero(inside & (values < self.values[np.minimum(bins, len(self.edges) - 1)] - 1e-12))
        improved = False
        for index in better[np.argsort(values[better])].tolist():
            place = int(bins[index])
            if values[index] < self.values[place] - 1e-12:
                self.values[place], self.costs[place] = values[index], costs[index]
                self.letters[place] = letters(index)
                improved = True
        return improved

    def best_within(self, budget: float) -> tuple[float, float, tuple[int, ...]] | None:
        """(value, cost, letters) of the least value at a cost of at most `budget`."""
        order = np.flatnonzero((self.costs <= budget * (1 + 1e-12)) & np.isfinite(self.values))
        if not len(order):
            return None
        place = int(order[np.argmin(self.values[order])])
        letters = self.letters[place]
        assert letters is not None
        return float(self.values[place]), float(self.costs[place]), letters

    def cheapest_below(self, value: float) -> tuple[float, float, tuple[int, ...]] | None:
        """(value, cost, letters) of the least cost at a value of at most `value`."""
        order = np.flatnonzero((self.values <= value) & np.isfinite(self.values))
        if not len(order):
            return None
        place = int(order[np.argmin(self.costs[order])])
        letters = self.letters[place]
        assert letters is not None
        return float(self.values[place]), float(self.costs[place]), letters

    def front(self) -> list[tuple[float, float, tuple[int, ...]]]:
        """The non-dominated (value, cost, letters), by rising cost."""
        result: list[tuple[float, float, tuple[int, ...]]] = []
        least = np.inf
        for place in np.argsort(self.costs, kind="stable").tolist():
            letters = self.letters[place]
            if letters is not None and self.values[place] < least * (1 - 1e-9):
                least = float(self.values[place])
                result.append((least, float(self.costs[place]), letters))
        return result
