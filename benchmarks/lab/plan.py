"""What the planner recommends for a setting, from the hardware that a profile of the lab's own links measured.

It plans for hierarchical group operations, and the lab runs its recommendations that way. It is told the optimizer,
as a user tells it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.lab.predict import in_segments
from benchmarks.lab.setting import MODEL_BYTES, Setting
from partreduce.planner.steps_model import Optimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm

PLAN_SECONDS = 20.0


def optimizer_of(setting: Setting) -> Optimizer:
    """By whose prices the planner counts."""
    if setting.optimizer == "adamw":
        return Optimizer.ADAM
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
