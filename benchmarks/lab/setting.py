"""Setting: the links and slow workers under which all contestants run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from benchmarks.lab.lengths import Lengths

GRID = {"workers": (0.4, 0.2, 0.1), "server": (0.05, 0.025, 0.0125)}
"""Learning rates that contestants are rehearsed at, the largest first; the server applies all workers' steps to one
model, hence its own."""

TARGETS = {
    "digits": 0.1,
    "ten layers": 0.1,
    "text": 2.6,
    "deep text": 2.65,
    "svm": 0.3,
    "images": 0.1,
    "hyperplane": 0.02,
    "docstrings": 0.6,
}
"""Training loss of the mean model that each task is to reach in the lab."""

REHEARSED_TARGETS = {"digits": 0.2, "ten layers": 0.2, "text": 2.8, "deep text": 2.7, "svm": 0.4}
"""What the rehearsal counts the steps to: enough to choose rates by, and sooner reached."""

MODEL_BYTES = {
    "digits": 2_192_296,
    "ten layers": 2_182_184,
    "text": 2_065_440,
    "deep text": 2_166_776,
    "svm": 524_292,
    "images": 76_840,
    "hyperplane": 2_052,
    "docstrings": 572_304,
}
SEGMENTS = {
    "digits": (0, 0, 0, 2_192_296, 0),
    "ten layers": (0, 273_448, *(6 * (263_168,)), 0, 329_728, 0),
    "text": (0, 0, 2_065_440, 0),
    "deep text": (0, 1_113_208, 526_336, 527_232, 0),
    "svm": (524_292, 0, 0),
    "images": (76_840, 0, 0),
    "hyperplane": (2_052, 0, 0),
    "docstrings": (572_304, 0, 0),
}
"""Bytes that are sent when a layer's gradient is there, from the last layer to the first, and at the end of the step.

The run-time lets layers below 128 KiB share a segment (`runtime.averaging.layers`), and digits and text have only one
layer above that: all goes when backward has come to the first layer. The tag follows at the end, beside what is under
way."""

BACKWARD = 2 / 3
"""Share of backward in a step. The lab's gates hold a layer back before its gradient is made, not behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Lengths):
    """`rate` in `tc` syntax; the rest says how long steps compute (lengths.py).

    `batch` samples a step of each worker, and the `optimizer` (`tasks.optimizer_of`) with SGD's `momentum` and
    `weight_decay` (an L2 penalty), are everybody's.
    `steps` is a multiple of 16 and of 24, so that a cell holds whole periods of the usual schedules; it counts for
    contestants that were never rehearsed. The Prague paper slows a worker by *adding* 2 or 5 step times, which is a
    factor of 3 or 6.
    """

    name: str
    rate: str = "200mbit"
    task: str = "digits"
    steps: int = 48
    batch: int = 16
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def megabits(self) -> float:
        """The rate in Mbit/s."""
        number = self.rate.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}[self.rate[len(number) :]]
        return float(number) * unit

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> Setting:
        """What `dataclasses.asdict` made, after a way through JSON."""
        return TypeAdapter(cls).validate_python(fields)

    def case_of(self, num_workers: int) -> str:
        """Task and workers: what the steps to a loss depend on, links and speeds do not."""
        return case_of(self.task, num_workers)

    def wire_seconds(self, num_nodes: int, size: int, model_bytes: int) -> dict[str, float]:
        """What each algorithm of exact averaging takes on the wire at the link's nominal rate, without headers."""
        second = model_bytes * 8e-6 / self.megabits
        count = num_nodes * size
        return {"flat ring": 2 * (count - 1) / count * second, "hierarchical": 2 * (num_nodes - 1) / num_nodes * second}


REHEARSED_WORKERS = 16
"""Cases are named without their number of workers where there are so many."""


def case_of(task: str, num_workers: int) -> str:
    return task + ("" if num_workers == REHEARSED_WORKERS else f", {num_workers} workers")


SLOW_RANK = 6
RATES = {"40mbit": 0.16, "80mbit": 0.08, "200mbit": 0.08, "250mbit": 0.32, "1gbit": 0.08}
"""Links, and the seconds that a step computes over them. 40 Mbit/s and 0.16 s are 80 Mbit/s and 0.08 s at half speed,
250 Mbit/s and 0.32 s are 1 Gbit/s and 0.08 s at a quarter: what workers take of the cores that they share then weighs
half as much, and a quarter."""

REGIONS = {"40mbit": 0.16, "10mbit": 0.16, "10gbit": 0.0}
"""Links between regions, and the seconds that a step computes; the last is as fast as the machine is, to see losses."""


def settings(num_workers: int, trace: str = "") -> dict[str, Setting]:
    """All named settings, with a `trace` of step lengths (a file) one more for each rate.

    `delayed` holds up one worker, drawn again in every step, by five steps' time; `shifting` everybody by up to that.
    """
    slow = SLOW_RANK % num_workers
    made = []
    for rate, compute in RATES.items():
        common: dict[str, Any] = {"rate": rate, "compute": compute}
        made += [
            Setting(name=f"{rate} homogeneous", **common),
            Setting(name=f"{rate} slow x2", slow=((slow, 2.0),), **common),
            Setting(name=f"{rate} slow x5", slow=((slow, 5.0),), **common),
            Setting(name=f"{rate} slow +2", slow=((slow, 3.0),), **common),
            Setting(name=f"{rate} slow +5", slow=((slow, 6.0),), **common),
            Setting(name=f"{rate} random x6", random_factor=6.0, random_chance=1 / num_workers, **common),
            Setting(name=f"{rate} delayed", delayed=(1, 5 * compute), **common),
            Setting(name=f"{rate} shifting", skew=(0.0, 5 * compute), **common),
            *([Setting(name=f"{rate} trace", trace=trace, **common)] if trace else []),
        ]
    made += [
        Setting(name="200mbit text", task="text", steps=96),
        # A node is a region, and its workers' links take no time beside those between regions.
        *(
            Setting(name=f"{rate} regions", rate=rate, task="deep text", compute=compute, steps=1008)
            for rate, compute in REGIONS.items()
        ),
        Setting(name="1gbit deep text slow +5", rate="1gbit", task="deep text", slow=((slow, 6.0),)),
        Setting(name="1gbit docstrings", rate="1gbit", task="docstrings", compute=0.1),
    ]
    return {setting.name: setting for setting in made}
