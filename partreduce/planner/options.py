"""The options of a job: the catalogue's schedules, those that the search finds, and those run in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from partreduce.planner.axes import Axes
from partreduce.planner.competitors import competitors
from partreduce.planner.failure_plans import has_plan
from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import Label
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.trials.kinds import KINDS
from partreduce.planner.trials.kit import Trials
from partreduce.planner.work import SETTINGS, payer, work_of
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.front import MAX_REPORTED, search
from partreduce.schedulers.synthesis.problem import Candidate, Front, Status

CATALOGUE_SHARE, RULES_SHARE = 0.25, 0.5
"""Of the time, after which the catalogue's graphs, and then its rules, are no longer measured."""
MEASURE_SHARE = 0.2
"""Of the time, kept at the most for measuring what the search found."""

NOT_SEARCHED = Front(
    candidates=(),
    best=None,
    status=Status.UNKNOWN,
    seconds=0.0,
    seed=0,
    reason="graphs, gaps and quorums are not searched for",
)
"""What the search says where only one kind that is run in virtual time is asked for."""


@dataclass
class Weighed:
    """What was weighed of a job: the options, the search's answer, and by kind what the time did not reach."""

    options: list[CandidateSchedule] = field(default_factory=list)
    searched: Front = NOT_SEARCHED
    left_out: dict[str, list[str]] = field(default_factory=dict)


def weigh(job: PlanRequest, clock: Clock, until: float, say: Callable[[str], None]) -> Weighed:
    """Weigh every kind until the clock's position `until`, each with its share of the time."""
    kinds, alone = [kind for kind in KINDS if kind.weighs(job)], bool(job.gap or job.quorum)
    weighed, missed = Weighed(), list[str]()
    say("measuring the catalogue")
    weighed.options += competitors(
        job,
        until=CATALOGUE_SHARE * clock.limit,
        stop=RULES_SHARE * clock.limit,
        clock=clock,
        left_out=missed.append,
        names=("allreduce",) if alone else None,
    )
    weighed.left_out["the catalogue"] = missed
    if not alone:
        _search(weighed, job, clock, until - clock.limit * sum(kind.share for kind in kinds), say)
    for index, kind in enumerate(kinds):
        say(f"running {kind.name} in virtual time")
        later = clock.limit * sum(one.share for one in kinds[index + 1 :])
        trials = Trials(job, clock, until - later)
        weighed.options += kind.options(trials)
        weighed.left_out[kind.name] = trials.left_out
    if job.tolerate_failures:
        weighed.options = [option for option in weighed.options if has_plan(option.schedule)]
    if job.tables:
        weighed.options = [one for one in weighed.options if not one.schedule.strategy.tables_unsupported_reason()]
    return weighed


def _search(weighed: Weighed, job: PlanRequest, clock: Clock, until: float, say: Callable[[str], None]) -> None:
    """Search for as long as what is found can still be measured, a metric in as long as the catalogue's were."""
    each = SETTINGS * clock.position() / max(1, len(weighed.options))
    kept = min(MEASURE_SHARE * clock.limit, 1.3 * MAX_REPORTED * each)
    found = search(job.problem(), clock, until - kept, seed=job.seed, progress=say)
    weighed.searched, pay = found, payer(clock, until)
    for index, candidate in enumerate(found.candidates):
        if not pay(work_of(candidate.schedule, job, SETTINGS)) and index:
            weighed.left_out["the search's finds"] = [one.schedule.name for one in found.candidates[index:]]
            return
        weighed.options += options_of(candidate, job)


def options_of(candidate: Candidate, job: PlanRequest) -> list[CandidateSchedule]:
    """The options of one schedule that the search found."""
    schedule = candidate.schedule
    return Axes.of(schedule, job).options(Label(name=schedule.name, status=Status.FEASIBLE))
