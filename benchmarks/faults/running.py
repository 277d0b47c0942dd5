"""A cell, one fault on one run: what is asked for, its processes while it runs, and what its workers have written.

Everything here is polled and nothing blocks, so that one thread can watch several cells.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.faults.kinds import WORKERS
from benchmarks.faults.processes import belonging, children_of, command_of, delays_of, look_at, runs
from benchmarks.kit import new_lines
from benchmarks.lab.network import Network

START_SECONDS = 40.0
"""How long a run may take to begin on a busy machine, before the cell is given up as not fired."""


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


def records_after(folder: Path, rank: int, place: int = 0) -> tuple[list[Record], int]:
    """What a worker has written from a byte of its file on, and where that ends."""
    lines, place = new_lines(folder / f"worker-{rank}.jsonl", place)
    return [Record(*line) for line in lines], place


@dataclass
class Running:
    """One started cell; injectors fill in what they did."""

    cell: Cell
    task: Task
    folder: Path
    chance: Random
    outcome: Outcome
    network: Network | None = None
    pid: int = 0
    started: float = 0.0
    fault_time: float = 0.0
    culprit: str = ""
    """A regular expression that finds the culprit's name in what survivors say; empty where no one has to name it."""
    victims: set[int] = field(default_factory=set)
    must_finish: bool = False
    lasts: float = 0.0
    """For how many seconds the fault itself holds up a run that is to continue."""
    overdue: float = 0.0
    """By how many seconds the injector was late to take it back."""
    gone: dict[int, float] = field(default_factory=dict)
    """When each worker's process was last seen before it was gone."""
    code: int | None = None
    undo: list[Callable[[], None]] = field(default_factory=list)
    _read: dict[int, tuple[int, list[Record]]] = field(default_factory=dict)
    """Of each worker's file, up to which byte it was read, and what it held."""
    _pids: dict[int, list[int]] = field(default_factory=dict)
    _delays: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """By process and thread: for how long it had got no processor when it was seen first after the fault, and last."""
    _lacked: list[tuple[float, float]] = field(default_factory=list)
    """When somebody looked, and `held_up` then."""
    _looked: float = 0.0

    def records(self, rank: int) -> list[Record]:
        """What a worker has written; only what is new is read, since this is asked many times a second."""
        place, known = self._read.get(rank, (0, []))
        more, place = records_after(self.folder, rank, place)
        known += more
        self._read[rank] = place, known
        self._pids.setdefault(rank, []).extend(int(record.more) for record in more if record.what == "begins")
        return known

    def pids_of(self, rank: int) -> list[int]:
        """The processes that a worker was, the present one last."""
        self.records(rank)
        return self._pids[rank]

    def pid_of(self, rank: int) -> int | None:
        pids = self.pids_of(rank)
        return pids[-1] if pids else None

    def launcher_of(self, node: int) -> int | None:
        """The launcher of a node; None where it has no own process, or not yet."""
        path = self.folder / f"launcher-{node}"
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith("\n") and runs(int(text)) else None

    def children_of(self, rank: int) -> list[int]:
        """The running processes that a worker has forked."""
        forked = next((record.more for record in self.records(rank)[:8] if record.what == "forked"), [])
        return [pid for pid in forked if runs(pid)]

    def look(self) -> None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        for rank in range(WORKERS):
            if (pid_of := self.pid_of(rank)) is None:
                continue
            if runs(pid_of):
                self.gone.pop(rank, None)  # it was restarted
            else:
                self.gone.setdefault(rank, self._looked)
        self._looked = time.monotonic()
        if self.fault_time:
            for pid in {self.pid, *children_of(self.pid), *filter(None, map(self.pid_of, range(WORKERS)))}:
                known = self._delays.setdefault(pid, {})
                for thread, seconds in delays_of(pid).items():
                    known[thread] = known.get(thread, (seconds,))[0], seconds
            self._lacked.append((self._looked, self.held_up))

    @property
    def held_up(self) -> float:
        """Seconds since the fault that the machine, not the run, may have taken from a wait.

        One process waits for the next, so what they lacked a processor for adds up at most; of each its worst thread.
        """
        threads = (known.values() for known in self._delays.values())
        return self.overdue + sum(max((last - first for first, last in each), default=0.0) for each in threads)

    @property
    def starved(self) -> bool:
        """Whether the machine alone may have used up a timeout: in some stretch of it, processes lacked one as long."""
        before = 0
        for instant, lacked in self._lacked:
            while self._lacked[before][0] < instant - self.cell.timeout:
                before += 1
            if lacked - self._lacked[before][1] >= self.cell.timeout:
                return True
        return False

    @property
    def is_over(self) -> bool:
        """Whether its first process and all workers that began have ended."""
        self.look()
        return self.code is not None and all(self.pid_of(r) is None or r in self.gone for r in range(WORKERS))

    def fires(self, note: str, *, culprit: str = "", victims: tuple[int, ...] = ()) -> None:
        """An injector says that it acts now, and on whom."""
        self.fault_time = time.monotonic()
        said = f"{note}, {self.fault_time - self.started:.2f} s after the start"
        self.outcome.note = f"{self.outcome.note}; {said}" if self.outcome.note else said
        self.culprit = culprit
        self.victims |= set(victims)

    def took_back(self, seconds: float) -> None:
        """An injector says that its fault is over, which was to last so long."""
        self.lasts = seconds
        self.overdue = max(0.0, time.monotonic() - self.fault_time - seconds)

    def until(self, done: Callable[[], bool], seconds: float = START_SECONDS) -> Iterator[None]:
        """Wait until something is so, the run is over, or time is up."""
        deadline = time.monotonic() + seconds
        while not done() and not self.is_over and time.monotonic() < deadline:
            yield

    def sleep(self, seconds: float) -> Iterator[None]:
        """Wait this long, or until the run is over."""
        yield from self.until(lambda: False, seconds)

    def all_train(self) -> bool:
        """Whether every worker has begun its first step."""
        return all(any(r.what == "enters" for r in self.records(rank)[:8]) for rank in range(WORKERS))

    def named(self, word: str) -> int | None:
        """The cell's running process whose command line holds a word."""
        return next((pid for pid in self.processes() if word in command_of(pid)), None)

    def processes(self) -> list[int]:
        return belonging(self.pid, str(self.folder))

    def role_of(self, pid: int) -> str:
        """What a process is to this cell: `launcher`, `worker 2`, or nothing that is known."""
        roles = {self.pid_of(rank): f"worker {rank}" for rank in range(WORKERS)} | {self.pid: "launcher"}
        return roles.get(pid, "")

    def is_paused(self, pid: int) -> bool:
        seen = look_at(pid)
        return seen is not None and seen.state == "T"
