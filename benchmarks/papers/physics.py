"""What physics allows: a contestant's step in virtual time, where only computing takes time.

Steps are as long as those of the lab's runs, worker by worker and step by step.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from benchmarks.lab.contestants import SERVER, named
from benchmarks.lab.setting import Job, Setting, StepLengths
from benchmarks.lab.tasks import Batches, samples_of
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.timing.compute import ComputeTimes

FREE = Link(0.0, 1e-15)
"""A link that takes no time worth a name."""


def step_ms(
    name: str, setting: Setting, shape: tuple[int, int], steps: int, runs: int, *, after: int = 0
) -> float | None:
    """Milliseconds per step as the lab counts them, the mean of its repetitions; None where the engine cannot say.

    Where sums do not wait for all, a step is a gradient. The first steps, up to `after`, are left out.
    """
    found = [of_run(name, setting, shape, steps, repetition, after) for repetition in range(runs)]
    known = [ms for ms in found if ms is not None]
    return sum(known) / len(known) if known else None


@cache
def of_run(  # noqa: PLR0917 - one call each, and a cache's
    name: str, setting: Setting, shape: tuple[int, int], steps: int, repetition: int, after: int
) -> float | None:
    """Virtual time knows no server; where only computing takes time, a synchronous one is an all-reduce."""
    make = named("flat ring" if name == SERVER else name, lambda *_: None).make
    schedule = make(Cluster.regular(*shape), setting) if make is not None else None
    if schedule is None or schedule.strategy.kind == "dynamic_groups":
        return None
    by_quorum = isinstance(schedule.strategy.sync, PartialAllReduce)
    trace = step_seconds(setting, shape, 6 * steps if by_quorum else steps, repetition)
    try:
        if by_quorum:
            return 1e3 * _seconds_of(schedule, trace, steps) / steps
        timeline = simulate(
            schedule, Hardware(nic=FREE), compute=ComputeTimes(trace=trace), num_rounds=steps, model_bytes=1
        )
    except PartreduceError:
        return None
    begun = timeline.finish[after - 1] if after else 0.0  # (num_workers,)
    return 1e3 * schedule.num_workers / float(((steps - after) / (timeline.finish[-1] - begun)).sum())


def step_seconds(setting: Setting, shape: tuple[int, int], steps: int, repetition: int) -> npt.NDArray[np.float64]:
    """How long the lab's workers compute, shape (steps, workers), with the batches that they draw."""
    count = shape[0] * shape[1]
    lengths = [StepLengths(setting, count, rank, repetition) for rank in range(count)]
    seconds = np.array([[worker(step) for worker in lengths] for step in range(steps)])
    if setting.task != "docstrings":
        return seconds
    size = {"num_nodes": shape[0], "workers_per_node": shape[1]}
    job = Job(task=setting.task, batch=setting.batch, seed=repetition, **size)
    batches = [Batches(job, rank, samples_of(setting.task)) for rank in range(count)]
    return np.array(seconds * [[worker.draw()[1] for worker in batches] for _ in range(steps)])


def _seconds_of(schedule: Schedule, trace: npt.NDArray[np.float64], steps: int) -> float:
    """When so many gradients of every worker, on average, are in sums."""
    wanted, num_rounds = steps * schedule.num_workers, steps
    while True:
        timeline = simulate(
            schedule, Hardware(nic=FREE), compute=ComputeTimes(trace=trace), num_rounds=num_rounds, model_bytes=1
        )
        assert timeline.observed is not None
        record = timeline.observed.quorum
        assert record is not None
        there = np.cumsum(record.gradients.sum(axis=1))  # gradients in the sums so far
        if there[-1] >= wanted:
            return float(record.summed[1, np.searchsorted(there, wanted)])
        num_rounds *= 2
