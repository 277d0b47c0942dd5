"""Collect the options of a job: from the catalogue, from the search, and from runs in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from partreduce.planner.axes import Axes
from partreduce.planner.candidates import competitors, weighed_kinds
from partreduce.planner.failure_plans import has_plan
from partreduce.planner.front import baselines
from partreduce.planner.gain import WORTH, decisive_time
from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import Label, sampled_option
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.preference import preference
from partreduce.planner.recommend import permitted
from partreduce.planner.trials import try_all
from partreduce.planner.work import SETTINGS, payer, work_of, work_of_setting
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.front import MAX_REPORTED, search
from partreduce.schedulers.synthesis.problem import Candidate, Front, Objective, Status

CATALOGUE_SHARE, RULES_SHARE = 0.25, 0.5
"""Fractions of the time after which no more of the catalogue's graphs, and rules, are measured."""
QUICK_SHARE, BRIEF_SHARE, QUICK_KINDS = 0.5, 0.35, 0.45
"""Fractions of a quick answer's time: the minimum for the catalogue, a brief search where a job has limits, and, of the
remaining time, the runs in virtual time."""
SAMPLING_SHARE = 0.1
"""Fraction of the time for sampling steps that vary."""
MEASURE_SHARE = 0.2
"""Largest fraction of the time for measuring the schedules that the search found."""

NOT_SEARCHED = Front(reason="it was not searched")
"""The search result of a quick answer, and of jobs that ask for only one kind run in virtual time."""


@dataclass
class Weighed:
    """The options of a job, the search's answer, and by kind the names not reached in time."""

    options: list[CandidateSchedule] = field(default_factory=list)
    searched: Front = NOT_SEARCHED
    left_out: dict[str, list[str]] = field(default_factory=dict)


def weigh(job: PlanRequest, clock: Clock, until: float, say: Callable[[str], None]) -> Weighed:
    """Weigh every kind until the clock's position `until`, each within its fraction of the time."""
    kinds, alone = weighed_kinds(job), bool(job.gap or job.quorum)
    weighed, missed = Weighed(), list[str]()
    first, rules = CATALOGUE_SHARE * clock.limit, RULES_SHARE * clock.limit
    searched = until - clock.limit * sum(kind.share for kind in kinds.values())
    brief = BRIEF_SHARE * clock.limit * (job.is_limited and not alone)
    if not job.searches:
        rules = max(QUICK_SHARE * clock.limit, searched) - brief
        searched = rules + brief if brief else 0.0
    # Steps that vary are sampled only for options that are good at mean speeds.
    even, sampling = job.at_mean_speeds, 0.0 if job.compute_times().is_fixed else SAMPLING_SHARE * clock.limit
    rules -= sampling
    say("measuring the catalogue")
    weighed.options += competitors(
        even,
        until=first,
        stop=rules,
        clock=clock,
        left_out=missed.append,
        names=("allreduce",) if alone else None,
    )
    weighed.left_out["the catalogue"] = missed
    if not alone and searched:
        _search(weighed, even, clock, searched - sampling, say)
    if outer := kinds.pop("outer", None):  # they also have formulas
        pay = payer(clock, clock.position() + outer.share * clock.limit)
        tried = try_all(outer.candidates(even, pay), even, pay, in_any_case=False)
        weighed.options += tried.options
        weighed.left_out[outer.name] = tried.left_out
    if sampling:
        say("sampling step times")
        weighed.options = _sampled(weighed, job, payer(clock, max(searched, clock.position() + sampling)))
    each, all_shares = clock.limit, sum(kind.share for kind in kinds.values())
    if not job.searches and not alone:
        left = QUICK_KINDS * max(0.0, until - clock.position())
        until, each = clock.position() + left, left / max(all_shares, 1e-9)
    for word, kind in kinds.items():
        say(f"running {kind.name} in virtual time")
        all_shares -= kind.share
        pay, asked = payer(clock, until - each * all_shares), {"iteration_gap": job.gap, "partial": job.quorum}
        candidates = kind.candidates(job, pay if job.take is None else lambda _: True)
        tried = try_all(candidates, job, pay, in_any_case=bool(asked.get(word)))
        weighed.options += tried.options
        weighed.left_out[kind.name] = tried.left_out
    if job.tolerate_failures:
        weighed.options = [option for option in weighed.options if has_plan(option.schedule)]
    if job.tables:
        weighed.options = [one for one in weighed.options if not one.schedule.strategy.tables_unsupported_reason()]
    return weighed


def _search(weighed: Weighed, job: PlanRequest, clock: Clock, until: float, say: Callable[[str], None]) -> None:
    """Search while the found schedules can still be measured, each as fast as the catalogue's."""
    each = SETTINGS * clock.position() / max(1, len(weighed.options))
    kept = min(MEASURE_SHARE * clock.limit, 1.3 * MAX_REPORTED * each)
    found = search(job.problem(), clock, until - kept, seed=job.seed, progress=say)
    weighed.searched, pay = found, payer(clock, until)
    for index, candidate in enumerate(found.candidates):
        if not pay(work_of(candidate.schedule, job, SETTINGS)) and index:
            weighed.left_out["the search's finds"] = [one.schedule.name for one in found.candidates[index:]]
            return
        weighed.options += options_of(candidate, job)


def _sampled(weighed: Weighed, job: PlanRequest, pay: Callable[[float], bool]) -> list[CandidateSchedule]:
    """Return the baselines and the possible best options under the job's own step times.

    No step is longer at mean speeds, so an option that is slower there than the sampled best is no candidate.
    """
    by_time = job.objective is Objective.BALANCED

    def merit(option: CandidateSchedule) -> tuple[float, ...]:
        return (decisive_time(option, job),) if by_time else preference(option.costs, job.objective)

    able = {id(one) for one in permitted(weighed.options, job)}
    ordered = sorted(weighed.options, key=lambda one: (id(one) not in able, merit(one)))
    by_seconds = [one for one in ordered if id(one) in able]
    prompt, outer = ([one for one in by_seconds if not one.late], [one for one in by_seconds if one.facts])
    shown = [*baselines(ordered), *_least(by_seconds), *_least(prompt), *_least(outer)]
    shown += [one for one in ordered if one.name == job.take]
    always = {id(one) for one in shown}
    listed = list({id(one): one for one in [*shown, *ordered]}.values())
    kept = list[CandidateSchedule]()
    best: tuple[float, ...] = (inf,)
    for index, option in enumerate(listed):
        if id(option) not in always and by_time and merit(option)[0] > best[0] * (1 + WORTH):
            break
        if kept and not pay(work_of_setting(job)):
            weighed.left_out["what is good at mean speeds"] = [one.name for one in listed[index:]]
            break
        kept.append(sampled_option(option, job))
        if id(option) in able:
            best = min(best, merit(kept[-1]))
    return kept


def _least(options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
    """Return the option with the least predicted time, if there is one."""
    return [min(options, key=lambda one: one.time)] if options else []


def options_of(candidate: Candidate, job: PlanRequest) -> list[CandidateSchedule]:
    """Return the options of one schedule that the search found."""
    schedule = candidate.schedule
    return Axes.of(schedule, job).options(Label(name=schedule.name, status=Status.FEASIBLE))
