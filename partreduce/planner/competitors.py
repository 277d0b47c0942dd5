"""The catalogue's entries as options for a job: what the found schedules have to beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

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
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.schedulers.synthesis.cluster_shape import derived_worker_steps
from partreduce.topo.errors import PartreduceError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, AllReduceAlgorithm
from partreduce.topo.strategies.base import Averaging

MAX_GRAPH_WORKERS = 256
"""Weighted graphs and explicit groups need dense n×n work, so larger clusters are offered rules only."""

RULES_FIRST = ("rule", "allreduce")
"""Kinds whose metrics cost milliseconds at any size; they also are the strongest competitors."""

VARIANTS: dict[str, Sequence[dict[str, object]]] = {
    "local-sgd": [],  # the same schedules as allreduce
    "node-then-all": [{"node_rounds": rounds} for rounds in (1, 2, 3, 5, 7, 11, 15, 23)],
    "pairs-pairs-all": [{"pair_rounds": rounds} for rounds in (1, 2, 3, 4, 5, 7, 11, 15, 23)],
    "hierarchy": [{"rounds": rounds} for rounds in (1, 2, 3)],
}

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
    kinds = {name: registry.entry(name).kind for name in names or registry.names()}
    seen: set[object] = set()
    order = sorted(kinds, key=lambda name: (name != "allreduce", kinds[name] not in RULES_FIRST, name not in PUBLISHED))
    for name in order:
        entry = registry.entry(name)
        if not _offered(entry, job):
            continue
        if options and clock.passed(until if entry.kind not in RULES_FIRST else stop):
            if left_out is not None:
                left_out(name)
            continue
        for label, schedule in _schedules(entry, job, seen):
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
