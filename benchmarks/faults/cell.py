"""One fault on one run: what is asked for, how it went, and what the records of its workers say."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any


@dataclass(frozen=True)
class Cell:
    """What is asked for; the seed settles victim, instant and size."""

    kind: str
    fault: str
    launcher: str
    """`run`, the same on two `nodes`, `torchrun` by its agent, or `by hand` with rank 0 as the store's host."""
    seed: int
    timeout: float = 3.0

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.fault}/{self.launcher}/{self.seed}"

    @classmethod
    def of_name(cls, name: str) -> Cell:
        kind, fault, launcher, seed = name.split("/")
        return cls(kind, fault, launcher, int(seed))

    @property
    def random(self) -> Random:
        return Random(zlib.crc32(self.name.encode()))


@dataclass
class Outcome:
    """How a cell went; `violations` is empty where everything is as it must be."""

    cell: Cell
    fired: bool = False
    note: str = ""
    """What was done to whom and when, or why nothing could be."""
    ended: str = ""
    """`finished`, `named error`, or what went wrong."""
    detection: dict[int, float] = field(default_factory=dict)
    """Seconds from the fault to each survivor's own report."""
    over: float = 0.0
    """Seconds from the fault to the end of the whole run, its launcher included."""
    violations: list[str] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    """What survivors said."""

    def line(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Task:
    """What every worker of a cell reads before it begins."""

    folder: str
    schedule: str
    timeout: float
    steps: int
    columns: int
    meets: bool = False
    """Whether workers wait for one another before they finish."""
    trace: str | None = None
    checkpoints: str | None = None
    raising: int | None = None
    """The worker whose user code raises, and in which step."""
    raising_step: int = 0
    children: int = 0
    """How many processes each worker forks, as a data loader would."""
    restarts: int = 0
    """How often a failed worker, or all, are restarted."""
    saves: bool = False
    """Whether workers save when they are asked to end, which takes them a moment."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Task:
        return cls(**json.loads(path.read_text()))


@dataclass
class Record:
    """One line that a worker wrote: what happened, when, and what its parameters were."""

    what: str
    time: float
    step: int
    """Where a worker `begins`, the attempt of all workers in which it does."""
    rows: list[list[float]]
    """Smallest and largest value of each row."""
    more: Any = None


def records_of(folder: Path, rank: int) -> list[Record]:
    """What a worker has written so far; a line that a kill cut short is left out."""
    return records_after(folder, rank, 0)[0]


def records_after(folder: Path, rank: int, place: int) -> tuple[list[Record], int]:
    """What a worker has written from a byte of its file on, and where that ends."""
    path = folder / f"worker-{rank}.jsonl"
    if not path.exists():
        return [], place
    with path.open("rb") as file:
        file.seek(place)
        whole = file.read().rpartition(b"\n")[0]
    return [Record(*json.loads(line)) for line in whole.split(b"\n") if line], place + len(whole) + bool(whole)
