"""Simulator against lab: step times of cells predicted from what a profile measured of the lab's own links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.lab.setting import BACKWARD, SEGMENTS, Setting
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm

CLOSE = 0.15


@dataclass(frozen=True, slots=True)
class Point:
    """A cell that the simulator can predict: its schedule, algorithm, setting, and what was measured (ms per step).

    `steps` are those of each worker.
    """

    contestant: str
    setting: Setting
    schedule: Schedule
    algorithm: str
    measured: float
    steps: int = 48


def simulated_ms(point: Point, hardware: Hardware) -> float:
    """Milliseconds per step as the lab counts them, on a cluster whose nodes share nothing but the network."""
    worker_steps = point.schedule.worker_steps()
    rounds = max(1, point.steps // int(worker_steps.max()))
    timeline = simulate(
        point.schedule,
        in_segments(hardware, point.setting.task),
        compute=point.setting.compute_times(),
        num_rounds=rounds,
        algorithm=AllReduceAlgorithm(point.algorithm),
    )
    return 1e3 * len(worker_steps) / float((worker_steps * rounds / timeline.finish[-1]).sum())


def in_segments(hardware: Hardware, task: str) -> Hardware:
    """With the segments of the task's gradient: one place more than layers, since layers wait before they compute."""
    segments = SEGMENTS[task]
    return replace(hardware, layers=segments, backward=BACKWARD * len(segments) / (len(segments) - 1))


def predicted(points: list[Point], profiles: dict[str, Hardware]) -> dict[str, Any] | None:
    """Of every cell over profiled links, without a look at any measured step time; with a summary in words."""
    found = [
        {
            "contestant": point.contestant,
            "setting": point.setting.name,
            "measured": point.measured,
            "predicted": simulated_ms(point, profiles[point.setting.name]),
        }
        for point in points
        if point.setting.name in profiles
    ]
    if not found:
        return None
    errors = [abs(one["predicted"] / one["measured"] - 1) for one in found]
    words = (
        f"From the profile of the links alone: {sum(error <= CLOSE for error in errors)} of {len(found)} cells within "
        f"15 % (median error {median(errors):.1%})."
    )
    return {"words": words, "points": found}
