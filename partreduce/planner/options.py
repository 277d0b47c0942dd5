"""Collect the candidates of a job: the catalogue in all settings, the search, and simulated protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import inf

from partreduce.planner.axes import Axes, within_limits
from partreduce.planner.candidates import weighed_kinds
from partreduce.planner.failure_plans import has_plan
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.measuring import (
    MAX_GRAPH_WORKERS,
    SETTINGS,
    measure,
    payer,
    sample_option,
    work_of,
    work_of_setting,
)
from partreduce.planner.option import CandidateSchedule, preference
from partreduce.planner.recommend import PUBLISHED, WORTH, allowed_options, baselines, decisive_time
from partreduce.planner.trials import try_all
from partreduce.schedulers import registry
from partreduce.schedulers.entry import Entry
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.schedulers.synthesis.cluster_shape import derived_worker_steps
from partreduce.schedulers.synthesis.front import MAX_REPORTED, search
from partreduce.schedulers.synthesis.problem import Front, Objective, Status
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import MissingDependencyError, PartreduceError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, AllReduceAlgorithm
from partreduce.topo.strategies.base import Averaging, Strategy

FIRST = ("allreduce", PUBLISHED[0], "node-then-all")
"""Catalogue entries to measure first: nearly always among the best, or what users compare with."""
RULES_FIRST = ("rule", "allreduce")
"""Kinds whose metrics cost milliseconds at any size; they are also the strongest competitors."""
NODE_ROUNDS = (1, 3, 7, 15, 23, 2, 5, 11, 19, 4, 9, 13, 17, 21, 6, 8, 10)
"""Numbers of rounds inside nodes before each round over all workers; a few widely spaced values come first."""
VARIANTS: dict[str, Sequence[dict[str, object]]] = {
    "local-sgd": [],  # the same schedules as allreduce
    "node-then-all": [{"node_rounds": rounds} for rounds in NODE_ROUNDS],
    "pairs-pairs-all": [{"pair_rounds": rounds} for rounds in (1, 2, 3, 4, 5, 7, 11, 15, 23)],
    "hierarchy": [{"rounds": rounds} for rounds in (1, 2, 3)],
}
PLAIN_ROUNDS = (2, 3, 4, 6, 8, 12, 16, 24)
"""Steps per round with which All-Reduce is always measured, in addition to the best ones for the job; also the factors
by which unequal steps per round are multiplied."""
CATALOGUE_SHARE, RULES_SHARE = 0.25, 0.5
"""Fractions of the time after which no further graphs, and no further rules, of the catalogue are measured."""
QUICK_SHARE, BRIEF_SHARE, QUICK_KINDS = 0.5, 0.35, 0.37
"""Fractions of the time of the quick effort: at least for the catalogue; for a brief search if the job has limits; and,
of the time that remains, for simulations."""
SAMPLING_SHARE, MEASURE_SHARE = 0.1, 0.2
"""Fractions of the time: for sampling random step times, and at most for measuring the search's results."""


@dataclass
class Weighing:
    """The candidates collected for a job, the search's result, and the names of candidates `left_out`, by kind."""

    options: list[CandidateSchedule] = field(default_factory=list)
    searched: Front = field(default_factory=Front)
    left_out: dict[str, list[str]] = field(default_factory=dict)


def weigh(job: PlanRequest, clock: Clock, until: float, say: Callable[[str], None]) -> Weighing:
    """Collect candidates of all kinds until the clock's position `until`, each kind within its share of the time."""
    kinds, alone = weighed_kinds(job), bool(job.gap or job.quorum)
    weighed, missed = Weighing(), list[str]()
    rules = RULES_SHARE * clock.limit
    searched = until - clock.limit * sum(kind.share for kind in kinds.values())
    brief = BRIEF_SHARE * clock.limit * (job.is_limited and not alone)
    if not job.searches:
        rules = max(QUICK_SHARE * clock.limit, searched) - brief
        searched = rules + brief if brief else 0.0
    # Steps that vary are sampled only for options that are good at mean speeds.
    even, sampling = job.at_mean_speeds, 0.0 if job.compute_times.is_fixed else SAMPLING_SHARE * clock.limit
    say("measuring the catalogue")
    weighed.options += competitors(
        even, until=CATALOGUE_SHARE * clock.limit, stop=rules - sampling, clock=clock, left_out=missed.append,
        names=("allreduce",) if alone else None,
    )  # fmt: skip
    weighed.left_out["the catalogue"] = missed
    if not alone and searched:
        _search(weighed, even, clock, searched - sampling, say)
    if outer := kinds.pop("outer", None):  # they also have formulas
        pay = payer(clock, clock.position() + outer.share * clock.limit)
        options, weighed.left_out[outer.name] = try_all(outer.candidates(even, pay), even, pay, in_any_case=False)
        weighed.options += options
    if sampling:
        say("sampling step times")
        weighed.options = _sample_times(weighed, job, payer(clock, max(searched, clock.position() + sampling)))
    each, all_shares = clock.limit, sum(kind.share for kind in kinds.values())
    if not job.searches and not alone:
        left = QUICK_KINDS * max(0.0, until - clock.position())
        until, each = clock.position() + left, left / max(all_shares, 1e-9)
    for word, kind in kinds.items():
        say(f"running {kind.name} in virtual time")
        all_shares -= kind.share
        pay, requested = payer(clock, until - each * all_shares), {"iteration_gap": job.gap, "partial": job.quorum}
        candidates = kind.candidates(job, pay if job.take is None else lambda _: True)
        options, weighed.left_out[kind.name] = try_all(candidates, job, pay, in_any_case=bool(requested.get(word)))
        weighed.options += options
    if job.tolerate_failures:
        weighed.options = [option for option in weighed.options if has_plan(option.schedule)]
    if job.tables:
        weighed.options = [one for one in weighed.options if not one.schedule.strategy.tables_unsupported_reason()]
    return weighed


def competitors(
    job: PlanRequest,
    *,
    until: float = inf,
    stop: float = inf,
    clock: Clock | None = None,
    left_out: Callable[[str], None] = lambda _: None,
    names: Sequence[str] | None = None,
) -> list[CandidateSchedule]:
    """Measure every catalogue entry that fits the cluster in all settings.

    Rules (groups by digits of the node's number, cheap to measure) and All-Reduce are measured until the clock's
    position `stop` (All-Reduce in every step always), and other entries, baselines first, until `until`; `left_out` is
    called with the name of each entry not reached in time. With `names` only the entries of these names are measured.
    """
    clock = clock or Clock(seconds=MANY_SECONDS)
    pay = payer(clock, stop)

    def fits(schedule: Schedule) -> bool:
        """Return whether there is time for a schedule; the first, All-Reduce in every step, is always measured."""
        return pay(work_of(schedule, job, most=clock.work_left(stop))) or not options

    options: list[CandidateSchedule] = []
    seen: list[Strategy] = []  # not a set: phases of many workers take longer to hash than to compare
    for name, is_rule, schedules in _sources(job, names or registry.names()):
        if options and clock.passed(stop if is_rule else until):
            left_out(name)
            continue
        for schedule in schedules():
            if schedule.strategy in seen or not within_limits(schedule, job.limits):
                continue
            seen.append(schedule.strategy)
            label = schedule.name
            if not fits(schedule):
                left_out(label)
                continue
            plain = schedule.strategy.averages_everyone and schedule.has_one_steps_per_round
            # Where speeds differ, steps per round in proportion to speed are the strongest competitors.
            for unequal in _unequal_steps(schedule, job):
                if fits(unequal):
                    options += Axes(unequal, job).options(unequal.name)
            rounds = PLAIN_ROUNDS if plain else ()
            options += Axes(schedule, job).options(label, rounds, pays=lambda: pay(work_of_setting(job)))
            if plain and not any(option.name == label for option in options):
                options.append(measure(schedule, job, algorithm=AllReduceAlgorithm.RING))
    return options


def _sources(job: PlanRequest, names: Sequence[str]) -> Iterator[tuple[str, bool, Callable[[], Iterable[Schedule]]]]:
    """Yield catalogue entries in measuring order: (name, whether its metrics are cheap at any size, its schedules).

    Outer steps are left out: they have their own prices (`candidates.KINDS`).
    """
    is_small = job.cluster.num_workers <= MAX_GRAPH_WORKERS
    ordered = sorted(names, key=lambda one: (*(one != first for first in FIRST), one not in PUBLISHED))
    entries = [entry for entry in map(registry.entry, ordered) if entry.kind != "outer"]
    for is_rule in (True, False):
        for entry in entries:
            if (entry.kind in RULES_FIRST) is is_rule and (is_rule or is_small):
                yield entry.name, is_rule, partial(_variants, entry, job.cluster)
        if is_rule and FIRST[-1] in names and job.hardware.slowdown:
            everyone = registry.build("allreduce", job.cluster)
            rarer = (one for factor in PLAIN_ROUNDS for one in _unequal_steps(everyone, job, factor))
            yield "paced allreduce", True, partial(iter, rarer)


@lru_cache(maxsize=64)  # plans for other optimizers weigh the same schedules
def _variants(entry: Entry, cluster: Cluster) -> list[Schedule]:
    built = []
    for parameters in VARIANTS.get(entry.name, [{}]):
        with suppress(PartreduceError):  # an entry whose default parameters do not fit this cluster is no competitor
            if not entry.why_not(cluster, **parameters):
                built.append(entry.build(cluster, **parameters))
    return built


def _unequal_steps(schedule: Schedule, job: PlanRequest, factor: int = 1) -> Iterator[Schedule]:
    """Yield the schedule with steps per round in proportion to worker speed, times `factor`; nothing at equal speeds.

    If workers see different data, averages are normalized by steps, so that the data of slow workers count equally.
    """
    strategy = schedule.strategy
    if not schedule.is_phased or strategy.steps_per_round != 1 or strategy.is_delayed:
        return
    if job.cluster.num_workers > MAX_GRAPH_WORKERS:  # metrics of unequal steps per round are dense
        return
    averaging = Averaging.MEAN if job.data is Data.SHUFFLED else Averaging.STEP_NORMALIZED
    for worker_steps in derived_worker_steps(job.cluster):
        if len(set(worker_steps)) > 1:
            steps = tuple(factor * count for count in worker_steps)
            unequal = replace(strategy, sync=SYNCHRONOUS, steps_per_round=steps, averaging=averaging)
            every = f"(every={max(steps)})" if factor > 1 else ""
            yield Schedule(f"paced {schedule.name}{every}", schedule.cluster, unequal)


def _search(weighed: Weighing, job: PlanRequest, clock: Clock, until: float, say: Callable[[str], None]) -> None:
    """Search, measure the results in several settings until the clock's position `until`, and add them to `weighed`."""
    each = SETTINGS * clock.position() / max(1, len(weighed.options))
    kept = min(MEASURE_SHARE * clock.limit, 1.3 * MAX_REPORTED * each)
    try:
        found = search(job.problem(), clock, until - kept, seed=job.seed, progress=say)
    except MissingDependencyError as error:  # the catalogue needs no solver
        say(str(error))
        found = Front()
    weighed.searched, pay = found, payer(clock, until)
    for index, candidate in enumerate(found.candidates):
        schedule = candidate.schedule
        if not pay(work_of(schedule, job, SETTINGS)) and index:
            weighed.left_out["the search's finds"] = [one.schedule.name for one in found.candidates[index:]]
            return
        weighed.options += Axes(schedule, job).options(schedule.name, status=Status.FEASIBLE)


def _sample_times(weighed: Weighing, job: PlanRequest, pay: Callable[[float], bool]) -> list[CandidateSchedule]:
    """Return the baselines, and the candidates that may be best, with seconds sampled from the job's step times.

    Varying step times make no schedule faster, so a candidate that is slower at mean speeds than the best sampled one
    (by more than `WORTH`) is omitted.
    `pay` charges nominal seconds of work and returns whether they fit.
    """
    by_time = job.objective is Objective.BALANCED

    def merit(option: CandidateSchedule) -> tuple[float, ...]:
        return (decisive_time(option, job),) if by_time else preference(option.costs, job.objective)

    able = {id(one) for one in allowed_options(weighed.options, job)}
    ordered = sorted(weighed.options, key=lambda one: (id(one) not in able, merit(one)))
    by_merit = [one for one in ordered if id(one) in able]
    shown = baselines(ordered)
    for few in (by_merit, [one for one in by_merit if not one.late], [one for one in by_merit if one.facts]):
        shown += [min(few, key=lambda one: one.time)] if few else []
    shown += [one for one in ordered if one.name == job.take]
    always = {id(one) for one in shown}
    listed = list({id(one): one for one in [*shown, *ordered]}.values())
    kept: list[CandidateSchedule] = []
    best: tuple[float, ...] = (inf,)
    for index, option in enumerate(listed):
        if id(option) not in always and by_time and merit(option)[0] > best[0] * (1 + WORTH):
            break
        if kept and not pay(work_of_setting(job)):
            weighed.left_out["what is good at mean speeds"] = [one.name for one in listed[index:]]
            break
        kept.append(sample_option(option, job))
        if id(option) in able:
            best = min(best, merit(kept[-1]))
    return kept
