"""The catalogue's entries as options for a job: what the found schedules have to beat."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from preduce.planner.job import Data
from preduce.planner.option import Option, measure
from preduce.planner.work import work_of
from preduce.schedulers import registry
from preduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from preduce.schedulers.synthesis.cluster_shape import derived_paces
from preduce.topo.errors import PreduceError
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.axes import Form
from preduce.topo.strategies.base import Averaging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from preduce.planner.job import Job
    from preduce.schedulers.entry import Entry
    from preduce.schedulers.synthesis.problem import Limits

MAX_GRAPH_WORKERS = 256
"""Weighted graphs and explicit groups need dense n×n work, so larger clusters are offered rules only."""

MAX_CONVEX_WORKERS = {"matcha": 64}
"""Entries whose making solves a convex problem in n×n matrices: at 128 workers that alone takes half a minute."""

RULES_FIRST = ("rule", "allreduce")
"""Kinds whose figures cost milliseconds at any size; they also are the strongest competitors."""

VARIANTS: dict[str, Sequence[dict[str, object]]] = {
    "allreduce": [{"every": every} for every in (1, 2, 3, 4, 6, 8, 12, 16, 24)],
    "local-sgd": [],  # the same schedules as allreduce
    "node-then-all": [{"node_rounds": rounds} for rounds in (1, 2, 3, 5, 7, 11, 15, 23)],
    "pairs-pairs-all": [{"pair_rounds": rounds} for rounds in (1, 2, 3, 4, 5, 7, 11, 15, 23)],
    "hierarchy": [{"rounds": rounds} for rounds in (1, 2, 3)],
}


def competitors(
    job: Job,
    *,
    until: float = inf,
    stop: float = inf,
    clock: Clock | None = None,
    left_out: Callable[[str], None] | None = None,
) -> list[Option]:
    """Every catalogue entry that fits the cluster, in all its forms, measured; entries that cannot run are left out.

    Rules and All-Reduce are measured until the clock's position `stop`, All-Reduce in every step in any case, others
    until `until`; the name of each that the time did not reach goes to `left_out`.
    """
    clock = clock or Clock(seconds=MANY_SECONDS)

    def fits(schedule: Schedule) -> bool:
        """Whether there is time for a schedule, which is counted as spent."""
        work = work_of(schedule, job)
        if options and not clock.fits(work, stop):
            return False
        clock.charge(work)
        return True

    options: list[Option] = []
    kinds = {name: registry.entry(name).kind for name in registry.names()}
    seen: set[object] = set()
    for name in sorted(kinds, key=lambda name: kinds[name] not in RULES_FIRST):
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
            options.append(measure(schedule, job, name=label))
            options += [
                measure(paced, job, name=f"paced {label}")
                for paced in _paced(schedule, job)
                if _within_gap(paced, job.limits) and fits(paced)
            ]
            if label in {"allreduce", "allreduce(every=1)"} and job.form is not Form.HIERARCHICAL:
                options.append(measure(schedule, job, name="allreduce hierarchical", form=Form.HIERARCHICAL))
    return options


def _schedules(entry: Entry, job: Job, seen: set[object]) -> Iterator[tuple[str, Schedule]]:
    for parameters in VARIANTS.get(entry.name, [{}]):
        try:
            if entry.why_not(job.cluster, **parameters):
                continue
            schedule = entry.build(job.cluster, **parameters)
        except PreduceError:
            continue  # an entry whose default parameters do not fit this cluster is no competitor
        if schedule.strategy in seen or not within_limits(schedule, job.limits):
            continue
        seen.add(schedule.strategy)
        yield schedule.name, schedule


def _paced(schedule: Schedule, job: Job) -> Iterator[Schedule]:
    """The schedule with paces in proportion to the workers' speeds, where those differ: nobody waits for the slow ones.

    Where workers see different data their progress is normalised, so that the slow ones' data count as much.
    """
    strategy = schedule.strategy
    if not schedule.is_phased or strategy.pace != 1 or strategy.overlap:
        return
    if job.cluster.num_workers > MAX_GRAPH_WORKERS:  # figures of unequal paces are dense
        return
    averaging = Averaging.MEAN if job.data is Data.SHUFFLED else Averaging.STEP_NORMALISED
    for paces in derived_paces(job.cluster):
        if len(set(paces)) > 1:
            unequal = replace(strategy, pace=paces, averaging=averaging)
            yield Schedule(f"{schedule.name}-paced", schedule.cluster, unequal)


def _offered(entry: Entry, job: Job) -> bool:
    if entry.kind == "analysis":
        return False
    most = MAX_CONVEX_WORKERS.get(entry.name, MAX_GRAPH_WORKERS)
    return entry.kind in RULES_FIRST or job.cluster.num_workers <= most


def within_limits(schedule: Schedule, limits: Limits) -> bool:
    """Whether a schedule keeps the limits on its shape; known ones may always have 24 phases."""
    if not limits.min_period <= schedule.period <= limits.max_period:
        return False
    if limits.max_distinct_phases is not None and schedule.num_distinct_phases() > limits.max_distinct_phases:
        return False
    if limits.max_group is not None and _largest_group(schedule) > limits.max_group:
        return False
    return _within_gap(schedule, limits)


def _largest_group(schedule: Schedule) -> int:
    """The most workers that one worker's parameters depend on after one round, itself included."""
    if graphs := schedule.strategy.graphs:
        return 1 + max(int(np.bincount(edges.targets).max(initial=0)) for edges in graphs)
    return max((int(schedule.phase(t).sizes.max(initial=0)) for t in range(schedule.period)), default=0)


def _within_gap(schedule: Schedule, limits: Limits) -> bool:
    """Whether never more than `max_gap` steps in a row pass without a group that crosses nodes."""
    if limits.max_gap is None:
        return True
    crossing = [t for t in range(schedule.period) if _crosses_nodes(schedule, t)]
    if not crossing:
        return False
    rounds_between = np.diff([*crossing, crossing[0] + schedule.period]).max()
    return int(rounds_between) * int(schedule.paces().max()) - 1 <= limits.max_gap


def _crosses_nodes(schedule: Schedule, t: int) -> bool:
    node_of = schedule.cluster.node_of()
    if graphs := schedule.strategy.graphs:
        return bool((node_of[graphs[t].sources] != node_of[graphs[t].targets]).any())
    phase = schedule.phase(t)
    # Every member's node beside that of its group's first member.
    first = np.repeat(phase.members[phase.offsets[:-1]], phase.sizes)
    return bool((node_of[phase.members] != node_of[first]).any())
