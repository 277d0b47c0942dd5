"""What must hold of the planner's answer to any job; each check returns a sentence for every thing that does not."""

from __future__ import annotations

import json
import math
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.planner.brute_force import all_schedules
from preduce import Objective, plan
from preduce.topo.errors import InfeasibleError, InputError, PreduceError, UnknownError

if TYPE_CHECKING:
    import numpy.typing as npt

    from benchmarks.planner.brute_force import Everything
    from preduce import Job, Limits, Option, Plan

OVERRUN = 2.0
"""Seconds by which a plan may overrun its time limit: figures, bounds and the proof of the pick that had begun."""
SLACK = 1e-6
"""Figures that differ by this share are equal."""
PROVED = 1e-4
"""A bound may lie this much above a disagreement: its tables are in single precision."""


@dataclass
class Outcome:
    """One job's answer: its kind (a status or an error's name), seconds, and what is wrong with it."""

    kind: str
    seconds: float
    wrong: list[str] = field(default_factory=list)
    capped: bool = False
    bounded: bool = False


def run(job: Job, *, exhaust: bool = False, again: bool = False, overrun: float = OVERRUN) -> Outcome:
    """Plan a job and check the answer; `exhaust` compares with all short schedules, `again` with a second run."""
    begun = time.monotonic()
    planned: Plan | None = None
    error: PreduceError | None = None
    try:
        planned = plan(job)
    except (InfeasibleError, UnknownError, InputError) as refused:
        error = refused
    except Exception:  # noqa: BLE001 - any other error is what is looked for
        return Outcome("internal error", time.monotonic() - begun, [traceback.format_exc(limit=-4)])
    seconds = time.monotonic() - begun
    outcome = Outcome(type(error).__name__ if planned is None else str(planned.answer.status), seconds)
    if job.time_limit is not None and seconds > job.time_limit + overrun:
        outcome.wrong.append(f"took {seconds:.2f} s with a limit of {job.time_limit:.2f} s")
    if planned is not None:
        outcome.capped, outcome.bounded = planned.answer.capped, planned.pick.bound is not None
        outcome.wrong += [*_pick(planned, job), *_front(planned), *_document(planned)]
    if exhaust:
        outcome.wrong += _exhausted(job, planned, error)
    if again and job.effort is not None and planned is not None and not planned.answer.capped:
        second = plan(job)
        if not second.answer.capped and json.dumps(second.to_json()) != json.dumps(planned.to_json()):
            outcome.wrong.append("a second run with the same effort and seed answers differently")
    return outcome


def _costs(option: Option) -> tuple[float, ...]:
    spread = math.inf if option.disagreement.value is None else option.disagreement.value
    drift = math.inf if option.drift.value is None else option.drift.value
    return option.communication, spread, drift, option.step_seconds, option.stretch


def _beats(one: Option, other: Option) -> bool:
    """Whether an option is as good in everything, and better in something by more than rounding."""
    ours, theirs = _costs(one), _costs(other)
    return all(a <= b * (1 + 1e-9) + 1e-12 for a, b in zip(ours, theirs, strict=True)) and any(
        a < b * (1 - SLACK) - 1e-9 for a, b in zip(ours, theirs, strict=True)
    )


def _keeps(option: Option, job: Job) -> bool:
    limits, spread = job.limits, option.disagreement.value
    if not math.isfinite(option.stretch) or spread is None:
        return False
    slack = 1 + 1e-9
    budget, value = limits.max_communication, limits.max_disagreement
    return (budget is None or option.communication <= budget * slack + 1e-12) and (
        value is None or spread <= float(value) * slack + 1e-12
    )


def _pick(planned: Plan, job: Job) -> list[str]:
    """The pick keeps the limits, and nothing that keeps them beats it."""
    chosen, wrong = planned.pick, []
    if not _keeps(chosen, job):
        wrong.append(f"the pick {chosen.name} breaks a limit")
    for option in planned.options:
        rival = _keeps(option, job)
        if job.objective is Objective.EXACT:
            rival = rival and option.is_exact and option.period <= chosen.period
        if rival and _beats(option, chosen):
            wrong.append(f"{option.name} {_costs(option)} beats the pick {chosen.name} {_costs(chosen)}")
    return wrong


def _front(planned: Plan) -> list[str]:
    """Nothing on the front but the pick is beaten, and everything measured is on it or matched by it."""
    wrong = [
        f"{option.name} is on the front and beaten by another there"
        for option in planned.front
        if option is not planned.pick and any(_beats(other, option) for other in planned.front)
    ]
    for option in planned.options:
        if not math.isfinite(option.stretch):
            continue
        ours = _costs(option)
        if not any(
            all(a <= b * (1 + SLACK) + 1e-9 for a, b in zip(_costs(other), ours, strict=True))
            for other in planned.front
        ):
            wrong.append(f"{option.name} {ours} was measured, and nothing on the front is as good")
    return wrong


def _document(planned: Plan) -> list[str]:
    document = planned.to_json()
    json.dumps(document, allow_nan=False)
    named = {row["name"] for row in document["front"]}
    wrong = [] if document["pick"]["name"] in named else ["the pick is not on the front"]
    if planned.proof.verdict == "refuted":
        wrong.append(f"the pick {planned.pick.name} is refuted")
    if any((option.disagreement.value or 0.0) < 0 for option in planned.options):
        wrong.append("a disagreement is negative")
    return wrong


def _exhausted(job: Job, planned: Plan | None, error: PreduceError | None) -> list[str]:
    """The sentences about what no schedule of plain means can do, against all of them with at most two phases."""
    every = all_schedules(job.cluster, job.problem().form, 2)
    fits = _kept_by(every, job.limits)
    if isinstance(error, InfeasibleError) and job.objective is not Objective.EXACT and fits.any():
        return [f"called infeasible ({error}), but {int(fits.sum())} schedules keep all limits"]
    if planned is None:
        return []
    return [*_bounds(planned, every), *_optimality(planned, job, every, fits)]


def _kept_by(every: Everything, limits: Limits) -> npt.NDArray[np.bool_]:
    """Which schedules reach consensus within the limits, (N,)."""
    fits = np.isfinite(every.disagreement) & (every.period >= limits.min_period) & (every.period <= limits.max_period)
    if limits.max_communication is not None:
        fits &= every.communication <= limits.max_communication
    if limits.max_disagreement is not None:
        fits &= every.disagreement <= float(limits.max_disagreement)
    if limits.max_group is not None:
        fits &= every.largest <= limits.max_group
    if limits.max_distinct_phases is not None:
        fits &= every.distinct <= limits.max_distinct_phases
    return np.asarray(fits)


def _bounds(planned: Plan, every: Everything) -> list[str]:
    """No schedule lies below a bound that an option carries."""
    wrong = []
    for option in planned.options:
        if option.bound is None or option.schedule.strategy.pace != 1:
            continue
        within = every.communication <= option.communication * (1 + 1e-12)
        least = float(every.disagreement[within].min(initial=math.inf))
        if least < option.bound - PROVED:
            wrong.append(f"{option.name}: bound {option.bound:.6g} at {option.communication:.6g} s, yet {least:.6g}")
    return wrong


def _optimality(planned: Plan, job: Job, every: Everything, fits: npt.NDArray[np.bool_]) -> list[str]:
    """No schedule within the limits is better than what is called optimal."""
    if planned.answer.status != "optimal":
        return []
    chosen = planned.pick
    best = float(every.disagreement[fits].min(initial=math.inf))
    least = float(every.communication[fits].min(initial=math.inf))
    if job.objective is Objective.DISAGREEMENT and best < float(chosen.disagreement) - PROVED:
        return [f"called optimal at {float(chosen.disagreement):.6g}, but {best:.6g} exists"]
    if job.objective is Objective.COMMUNICATION and least < chosen.communication * (1 - PROVED):
        return [f"called optimal at {chosen.communication:.6g} s, but {least:.6g} s exists"]
    return []
