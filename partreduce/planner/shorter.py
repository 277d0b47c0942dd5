"""A shorter period that serves as well: part of a found period, where the rest of it adds nothing to the objective.

A search meets many periods of equal figures, and a long one holds shorter ones: every run of phases, around the end, is
a schedule of its own. Fewer phases are fewer communicators, and easier to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from partreduce.planner.axes import Axes
from partreduce.planner.job import Job
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import Label, as_ran
from partreduce.planner.option import Option
from partreduce.planner.preference import SLACK, preference
from partreduce.planner.recommend import recommend
from partreduce.planner.timings import Setting
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import GroupPhases, RulePhases, Static

MAX_RUNS = 256
"""Runs of phases whose figures are computed."""

MAX_EXPLICIT_WORKERS = 64
"""Explicit groups need dense n×n work for each."""


def shortened(
    chosen: Option,
    predicted: Sequence[Option],
    options: Sequence[Option],
    job: Job,
    may_go_on: Callable[[Schedule], bool] = lambda _: True,
) -> tuple[list[Option], Option]:
    """The options with a shorter period that serves as well as the chosen one, and what is recommended of them then.

    `predicted` are the options as they were before their runs in a pilot counted: a part is compared with the whole by
    the same prices, and then pays what its kind took more.
    """
    whole = next(before for before, after in zip(predicted, options, strict=True) if after is chosen)
    part = shorter(whole, job, may_go_on)
    if part is None:
        return list(options), chosen
    part = as_ran([*predicted, part], job)[-1]
    if part.surprise is not None:  # what it is part of was judged by less than is known
        options = [one for one in options if one is not chosen]
    options = [*options, part]
    return options, recommend(options, job)


def shorter(option: Option, job: Job, may_go_on: Callable[[Schedule], bool] = lambda _: True) -> Option | None:
    """The option with the fewest consecutive phases of its period that the objective likes no less; None if none does.

    Only for what the search found at one pace; what communicates more than the option is not looked at.
    `may_go_on(schedule)` says whether there is time for the figures of one more.
    """
    schedule = option.schedule
    if option.status == "catalogue" or not isinstance(option.pace, int):
        return None
    if option.lateness is None or (schedule.rule() is None and schedule.num_workers > MAX_EXPLICIT_WORKERS):
        return None
    wanted, setting = preference(option.costs, job.objective), Setting(option.lateness, option.pace)
    known = Axes.of(schedule, job).travelling_as(option.how)
    if known is None:
        return None
    costs = known.costed.cost.phases
    left = MAX_RUNS
    for length in range(1, schedule.period):
        served = []
        for start in range(schedule.period):
            run = [(start + t) % schedule.period for t in range(length)]
            cost = float(np.mean([costs[t] for t in run])) / option.pace
            if cost > option.communication * SLACK:
                continue
            if not left or not may_go_on(schedule):
                return None
            left -= 1
            part = _part(schedule, run, f"synthesised-{length}-phases-{1e3 * cost:.4g}ms")
            if not within_limits(part, job.limits):
                continue
            label = Label(name=part.name, status=option.status, bound=option.bound, bound_class=option.bound_class)
            axes = Axes.of(part, job)
            timing = axes.travelling_as(option.how)
            if timing is None:
                continue  # without a round of all nothing may be coded
            found = axes.option(setting, label, timing)
            if found.costs.keep(job.limits) and preference(found.costs, job.objective) <= wanted:
                served.append(found)
        if served:
            return min(served, key=lambda found: preference(found.costs, job.objective))
    return None


def _part(schedule: Schedule, run: list[int], name: str) -> Schedule:
    """The schedule of these phases alone."""
    rule = schedule.rule(by_node=True)
    if rule is not None:
        phases: RulePhases | GroupPhases = RulePhases(rule.radices, tuple(rule.phases[t] for t in run))
    else:
        phases = GroupPhases(tuple(schedule.phase(t) for t in run))
    strategy = schedule.strategy
    part = Static(phases=phases, pace=strategy.pace, averaging=strategy.averaging)
    return replace(schedule, name=name, strategy=part, certificate=None)
