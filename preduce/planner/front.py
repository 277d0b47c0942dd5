"""The Pareto front of a plan: options that no other option beats in everything at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preduce.topo.arithmetic.pareto import non_dominated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preduce.planner.option import Option


def front(options: Sequence[Option]) -> list[Option]:
    """The non-dominated options over communication, disagreement, drift, step time and steps, by rising communication.

    Of options with equal figures the one with the shortest period stays. Options that never reach consensus are
    left out. O(k²) for k options.
    """
    usable = [option for option in options if math.isfinite(option.stretch)]
    return non_dominated(usable, _costs, lambda option: (option.period, option.name))


def _costs(option: Option) -> tuple[float, ...]:
    return (
        option.communication,
        math.inf if option.disagreement.value is None else option.disagreement.value,
        math.inf if option.drift.value is None else option.drift.value,
        option.step_seconds,
        option.stretch,
    )
