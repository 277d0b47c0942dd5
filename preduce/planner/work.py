"""What measuring an option costs in nominal seconds, so that an effort counts it whatever else the machine does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preduce.planner.job import Job
    from preduce.topo.schedule import Schedule

PER_OPTION = 1e-2
"""Figures of a rule, or of few workers."""
PER_ENTRY = 1e-8
"""Each of the n³ · period products where figures are dense."""
PER_SAMPLE = 3e-2
"""Sampled waiting, and PER_WORKER of it for each worker."""
PER_WORKER = 2e-4


def work_of(schedule: Schedule, job: Job) -> float:
    """Nominal seconds of all figures of one schedule."""
    work = PER_OPTION
    if schedule.rule() is None or not isinstance(schedule.strategy.pace, int):
        work += PER_ENTRY * schedule.num_workers**3 * max(1, schedule.period)
    if not job.compute_times().is_fixed:
        work += PER_SAMPLE + PER_WORKER * schedule.num_workers
    return work
