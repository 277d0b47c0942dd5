"""The catalogue's entries as options for a job: what the found schedules have to beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import gcd, inf

from partreduce.planner.axes import Axes
from partreduce.planner.front import PUBLISHED
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import Label, measure
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.travel import timed
from partreduce.planner.work import payer, work_of, work_of_setting
from partreduce.schedulers import registry
from partreduce.schedulers.entry import Entry
from partreduce.schedulers.rules.algebra import all_digits, local_ranks, static
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.schedulers.synthesis.cluster_shape import derived_worker_steps
from partreduce.topo.errors import PartreduceError
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, AllReduceAlgorithm
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.static import RulePhases

MAX_GRAPH_WORKERS = 256
"""Weighted graphs and explicit groups need dense n×n work, so larger clusters are offered rules only."""

RESTS = "all-and-rests"
"""The name of averages over all workers with rests between them."""

FIRST = ("allreduce", PUBLISHED[0], "node-then-all")
"""Measured before anything else: what nearly always is among the best, and what users compare with."""

RULES_FIRST = ("rule", "allreduce")
"""Kinds whose metrics cost milliseconds at any size; they also are the strongest competitors."""

NODE_ROUNDS = (1, 3, 7, 15, 23, 2, 5, 11, 19, 4, 9, 13, 17, 21, 6, 8, 10)
"""Rounds inside nodes before one of all, first few that are far apart."""
VARIANTS: dict[str, Sequence[dict[str, object]]] = {
    "local-sgd": [],  # the same schedules as allreduce
    "node-then-all": [{"node_rounds": rounds} for rounds in NODE_ROUNDS],
    "pairs-pairs-all": [{"pair_rounds": rounds} for rounds in (1, 2, 3, 4, 5, 7, 11, 15, 23)],
    "hierarchy": [{"rounds": rounds} for rounds in (1, 2, 3)],
}

REST_ROUNDS = (*range(1, 8), 9, 11, 13, 15, 19, 23)
"""Rounds without any average before one over all workers: where that comes late it is late by one of these only."""
DENSITIES = tuple((m, n) for n in range(3, 13) for m in range(2, n) if gcd(m, n) == 1)
"""Averages over all workers in so many of so many rounds, spread evenly, where not only the time decides."""

PLAIN_ROUNDS = (2, 3, 4, 6, 8, 12, 16, 24)
"""Steps of a round for which All-Reduce is always shown, in addition to those that suit the job best."""


def competitors(
    job: PlanRequest,
    *,
    until: float = inf,
    stop: float = inf,
    clock: Clock | None = None,
    left_out: Callable[[str], None] | None = None,
    names: Sequence[str] | None = None,
) -> list[CandidateSchedule]:
    """Every catalogue entry that fits the cluster, on all axes, measured; entries that cannot run are left out.

    Rules and All-Reduce are measured until the clock's position `stop`, All-Reduce in every step in any case, others,
    baselines first, until `until`; the name of each that the time did not reach goes to `left_out`. With `names` only
    the entries of these names are measured.
    """
    clock = clock or Clock(seconds=MANY_SECONDS)

    pay = payer(clock, stop)

    def fits(schedule: Schedule) -> bool:
        """Whether there is time for a schedule; All-Reduce in every step, the first, is measured in any case."""
        return pay(work_of(schedule, job)) or not options

    options: list[CandidateSchedule] = []
    for name, is_rule, schedules in _sources(job, names or registry.names()):
        if options and clock.passed(stop if is_rule else until):
            if left_out is not None:
                left_out(name)
            continue
        for label, schedule in schedules:
            if not fits(schedule):
                if left_out is not None:
                    left_out(label)
                continue
            plain = schedule.strategy.averages_everyone
            # Where speeds differ, steps per round in proportion to them are the strongest competitors, so they come
            # first.
            for paced in _paced(schedule, job):
                if fits(paced):
                    options += Axes.of(paced, job).options(Label(name=f"paced {label}"))
            options += Axes.of(schedule, job).options(
                Label(name=label), PLAIN_ROUNDS if plain else (), lambda: pay(work_of_setting(job))
            )
            if plain and not any(option.name == label for option in options):
                options.append(measure(schedule, job, label=Label(name=label), algorithm=AllReduceAlgorithm.RING))
    return options


def _sources(job: PlanRequest, names: Sequence[str]) -> Iterator[tuple[str, bool, Iterator[tuple[str, Schedule]]]]:
    """What is measured, in this order: a name, whether its metrics cost little at any size, and its schedules."""
    seen: set[object] = set()
    kinds = {name: registry.entry(name).kind for name in names}
    ordered = sorted(names, key=lambda one: (*(one != first for first in FIRST), one not in PUBLISHED))
    for is_rule in (True, False):
        for name in ordered:
            if (kinds[name] in RULES_FIRST) is is_rule and _offered(entry := registry.entry(name), job):
                yield name, is_rule, _schedules(entry, job, seen)
        if is_rule and FIRST[-1] in names:
            yield RESTS, True, _with_rests(job, seen)


def _schedules(entry: Entry, job: PlanRequest, seen: set[object]) -> Iterator[tuple[str, Schedule]]:
    for parameters in VARIANTS.get(entry.name, [{}]):
        try:
            if entry.why_not(job.cluster, **parameters):
                continue
            schedule = entry.build(job.cluster, **parameters)
        except PartreduceError:
            continue  # an entry whose default parameters do not fit this cluster is no competitor
        if schedule.strategy in seen or not within_limits(schedule, job.limits):
            continue
        seen.add(schedule.strategy)
        yield schedule.name, schedule


def _with_rests(job: PlanRequest, seen: set[object]) -> Iterator[tuple[str, Schedule]]:
    """Averages over all workers, and rounds without any between them."""
    cluster = job.cluster
    ranks, radices = local_ranks(cluster), all_digits(cluster.num_nodes)
    everyone = (Block(ranks, tuple(range(len(radices)))),)
    rounds = [(f"rest_rounds={rests}", 1, rests + 1) for rests in REST_ROUNDS]
    if job.is_limited:
        rounds += [(f"averages={m}, rounds={n}", m, n) for m, n in DENSITIES]
    for words, averages, period in rounds:
        phases = tuple(everyone if t * averages % period < averages else () for t in range(period))
        schedule = Schedule(f"{RESTS}({words})", cluster, static(cluster, RulePhases(radices, phases)))
        if schedule.strategy not in seen and within_limits(schedule, job.limits):
            seen.add(schedule.strategy)
            yield schedule.name, schedule


def _paced(schedule: Schedule, job: PlanRequest) -> Iterator[Schedule]:
    """The schedule with steps per round in proportion to speed where speeds differ, so that nobody waits for the slow.

    Where workers see different data their progress is normalized, so that the slow ones' data count as much.
    """
    strategy = schedule.strategy
    if not schedule.is_phased or strategy.steps_per_round != 1 or strategy.is_delayed:
        return
    if job.cluster.num_workers > MAX_GRAPH_WORKERS:  # metrics of unequal steps per round are dense
        return
    averaging = Averaging.MEAN if job.data is Data.SHUFFLED else Averaging.STEP_NORMALIZED
    for worker_steps in derived_worker_steps(job.cluster):
        if len(set(worker_steps)) > 1:
            unequal = replace(strategy, steps_per_round=worker_steps, averaging=averaging)
            named = Schedule(f"{schedule.name}-paced", schedule.cluster, unequal)
            yield timed(named, SYNCHRONOUS, worker_steps)


def _offered(entry: Entry, job: PlanRequest) -> bool:
    """Outer steps have prices of their own, by which `trials.outer_steps` weighs them."""
    if entry.kind == "outer":
        return False
    return entry.kind in RULES_FIRST or job.cluster.num_workers <= MAX_GRAPH_WORKERS
