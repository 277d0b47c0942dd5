"""What measuring an option costs in nominal seconds, so that an effort counts it whatever else the machine does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from partreduce.planner.job import PlanRequest
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.errors import PartreduceError
from partreduce.topo.metrics.classes import num_entries
from partreduce.topo.schedule import Schedule

MAX_GRAPH_WORKERS = 256
"""Weighted graphs and explicit groups need dense n×n work, so larger clusters are offered rules only."""
PER_OPTION = 1e-2
"""Figures of a rule, or of few workers; half of that again for each codec beyond the first."""
PER_ENTRY = 1e-8
"""Each of the n³ · period products where metrics are dense."""
PER_CLASS = 5e-7
"""Each of the g³ entries of a rule's classes of size g, of which metrics take eigenvalues and some tens of products;
and PER_RANK of each local rank and phase, for the classes and the seconds of a step. `PER_OPTION` covers small ones."""
PER_RANK = 1.5e-5
PER_SETTING = 5e-4
"""Another number of steps per round, or delay, of a schedule whose metrics are known, at fixed speeds."""
PER_SAMPLE = 6e-3
"""Sampled waiting of one setting, and PER_WORKER of it for each worker."""
PER_WORKER = 2e-4
SETTINGS = 4
"""Settings of a schedule that the search found: synchronous, late, and the best of each."""


def work_of(schedule: Schedule, job: PlanRequest, settings: int = 1) -> float:
    """Nominal seconds of all metrics of one schedule, in some settings."""
    work, per_option = settings * work_of_setting(job), PER_OPTION * (1 + len(job.codecs)) / 2
    if (rule := schedule.rule()) is None or not isinstance(schedule.strategy.steps_per_round, int):
        return work + per_option + PER_ENTRY * schedule.num_workers**3 * max(1, schedule.period)
    metrics = PER_RANK * rule.workers_per_node * max(1, schedule.period)
    if not schedule.strategy.averages_everyone:  # which is zero off the mean
        with suppress(PartreduceError):  # what refuses the metrics costs none
            metrics += PER_CLASS * num_entries(schedule)
    return work + max(per_option, metrics)


def work_of_setting(job: PlanRequest) -> float:
    """Nominal seconds of one more setting of a schedule."""
    if job.compute_times().is_fixed:
        return PER_SETTING
    return PER_SAMPLE + PER_WORKER * job.cluster.num_workers


def payer(clock: Clock, until: float) -> Callable[[float], bool]:
    """Whether there is time for work before the clock's position `until`; if so it is counted as spent."""

    def pay(work: float) -> bool:
        if not clock.fits(work, until):
            return False
        clock.charge(work)
        return True

    return pay
