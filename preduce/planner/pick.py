"""The pick: one option of the front, and why, in plain words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preduce.planner.job import Data
from preduce.planner.steps_model import CORRECTED, FITTED
from preduce.schedulers.synthesis.problem import Objective
from preduce.topo.errors import PreduceError, UnknownError
from preduce.topo.strategies.axes import Form

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from preduce.planner.job import Job
    from preduce.planner.option import Option
    from preduce.planner.steps_model import StepsModel
    from preduce.schedulers.synthesis.problem import Limits

MAX_STRETCH_WHEN_CHEAP = 1.25
"""`--objective communication` takes the cheapest option that is predicted to need at most a quarter more steps."""


def pick(options: Sequence[Option], job: Job) -> Option:
    """The option that the objective prefers within the job's limits.

    Raises:
        UnknownError: no option keeps the limits; the message names the nearest one.
    """
    allowed = [option for option in options if _keeps(option, job.limits)]
    if job.objective is Objective.EXACT:
        allowed = [option for option in allowed if option.is_exact]
    if not allowed:
        raise UnknownError(_nothing(options, job))
    return min(allowed, key=lambda option: (*map(_rounded, _preference(option, job)), option.period, option.name))


def reasons(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    """Why the pick was picked, against the All-Reduce forms that a user would otherwise take. One sentence each."""
    baselines = [o for o in options if o.schedule.strategy.averages_everyone and o.schedule.strategy.pace == 1]
    costs = f"it communicates {_ms(chosen.communication)} per step and takes {_ms(chosen.step_seconds)} per step in all"
    said = [f"{costs}, of which {_ms(chosen.waiting)} are waiting"]
    if baselines:
        best = min(baselines, key=lambda option: option.time)
        if chosen is best:
            said.append("no schedule that averages less is predicted to train faster than All-Reduce in every step")
        elif chosen.time > 0:
            said.append(
                f"it is predicted to reach a loss {best.time / chosen.time:.2f} times as fast as {best.name} "
                f"({_ms(best.step_seconds)} per step)"
            )
    said.append(
        f"it is predicted to need {chosen.stretch:.2f} times All-Reduce's steps on {job.data} data "
        f"(9 of 10 measured schedules lay within {_model(chosen).error(job.data):.0%} of the prediction)"
    )
    if chosen.form is Form.HIERARCHICAL:
        said.append("its groups add up inside nodes first, as its file says: form hierarchical, which runs over gloo")
    if chosen.corrected:
        without = FITTED.stretch(float(chosen.disagreement), float(chosen.drift))
        said.append(
            f"run it with drift_correction='auto' (plain SGD without momentum): without that it is predicted to need "
            f"{without:.2f} times All-Reduce's steps"
        )
    if chosen.extrapolated:
        said.append(
            "that prediction lies outside the schedules that the model was fitted to: measure before you rely on it"
        )
    return said


def cautions(chosen: Option, job: Job, ended: str = "its time limit") -> list[str]:
    """What was not proved, and what the user should know; `ended` says what ended the search."""
    said = []
    if chosen.form is Form.TREE:
        said.append("the form tree can be planned but not run over gloo; with --form ring or hierarchical it can")
    if chosen.status == "feasible":
        bound = f", whose disagreement is at least {chosen.bound:.4g}" if chosen.bound is not None else ""
        said.append(f"better schedules may exist{bound}: the search ended because of {ended}, not at a proof")
    elif chosen.status == "catalogue":
        said.append("the pick is a published construction; that nothing better exists is not proved")
    if job.data is not Data.SHUFFLED and not job.drift_correction:
        said.append(
            "drift correction is left out; if you train with plain SGD, say --drift-correction: with it schedules that "
            "average rarely need far fewer steps on such data"
        )
    if job.data is Data.SHUFFLED and (chosen.drift.value or 0) > 1:
        drift = chosen.drift.value or math.inf
        slower = FITTED.stretch(0.0, drift)
        said.append(
            f"with data that differs between workers it would need about {slower:.1f} times All-Reduce's steps "
            f"(drift {drift:.3g}); say --data per-worker or per-node if yours does"
        )
    return said


def _rounded(value: float) -> float:
    """Nine digits: two ways to write one schedule differ by rounding, and then the shorter period is to win."""
    return float(f"{value:.9g}")


def _model(option: Option) -> StepsModel:
    return CORRECTED if option.corrected else FITTED


def _keeps(option: Option, limits: Limits) -> bool:
    """Whether the option reaches consensus and its figures keep the limits, up to rounding."""
    if not math.isfinite(option.stretch):
        return False
    if not limits.allow_communication(option.communication):
        return False
    spread = option.disagreement.value
    if spread is None:
        return limits.max_disagreement is None
    return limits.allow_disagreement(spread, lambda: _exactly(option))


def _exactly(option: Option) -> Fraction | None:
    """The disagreement as a fraction where it can be had."""
    from preduce.topo.figures import exact_disagreement

    try:
        return exact_disagreement(option.schedule)
    except PreduceError:  # no rule, or one of too many local ranks
        return None


def _preference(option: Option, job: Job) -> tuple[float, ...]:
    spread = math.inf if option.disagreement.value is None else option.disagreement.value
    drift = math.inf if option.drift.value is None else option.drift.value
    if job.objective is Objective.COMMUNICATION:
        return (float(option.stretch > MAX_STRETCH_WHEN_CHEAP), option.communication, option.time)
    if job.objective is Objective.DISAGREEMENT:
        return (spread, option.communication)
    if job.objective is Objective.DRIFT:
        return (drift, option.communication)
    if job.objective is Objective.WAITING:
        return (option.step_seconds, option.stretch)
    if job.objective is Objective.EXACT:
        return (float(option.period), option.communication, float(option.status != "optimal"))
    return (option.time, option.communication)


def _nothing(options: Sequence[Option], job: Job) -> str:
    usable = [option for option in options if math.isfinite(option.stretch)]
    if job.objective is Objective.EXACT:
        return "no schedule with exact consensus was found within the limits; raise --period or --max-group"
    if not usable:
        return "no schedule that reaches consensus was found; raise --period or --max-group"
    cheapest, budget = min(usable, key=lambda option: option.communication), job.limits.max_communication
    if budget is not None and cheapest.communication > budget:
        return (
            f"max-communication {_ms(budget)}: nothing that reaches consensus was found below "
            f"{_ms(cheapest.communication)} per step ({cheapest.name}); raise the budget or the period"
        )
    calmest = min(usable, key=lambda option: float(option.disagreement))
    return (
        f"max-disagreement {job.limits.max_disagreement}: the least found is {float(calmest.disagreement):.4g} at "
        f"{_ms(calmest.communication)} per step ({calmest.name}); raise a limit"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
