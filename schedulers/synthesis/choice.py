"""Choice among candidates: the non-dominated ones, the one that the objective prefers, the nearest miss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.synthesis.problem import Objective

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.schedulers.synthesis.problem import Candidate, Problem


def pareto(found: list[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that no other beats in communication, disagreement, drift and step time, by communication."""

    def key(c: Candidate) -> tuple[float, float, float, float]:
        return c.communication_seconds_per_step, c.disagreement, c.drift, c.step_seconds

    kept: list[Candidate] = []
    for one in sorted(found, key=lambda c: (*key(c), c.period)):
        if not any(all(a <= b * (1 + 1e-9) + 1e-12 for a, b in zip(key(k), key(one), strict=True)) for k in kept):
            kept.append(one)
    return tuple(kept)


def preferred(problem: Problem, found: list[Candidate]) -> Candidate | None:
    """The candidate that the objective likes best within the limits."""
    budget = problem.limits.max_communication if problem.limits.max_communication is not None else np.inf
    value = problem.limits.max_disagreement if problem.limits.max_disagreement is not None else np.inf
    fitting = [
        c
        for c in found
        if c.communication_seconds_per_step <= budget * (1 + 1e-9) and c.disagreement <= value * (1 + 1e-9)
    ]
    measures: dict[Objective, Callable[[Candidate], float]] = {
        Objective.DISAGREEMENT: lambda c: c.disagreement,
        Objective.COMMUNICATION: lambda c: c.communication_seconds_per_step,
        Objective.DRIFT: lambda c: c.drift,
    }
    measure = measures[problem.objective]
    return min(fitting, key=lambda c: (round(measure(c), 9), c.period), default=None)


def nearest(problem: Problem, found: list[Candidate]) -> str:
    """What of the found candidates comes nearest to limits that none keeps, in one line."""
    budget = problem.limits.max_communication
    if not found:
        return "no schedule that keeps all limits was found in the time; relax a limit or give more time"
    least = min(found, key=lambda c: c.communication_seconds_per_step)
    if budget is not None and least.communication_seconds_per_step > budget:
        return (
            f"no schedule within {budget:.6g} s per step was found; the cheapest found takes "
            f"{least.communication_seconds_per_step:.6g} s per step"
        )
    fitting = [c for c in found if budget is None or c.communication_seconds_per_step <= budget * (1 + 1e-9)]
    best = min(fitting, key=lambda c: c.disagreement)
    return (
        f"no schedule with disagreement at most {problem.limits.max_disagreement:.6g} was found; "
        f"the least found within the budget is {best.disagreement:.6g}"
    )
