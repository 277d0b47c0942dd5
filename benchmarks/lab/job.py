"""Job: one cell of the lab, as its workers get it. A frozen value that travels as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.lab.lengths import Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Lengths):
    """What every worker of one cell does.

    `how` names who synchronizes: `partreduce` (with `schedule`, a file) or one of the baselines of
    `baselines.py`. A step computes as long as its lengths say: real gradients are taken, and sleeping fills the rest,
    because more workers than cores would otherwise slow one another down. `limit` bounds the training in seconds.
    A `falling` rate ends at nothing, along half a cosine. `optimizer`, `momentum` and `weight_decay` are for
    `tasks.optimizer_of`.
    Nodes hold `workers_per_node` workers each, or as many as `sizes` lists. The crew fills in `address` and `port`.
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
    task: str = "digits"
    data_file: str = ""
    compute: float = 0.06
    steps: int = 80
    limit: float = 40.0
    every: int = 4
    batch: int = 16
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rate: float = 0.2
    falling: bool = False
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def num_workers(self) -> int:
        return sum(self.workers_of_nodes)

    @property
    def workers_of_nodes(self) -> tuple[int, ...]:
        """How many each node holds."""
        return self.sizes or self.num_nodes * (self.workers_per_node,)

    def first_of(self, node: int) -> int:
        """The lowest rank on a node."""
        return sum(self.workers_of_nodes[:node])

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: str) -> Job:
        return TypeAdapter(cls).validate_json(line)
