"""What the planner recommends for a setting, and what the simulator predicts, from a profile of the lab's own links.

It plans for hierarchical group operations, and the lab runs its recommendations that way. It is told the optimizer,
as a user tells it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.lab.setting import BACKWARD, MODEL_BYTES, SEGMENTS, Setting
from partreduce.planner.steps_model import Optimizer
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
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


PLAN_SECONDS = 20.0


def optimizer_of(setting: Setting) -> Optimizer:
    """By whose prices the planner counts."""
    return Optimizer.MOMENTUM if setting.momentum else Optimizer.SGD


class Planner:
    """Plans once per setting; `profiles` maps a rate to the cluster that was profiled at it."""

    def __init__(self, profiles: dict[str, Cluster]) -> None:
        self._profiles = profiles
        self._recommendations: dict[str, Schedule] = {}
        self.words: dict[str, str] = {}

    def __call__(self, cluster: Cluster, setting: Setting) -> Schedule:
        return self._recommend(cluster, setting)

    def coded(self, cluster: Cluster, setting: Setting) -> Schedule:
        """The same rule's recommendation where codecs are allowed."""
        return self._recommend(cluster, setting, ", codec", codec=None)

    def _recommend(self, cluster: Cluster, setting: Setting, words: str = "", **options: Any) -> Schedule:  # noqa: ANN401 - fields of Job
        key = setting.name + words
        if key not in self._recommendations:
            self._recommendations[key] = self._plan(cluster, setting, key, options)
        return self._recommendations[key]

    def hardware(self, setting: Setting) -> Hardware:
        """The profiled links with the setting's slow workers; nominal ones where there is no profile."""
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
            optimizer=optimizer_of(setting),
            **options,
        )
        found = plan(job)
        chosen = found.recommendation
        self.words[key] = (
            f"{chosen.name}: {1e3 * chosen.step_seconds:.1f} ms per step and {chosen.steps_ratio:.2f} times "
            "All-Reduce's steps predicted"
        )
        return chosen.schedule
