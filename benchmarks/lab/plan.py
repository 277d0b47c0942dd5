"""The planner's recommendation for a setting, and the simulator's predictions.

The planner sees a profile of the lab's own links and the optimizer, as a user states it. It plans for hierarchical
group operations, and the lab runs its recommendations with them. `step_ms` is the physical limit: the same schedule and
step lengths with links and cores that cost nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lab.contestants import SERVER, contestants
from benchmarks.lab.setting import BACKWARD, MODEL_BYTES, SEGMENTS, Job, Setting
from benchmarks.lab.tasks import Batches, samples_of
from partreduce.planner.steps_model import Optimizer
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.timing.compute import ComputeTimes

CLOSE = 0.15


def simulated_ms(setting: Setting, schedule: Schedule, hardware: Hardware, steps: int, algorithm: str) -> float:
    """Return the predicted milliseconds per step as the lab counts them, if nodes share only the network."""
    worker_steps = schedule.worker_steps()
    rounds = max(1, steps // int(worker_steps.max()))
    timeline = simulate(
        schedule,
        in_segments(hardware, setting.task),
        compute=setting.compute_times(),
        num_rounds=rounds,
        algorithm=AllReduceAlgorithm(algorithm),
    )
    return 1e3 * len(worker_steps) / float((worker_steps * rounds / timeline.finish[-1]).sum())


def in_segments(hardware: Hardware, task: str) -> Hardware:
    """Return the hardware with the segments of the task's gradient, one more than layers because layers wait first."""
    segments = SEGMENTS[task]
    return replace(hardware, layers=segments, backward=BACKWARD * len(segments) / (len(segments) - 1))


def summarize(points: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return predictions of cells, each with its measured step time, next to a sentence on all of them."""
    if not points:
        return None
    errors = [abs(one["predicted"] / one["measured"] - 1) for one in points]
    words = (
        f"From the profile of the links alone: {sum(error <= CLOSE for error in errors)} of {len(points)} cells within "
        f"15 % (median error {median(errors):.1%})."
    )
    return {"words": words, "points": points}


PLAN_SECONDS = 20.0


class Planner:
    """Plans once per setting; `profiles` maps a rate to the cluster profiled at it."""

    def __init__(self, profiles: dict[str, Cluster]) -> None:
        self._profiles = profiles
        self._recommendations: dict[str, Schedule] = {}
        self.words: dict[str, str] = {}

    def __call__(self, cluster: Cluster, setting: Setting, *, coded: bool = False) -> Schedule:
        """Return the recommendation, if `coded` that where codecs are allowed."""
        key = setting.name + (", codec" if coded else "")
        if key not in self._recommendations:
            self._recommendations[key] = self._plan(cluster, setting, key, {"codec": None} if coded else {})
        return self._recommendations[key]

    def hardware(self, setting: Setting) -> Hardware:
        """Return the profiled links, or nominal ones, with the setting's slow workers."""
        known = self._profiles.get(setting.rate)
        if known is None or known.hardware is None:
            nic = Link.of_bandwidth(setting.megabits * 1e6 / 8, 1e-4)
            base = Hardware(inside=Link.of_bandwidth(1e9, 1e-4), nic=nic)
        else:
            base = known.hardware
        job = {"model_bytes": MODEL_BYTES[setting.task], "compute": setting.compute, "slowdown": setting.slow}
        return in_segments(replace(base, **job), setting.task)

    def _plan(self, cluster: Cluster, setting: Setting, key: str, options: dict[str, Any]) -> Schedule:
        from partreduce import PlanRequest
        from partreduce.planner.plan import plan

        job = PlanRequest(
            cluster=replace(cluster, hardware=self.hardware(setting)),
            disturbance=setting.disturbance,
            time_limit=PLAN_SECONDS,
            algorithm=AllReduceAlgorithm.HIERARCHICAL,
            optimizer=Optimizer.MOMENTUM if setting.momentum else Optimizer.SGD,
            **options,
        )
        found = plan(job)
        chosen = found.recommendation
        self.words[key] = (
            f"{chosen.name}: {1e3 * chosen.step_seconds:.1f} ms per step and {chosen.steps_ratio:.2f} times "
            "All-Reduce's steps predicted"
        )
        return chosen.schedule


FREE = Link(0.0, 1e-15)
"""A link that takes almost no time."""


def step_ms(
    name: str, setting: Setting, shape: tuple[int, int], steps: int, runs: int, *, after: int = 0
) -> float | None:
    """Return the mean milliseconds per step over repetitions as the lab counts them; None if the simulator cannot say.

    With a quorum a step is a gradient. The first `after` steps are left out.
    """
    found = [of_run(name, setting, shape, steps, repetition, after) for repetition in range(runs)]
    known = [ms for ms in found if ms is not None]
    return sum(known) / len(known) if known else None


@cache
def of_run(  # noqa: PLR0917 - one call each, and a cache's
    name: str, setting: Setting, shape: tuple[int, int], steps: int, repetition: int, after: int
) -> float | None:
    """Return the milliseconds per step of one repetition in virtual time, where only computing takes time.

    The simulated server is an all-reduce, which is equal then.
    """
    simulated = "flat ring" if name == SERVER else name
    make = next(one.make for one in contestants() if one.name == simulated)
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
    """Return the compute seconds of the lab's workers, shape (steps, workers), with the batches that they draw."""
    count = shape[0] * shape[1]
    ranks = range(count)
    seconds = np.array([[setting.step_seconds(count, rank, repetition, k) for rank in ranks] for k in range(steps)])
    if setting.task != "docstrings":
        return seconds
    size = {"num_nodes": shape[0], "workers_per_node": shape[1]}
    job = Job(setting=setting, seed=repetition, **size)
    batches = [Batches(job, rank, samples_of(setting.task)) for rank in ranks]
    return np.array(seconds * [[worker.draw()[1] for worker in batches] for _ in range(steps)])


def _seconds_of(schedule: Schedule, trace: npt.NDArray[np.float64], steps: int) -> float:
    """Return the time at which so many gradients per worker, on average, are in sums."""
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
