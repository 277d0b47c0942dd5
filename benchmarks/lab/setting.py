"""Settings and jobs: links, tasks, and compute seconds of each step, as plain values that are written as JSON.

The worker sleeps by these step lengths and the simulator predicts with them. Random lengths are drawn from one seed
that all workers share, so that a randomly chosen worker is the same one for all of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from benchmarks import kit
from partreduce.topo.timing.compute import ComputeTimes, RandomDelay, RandomSlowdown, RotatingDelay, StragglerModel

GRID = {"workers": (1.6, 0.8, 0.4, 0.2, 0.1), "server": (0.05, 0.025, 0.0125)}
"""Learning rates of rehearsals, the largest first; a server has its own, as it applies all steps to one model."""

TABLE = kit.read_toml(Path(__file__).with_name("settings.toml"))
TARGETS: dict[str, float] = {name: task["target"] for name, task in TABLE["tasks"].items()}
"""Training loss of the mean model that each task shall reach in the lab."""
REHEARSED = {name: tuple(task["rehearsed"]) for name, task in TABLE["tasks"].items() if "rehearsed" in task}
"""By task, the loss at which a rehearsal counts steps, which is reached sooner, and the most steps."""
SEGMENTS: dict[str, tuple[int, ...]] = {name: tuple(task["segments"]) for name, task in TABLE["tasks"].items()}
"""Bytes sent when each layer's gradient is ready, from the last layer to the first, and at the end of the step.

Layers below 128 KiB share a segment (`runtime.averaging.bucketed_gradients`), and digits and text have only one layer
above that, so everything is sent when backward reaches the first layer. The tag follows at the end.
"""
MODEL_BYTES = {name: sum(segments) for name, segments in SEGMENTS.items()}
BACKWARD = 2 / 3
"""Share of backward in a step. The lab's gates delay a layer before its gradient is computed, not after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Links and compute times of a lab; `rate` is in `tc` syntax.

    `compute` is the seconds of an undisturbed worker's step; `slow` lists (rank, factor). The Prague paper slows a
    worker by *adding* 2 or 5 step times, which is a factor of 3 or 6. At most one of the disturbances is set. With
    probability `random_chance` a worker's step takes `random_factor` times as long. `delayed` = (workers, seconds): so
    many workers, drawn in every step, are delayed. `skew` = (low, high) seconds: all are delayed, with delays that
    rotate by one worker per step.

    `batch` samples per step and worker, and SGD's `momentum` and `weight_decay` (an L2 penalty), hold for all. `steps`
    is a multiple of 16 and of 24, so that a cell has whole periods of the usual schedules; it is used for contestants
    without a rehearsal.
    """

    name: str = ""
    rate: str = "200mbit"
    task: str = "digits"
    compute: float = 0.08
    slow: tuple[tuple[int, float], ...] = ()
    random_factor: float = 1.0
    random_chance: float = 0.0
    delayed: tuple[int, float] = (0, 0.0)
    skew: tuple[float, float] = (0.0, 0.0)
    steps: int = 48
    batch: int = 16
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether some worker is slower than others, always or sometimes."""
        return bool(self.slow) or self.disturbance is not None

    @property
    def disturbance(self) -> StragglerModel | None:
        """The variation from step to step, as the simulator's type."""
        possible: list[StragglerModel] = []
        if self.random_chance:
            possible.append(RandomSlowdown(self.random_factor, self.random_chance))
        if self.delayed[0]:
            possible.append(RandomDelay(*self.delayed))
        if self.skew[1]:
            possible.append(RotatingDelay(*self.skew))
        if len(possible) > 1:
            raise ValueError(f"lengths of steps: {len(possible)} disturbances; there is one at most")
        return possible[0] if possible else None

    def compute_times(self) -> ComputeTimes:
        """Return the compute times as the simulator and the planner take them."""
        return ComputeTimes(base=self.compute, slowdown=self.slow, disturbance=self.disturbance)

    def mean_seconds(self, num_workers: int) -> npt.NDArray[np.float64]:
        """Return each worker's mean step, shape (num_workers,)."""
        steady = self.compute_times().fixed(num_workers) * (1 + self.random_chance * (self.random_factor - 1))
        held_up = min(self.delayed[0], num_workers) / num_workers * self.delayed[1] + sum(self.skew) / 2
        return np.asarray(steady + held_up)

    def free_step(self, num_workers: int) -> float:
        """Return seconds per step (workers ÷ steps of all per second) on a free network without waiting."""
        with np.errstate(divide="ignore"):  # without compute time the result is 0
            return num_workers / float((1 / self.mean_seconds(num_workers)).sum())

    def step_seconds(self, num_workers: int, rank: int, seed: int, step: int) -> float:
        """Return the compute seconds of one worker's step number `step`, counted from 0."""
        rng = np.random.default_rng((77_000 * (seed + 1), step))
        return float(_checked_times(self, num_workers).step_seconds(num_workers, step, rng)[0, rank])

    def without_sleep(self) -> Setting:
        """Return the same training in steps that take as long as their computing, as in a rehearsal."""
        kept = {name: getattr(self, name) for name in ("name", "task", "batch", "momentum", "weight_decay")}
        return Setting(compute=0.0, **kept)

    @property
    def megabits(self) -> float:
        number = self.rate.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}[self.rate[len(number) :]]
        return float(number) * unit

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> Setting:
        """Return the setting from the JSON of `dataclasses.asdict`."""
        return TypeAdapter(cls).validate_python(fields)

    def case_of(self, num_workers: int) -> str:
        """Return a name of task and workers, on which the steps to a loss depend, unlike on links and speeds."""
        return self.task + ("" if num_workers == REHEARSED_WORKERS else f", {num_workers} workers")


@cache
def _checked_times(setting: Setting, num_workers: int) -> ComputeTimes:
    times = setting.compute_times()
    times.check(num_workers)
    return times


REHEARSED_WORKERS = 16
"""The number of workers that names of cases leave out."""


def settings(num_workers: int) -> dict[str, Setting]:
    """Return all named settings: every link of the table with every disturbance, and others."""
    made = []
    for rate, compute in TABLE["rates"].items():
        made.append(Setting(name=f"{rate} homogeneous", rate=rate, compute=compute))
        for name, factor in TABLE["slow"].items():
            slow = ((TABLE["slow_rank"] % num_workers, factor),)
            made.append(Setting(name=f"{rate} slow {name}", rate=rate, compute=compute, slow=slow))
        at_random: dict[str, Any] = {"random_factor": 6.0, "random_chance": 1 / num_workers}
        made.append(Setting(name=f"{rate} random x6", rate=rate, compute=compute, **at_random))
        made.append(Setting(name=f"{rate} delayed", rate=rate, compute=compute, delayed=(1, 5 * compute)))
        made.append(Setting(name=f"{rate} shifting", rate=rate, compute=compute, skew=(0.0, 5 * compute)))
    made += [Setting(name=name, **fields) for name, fields in TABLE["others"].items()]
    return {setting.name: setting for setting in made}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of every worker in one cell.

    `how` is one of `worker.KINDS`; `partreduce` needs `schedule`, a file. Of `setting`, workers use the task, the
    lengths of steps and the optimizer's numbers; `steps` is their own. A step computes real gradients, then sleeps to
    its length, because more workers than cores would otherwise slow one another down. `limit` bounds the
    training in seconds. Nodes hold `workers_per_node` workers each, or as many as `sizes` lists. The crew sets
    `address` and `port`.
    """

    num_nodes: int
    workers_per_node: int
    sizes: tuple[int, ...] = ()
    name: str = ""
    folder: str = ""
    how: str = ""
    address: str = ""
    port: int = 0
    schedule: str | None = None
    free_running: bool = False
    setting: Setting = Setting()
    data_file: str = ""
    steps: int = 80
    limit: float = 40.0
    every: int = 4
    learning_rate: float = 0.2
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def num_workers(self) -> int:
        return sum(self.workers_of_nodes)

    @property
    def workers_of_nodes(self) -> tuple[int, ...]:
        return self.sizes or self.num_nodes * (self.workers_per_node,)

    def first_of(self, node: int) -> int:
        return sum(self.workers_of_nodes[:node])

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Job:
        return TypeAdapter(cls).validate_json(line)
