"""The options of a job: the catalogue's schedules, those that the search finds, and those run in virtual time."""

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
"""Of the time, after which the catalogue's graphs, and then its rules, are no longer measured."""
QUICK_SHARE, BRIEF_SHARE, QUICK_KINDS = 0.5, 0.35, 0.45
"""Of a quick answer's time, kept for the catalogue at the least, and for a brief search where a job has limits; of the
time that is left then, what runs in virtual time may take."""
SAMPLING_SHARE = 0.1
"""Of the time, kept for sampling steps that vary."""
MEASURE_SHARE = 0.2
"""Of the time, kept at the most for measuring what the search found."""

NOT_SEARCHED = Front(
    candidates=(),
    best=None,
    status=Status.UNKNOWN,
    seconds=0.0,
    seed=0,
    reason="it was not searched",
)
"""What the search says in a quick answer, and where only one kind that is run in virtual time is asked for."""


@dataclass
class Weighed:
    """What was weighed of a job: the options, the search's answer, and by kind what the time did not reach."""

    options: list[CandidateSchedule] = field(default_factory=list)
    searched: Front = NOT_SEARCHED
    left_out: dict[str, list[str]] = field(default_factory=dict)


def weigh(job: PlanRequest, clock: Clock, until: float, say: Callable[[str], None]) -> Weighed:
    """Weigh every kind until the clock's position `until`, each with its share of the time."""
    kinds, alone = weighed_kinds(job), bool(job.gap or job.quorum)
    weighed, missed = Weighed(), list[str]()
    first, rules = CATALOGUE_SHARE * clock.limit, RULES_SHARE * clock.limit
    searched = until - clock.limit * sum(kind.share for kind in kinds.values())
    brief = BRIEF_SHARE * clock.limit * (job.is_limited and not alone)
    if not job.searches:
        rules = max(QUICK_SHARE * clock.limit, searched) - brief
        searched = rules + brief if brief else 0.0
    # The seconds of steps that vary are sampled of what is good at mean speeds.
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
    if outer := kinds.pop("outer", None):  # they have formulas, too
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


def _sampled(weighed: Weighed, job: PlanRequest, pay: Callable[[float], bool]) -> list[CandidateSchedule]:
    """The baselines, and what may be best, under the job's own step times.

    At mean speeds no step is longer, so what is slower there than the best is when sampled is no candidate.
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
    """The one of the least predicted time, if there is any."""
    return [min(options, key=lambda one: one.time)] if options else []


def options_of(candidate: Candidate, job: PlanRequest) -> list[CandidateSchedule]:
    """The options of one schedule that the search found."""
    schedule = candidate.schedule
    return Axes.of(schedule, job).options(Label(name=schedule.name, status=Status.FEASIBLE))
