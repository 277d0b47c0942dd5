"""Clicks drawn from a known model: features as frequent as Zipf says, each with a weight and a direction.

A feature's weight says how it moves the chance of a click alone, its direction how two features do together (a
factorization machine). So the least loss that any model can reach is known: that of the true chances.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

FIELDS = 8
EACH = 5_000
"""Values of a field; its k-th is drawn as often as 1 / (k + 1)."""
DIRECTIONS = 4
RARE = -1.0
"""What all features together start from: about one click in three."""


class Clicks:
    """A world of clicks; the same for everybody."""

    def __init__(self, fields: int = FIELDS, each: int = EACH, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.fields, self.each = fields, each
        self.weights = 0.5 * draw.standard_normal(fields * each)
        self.directions = 0.35 * draw.standard_normal((fields * each, DIRECTIONS))

    @cached_property
    def _until(self) -> npt.NDArray[np.float64]:
        """Chances added up, shape (each,)."""
        shares = 1.0 / np.arange(1, self.each + 1)
        return np.asarray(np.cumsum(shares) / shares.sum())

    def draw(self, seed: tuple[int, ...], count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Features, shape (count, fields), numbered over all fields, and clicks, shape (count,), 0 or 1."""
        draw = np.random.default_rng(seed)
        values = np.searchsorted(self._until, draw.random((count, self.fields))).clip(max=self.each - 1)
        features = values + self.each * np.arange(self.fields)
        clicks = draw.random(count) < self.chance(features)
        return features.astype(np.int64), clicks.astype(np.float32)

    def chance(self, features: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Of a click, shape (count,)."""
        alone = self.weights[features].sum(1)
        each = self.directions[features]  # (count, fields, directions)
        together = (each.sum(1) ** 2 - (each**2).sum(1)).sum(1) / 2
        return np.asarray(1 / (1 + np.exp(-(RARE + alone + together))))

    def least_loss(self, count: int = 20_000) -> float:
        """Mean log loss of the true chances: nobody does better."""
        features, clicks = self.draw((99,), count)
        chance = self.chance(features)
        return float(-np.where(clicks == 1, np.log(chance), np.log1p(-chance)).mean())
