"""Train the schedules that may be recommended on the job itself, together with All-Reduce, before recommending one.

Prices distinguish kinds only as well as the steps model fits the job: averaging parameters instead of gradients, or
late gradients, cost some jobs almost nothing and others several times the steps. So the recommendation by a pilot's
prices and the best option of every other kind run in the same way as its probes, the prices are fitted again with these
runs, and this repeats while the recommendation has not run. Options that ran are then predicted from their own runs as
far as the noise allows (`measuring.as_ran`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from partreduce.planner.calibration import as_trained, calibrated, trained_sha256
from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.plan import Plan, plan
from partreduce.planner.recommend import permitted
from partreduce.runtime.pilot.job import Curve
from partreduce.topo.pilot import Pilot
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import HasGroups

ROUNDS = 3
"""Maximum number of rounds with new finalists."""


class RunOff:
    """The runs that a pilot needs until its recommendation is a schedule that ran.

    `finalists` are the hashes of the schedules named so far, and `plans` the plans so far: the first by the probes'
    prices alone, the last with all runs.
    """

    def __init__(self, job: PlanRequest, *, steps: int) -> None:
        self.job, self.steps = job, steps
        self.finalists: set[str] = set()
        self.plans: list[Plan] = []

    def pilot(self, curves: Sequence[Curve]) -> Pilot:
        """Return the pilot with its prices and finalists."""
        return calibrated(curves, data=self.job.data, steps=self.steps, finalists=self.finalists)

    def next(self, curves: Sequence[Curve]) -> list[Schedule]:
        """Plan with these curves; return the finalists that did not run, unless there were `ROUNDS` rounds of them."""
        job = replace(self.job, pilot=self.pilot(curves))
        planned = plan(job)
        self.plans.append(planned)
        if len(self.plans) > ROUNDS:
            return []
        ran = {trained_sha256(curve.schedule) for curve in curves}
        named = {trained_sha256(one.schedule): one for one in finalists(planned.recommendation, planned.options, job)}
        self.finalists |= set(named)
        return [as_trained(one.schedule, name=one.name) for sha256, one in named.items() if sha256 not in ran]


def finalists(
    chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest
) -> list[CandidateSchedule]:
    """Return the recommendation, and the best of every other kind by the pilot's prices if it could be faster.

    Kinds are synchronous parameters, late parameters, and a pipeline; All-Reduce in each step is always included.
    Options of protocols, and options that connect all workers only after more steps than a run has, are not run.
    """
    assert job.pilot is not None, "its prices made them finalists"
    kinds: dict[object, CandidateSchedule] = {}
    for option in sorted(permitted(options, job), key=lambda one: (one is not chosen, one.time)):
        is_faster = option is chosen or (option.step_seconds < chosen.time and isfinite(option.time_at_worst))
        if is_faster and _can_run(option, job.pilot.steps):
            kinds.setdefault(option.kind, option)
    return list(kinds.values())


def _can_run(option: CandidateSchedule, steps: int) -> bool:
    strategy = option.schedule.strategy
    if option.facts is not None:
        return False
    if strategy.averages_gradients:
        return option.late  # All-Reduce in each step is always included
    longest = option.schedule.largest_steps_per_round
    return not isinstance(strategy, HasGroups) or option.schedule.rounds_to_connect() * longest <= steps
