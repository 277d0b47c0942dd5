"""Estimate the nominal seconds of measuring an option, so that an effort does not depend on the machine's load."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from partreduce.planner.job import PlanRequest
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.errors import PartreduceError
from partreduce.topo.metrics.decomposition import num_entries
from partreduce.topo.schedule import Schedule

MAX_GRAPH_WORKERS = 256
"""Weighted graphs and explicit groups need dense n×n work, so larger clusters use rules only."""
PER_OPTION = 1e-2
"""Metrics of a rule, or of few workers; half as much again for each codec beyond the first."""
PER_ENTRY = 1e-8
"""Each of the n³ · period products where metrics are dense."""
PER_CLASS = 5e-7
"""Each of the g³ entries of a rule's classes of size g, whose metrics take eigenvalues and some tens of products;
PER_RANK is the cost per local rank and phase of the classes and the seconds of a step. `PER_OPTION` covers small ones.
"""
PER_RANK = 1.5e-5
PER_SETTING = 5e-4
"""Another number of steps per round, or delay, of a measured schedule, at fixed speeds."""
PER_SAMPLE = 6e-3
"""Sampled waiting of one setting, plus PER_WORKER for each worker."""
PER_WORKER = 2e-4
SETTINGS = 4
"""Settings of a schedule from the search: synchronous, late, and the best of each."""


def work_of(schedule: Schedule, job: PlanRequest, settings: int = 1) -> float:
    """Return the nominal seconds of all metrics of one schedule, in some settings."""
    work, per_option = settings * work_of_setting(job), PER_OPTION * (1 + len(job.codecs)) / 2
    if (rule := schedule.rule()) is None or not isinstance(schedule.strategy.steps_per_round, int):
        return work + per_option + PER_ENTRY * schedule.num_workers**3 * max(1, schedule.period)
    metrics = PER_RANK * rule.workers_per_node * max(1, schedule.period)
    if not schedule.strategy.averages_everyone:  # 0 if every round averages all workers
        with suppress(PartreduceError):  # metrics that cannot be computed cost nothing
            metrics += PER_CLASS * num_entries(schedule)
    return work + max(per_option, metrics)


def work_of_setting(job: PlanRequest) -> float:
    """Return the nominal seconds of one more setting of a schedule."""
    if job.compute_times().is_fixed:
        return PER_SETTING
    return PER_SAMPLE + PER_WORKER * job.cluster.num_workers


def payer(clock: Clock, until: float) -> Callable[[float], bool]:
    """Return a function that says whether work fits before the clock's position `until`, and charges it if so."""

    def pay(work: float) -> bool:
        if not clock.fits(work, until):
            return False
        clock.charge(work)
        return True

    return pay
