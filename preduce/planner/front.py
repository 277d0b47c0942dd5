"""The Pareto front: options that no other option beats in everything at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preduce.planner.option import Option

TOLERANCE = 1e-9


def front(options: Sequence[Option]) -> list[Option]:
    """The non-dominated options over communication, disagreement, drift and step time, by rising communication.

    Of options with equal figures the one with the shortest period stays. Options that never reach consensus are
    left out. O(k²) for k options.
    """
    usable = [option for option in options if math.isfinite(option.stretch)]
    usable.sort(key=lambda option: (_costs(option), option.period, option.name))
    kept: list[Option] = []
    for option in usable:
        if not any(_dominates(other, option) for other in kept):
            # Costs that differ by a rounding error sort arbitrarily, so a later option may still beat an earlier one.
            kept = [other for other in kept if not _dominates(option, other)]
            kept.append(option)
    return kept


def _costs(option: Option) -> tuple[float, float, float, float]:
    return (
        option.communication,
        math.inf if option.disagreement.value is None else option.disagreement.value,
        math.inf if option.drift.value is None else option.drift.value,
        option.step_seconds,
    )


def _dominates(better: Option, worse: Option) -> bool:
    """At least as good in everything (a rounding error counts as equal)."""
    return all(a <= b + TOLERANCE * max(1.0, abs(b)) for a, b in zip(_costs(better), _costs(worse), strict=True))
