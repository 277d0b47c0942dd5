"""Parts: the tasks under settings of `cases.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lab.contestants import named
from benchmarks.lab.plan import Planner
from benchmarks.lab.setting import Setting
from benchmarks.long_runs.learner import Learner
from benchmarks.long_runs.virtual import Virtual
from benchmarks.papers.physics import step_seconds
from partreduce.topo.cluster import Cluster
from partreduce.topo.strategies.axes import AllReduceAlgorithm

if TYPE_CHECKING:
    from partreduce.topo.schedule import Schedule

CASES = Path(__file__).with_name("cases.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A task under a setting, and who is compared there, as `cases.toml` says."""

    title: str
    kind: str
    held_out: int
    setting: Setting
    shape: tuple[int, int]
    steps: int
    rates: tuple[float, ...]
    contestants: tuple[str, ...]

    @property
    def cluster(self) -> Cluster:
        return Cluster.regular(*self.shape)

    def schedule_of(self, name: str) -> tuple[Schedule, AllReduceAlgorithm]:
        """What a contestant runs, and how its groups add up."""
        contestant = named(name, Planner({}))
        assert contestant.make is not None, f"{name} is one of ours"
        schedule = contestant.make(self.cluster, self.setting)
        assert schedule is not None, f"{name} has something to do in {self.title}"
        return schedule, AllReduceAlgorithm(contestant.algorithm)

    def begun(self, name: str, steps: int, rate: float, seed: int) -> tuple[Learner, Virtual]:
        """A contestant at its start, and what advances it."""
        schedule, algorithm = self.schedule_of(name)
        fields = {"kind": self.kind, "held_out": self.held_out, "cluster": self.cluster}
        learner = Learner(**fields, highest=rate, most=steps, seed=seed)
        lengths = step_seconds(self.setting, self.shape, steps, seed)
        return learner, Virtual(learner, schedule, Planner({}).hardware(self.setting), lengths, algorithm)


def parts() -> dict[str, Part]:
    listed = tomllib.loads(CASES.read_text(encoding="utf-8"))
    return {
        name: Part(**{**fields, "setting": Setting.of_json({"name": name, **fields["setting"]})})
        for name, fields in listed.items()
    }
