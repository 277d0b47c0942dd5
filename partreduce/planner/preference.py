"""Define the costs of an option, and the order in which an objective prefers them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from partreduce.schedulers.synthesis.problem import Limits, Objective

MAX_STEPS_RATIO_WHEN_CHEAP = 1.25
"""`--objective communication` chooses the cheapest option that is predicted to need at most a quarter more steps."""

NOTHING = 1e-12
"""Values below it are rounding errors of zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs that decide: seconds per step, metrics (infinite where unknown), and the predicted steps ratio."""

    communication: float
    step_seconds: float
    consensus_distance: float
    drift: float
    steps_ratio: float

    @property
    def time(self) -> float:
        """Return predicted seconds to a loss, per step that All-Reduce would need."""
        return self.step_seconds * self.steps_ratio

    def keep(self, limits: Limits, exactly: Callable[[], Fraction | None] = lambda: None) -> bool:
        """Return whether consensus and the limits on metrics hold; `exactly()` decides within the rounding error."""
        if not math.isfinite(self.steps_ratio) or not limits.allow_communication(self.communication):
            return False
        return limits.allow_consensus_distance(self.consensus_distance, exactly)

    def all(self) -> tuple[float, ...]:
        """Return all costs; less is better for each."""
        return (self.communication, self.consensus_distance, self.drift, self.step_seconds, self.steps_ratio)


def preference(costs: Costs, objective: Objective) -> tuple[float, ...]:
    """Return a sort key, less is better, to nine digits, so that schedules that differ by rounding tie.

    The key never decreases when the seconds per step increase, so a lower bound on the seconds bounds the preference.
    """
    return tuple(float(f"{value:.9g}") if abs(value) > NOTHING else 0.0 for value in _preferred(costs, objective))


def _preferred(costs: Costs, objective: Objective) -> tuple[float, ...]:
    if objective is Objective.COMMUNICATION:
        return (float(costs.steps_ratio > MAX_STEPS_RATIO_WHEN_CHEAP), costs.communication, costs.time)
    if objective is Objective.CONSENSUS_DISTANCE:
        return (costs.consensus_distance, costs.communication)
    if objective is Objective.DRIFT:
        return (costs.drift, costs.communication)
    if objective is Objective.WAITING:
        return (costs.step_seconds, costs.steps_ratio)
    return (costs.time, costs.communication)
