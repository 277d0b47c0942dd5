"""A cell (one fault in one run): the request, its running processes, and what its workers wrote.

All waits are polled, so that one thread can watch several cells.
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
"""Most seconds until a run starts on a busy machine; later ones count as not fired."""


@dataclass(frozen=True)
class Cell:
    """The request; the seed determines victim, time and size."""

    kind: str
    fault: str
    launcher: str
    """`run`, the same on two `nodes`, `torchrun` with its agent, or `by hand` with rank 0 as the store's host."""
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
    """The result of a cell; `violations` is empty if everything is correct."""

    cell: Cell
    fired: bool = False
    note: str = ""
    """What was done to which process and when, or why nothing could be."""
    ended: str = ""
    """`finished`, `named error`, or what went wrong."""
    detection: dict[int, float] = field(default_factory=dict)
    """Seconds from the fault to each survivor's report, by rank."""
    violations: list[str] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    """The survivors' error messages by rank."""


@dataclass(frozen=True)
class Task:
    """The settings that every worker of a cell reads at its start."""

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
    """The worker whose user code raises an error, and the step."""
    raising_step: int = 0
    children: int = 0
    """How many processes each worker forks, like a data loader."""
    restarts: int = 0
    """How often a failed worker, or all, may be restarted."""
    saves: bool = False
    """Whether workers save, which takes a moment, when they receive SIGTERM."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Task:
        return cls(**json.loads(path.read_text()))


@dataclass
class Record:
    """One line written by a worker: what happened, when, and its parameters."""

    what: str
    time: float
    step: int
    """The step; for `begins` the attempt of all workers."""
    rows: list[list[float]]
    """Smallest and largest value of each row."""
    more: Any = None


def records_after(folder: Path, rank: int, place: int = 0) -> tuple[list[Record], int]:
    """Return (a worker's records from a byte of its file on, the byte where they end)."""
    lines, place = new_lines(folder / f"worker-{rank}.jsonl", place)
    return [Record(*line) for line in lines], place


@dataclass
class Running:
    """One started cell; injectors record their actions in it."""

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
    """A regular expression that survivors' errors must match; empty if none need name the culprit."""
    victims: set[int] = field(default_factory=set)
    must_finish: bool = False
    lasts: float = 0.0
    """Seconds for which the fault itself delays a run that continues."""
    overdue: float = 0.0
    """Seconds by which the injector ended the fault too late."""
    gone: dict[int, float] = field(default_factory=dict)
    """The last time at which each ended worker's process was still seen, by rank."""
    code: int | None = None
    undo: list[Callable[[], None]] = field(default_factory=list)
    _read: dict[int, tuple[int, list[Record]]] = field(default_factory=dict)
    """By rank, the byte up to which the worker's file was read, and its records."""
    _pids: dict[int, list[int]] = field(default_factory=dict)
    _delays: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """By process and thread, the seconds without a processor when first seen after the fault, and when last seen."""
    _lacked: list[tuple[float, float]] = field(default_factory=list)
    """(time, `held_up` at that time) of each look."""
    _looked: float = 0.0

    def records(self, rank: int) -> list[Record]:
        """Return what a worker has written; only new lines are read, because this is called often."""
        place, known = self._read.get(rank, (0, []))
        more, place = records_after(self.folder, rank, place)
        known += more
        self._read[rank] = place, known
        self._pids.setdefault(rank, []).extend(int(record.more) for record in more if record.what == "begins")
        return known

    def pids_of(self, rank: int) -> list[int]:
        """Return the process ids of a worker's processes, the present one last."""
        self.records(rank)
        return self._pids[rank]

    def pid_of(self, rank: int) -> int | None:
        pids = self.pids_of(rank)
        return pids[-1] if pids else None

    def launcher_of(self, node: int) -> int | None:
        """Return the process id of a node's launcher; None if it has no own process, or has not started."""
        path = self.folder / f"launcher-{node}"
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith("\n") and runs(int(text)) else None

    def children_of(self, rank: int) -> list[int]:
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
        """Seconds since the fault by which the machine may have lengthened a wait.

        It adds the longest time without a processor of each process (its worst thread), since one may wait for the
        next.
        """
        threads = (known.values() for known in self._delays.values())
        return self.overdue + sum(max((last - first for first, last in each), default=0.0) for each in threads)

    @property
    def starved(self) -> bool:
        """Whether, within some timeout's length, processes lacked processors for a whole timeout."""
        before = 0
        for instant, lacked in self._lacked:
            while self._lacked[before][0] < instant - self.cell.timeout:
                before += 1
            if lacked - self._lacked[before][1] >= self.cell.timeout:
                return True
        return False

    @property
    def is_over(self) -> bool:
        """Whether the first process and all workers that started have ended."""
        self.look()
        return self.code is not None and all(self.pid_of(r) is None or r in self.gone for r in range(WORKERS))

    def fires(self, note: str, *, culprit: str = "", victims: tuple[int, ...] = ()) -> None:
        """Record that an injector acts now, and on which workers."""
        self.fault_time = time.monotonic()
        text = f"{note}, {self.fault_time - self.started:.2f} s after the start"
        self.outcome.note = f"{self.outcome.note}; {text}" if self.outcome.note else text
        self.culprit = culprit
        self.victims |= set(victims)

    def took_back(self, seconds: float) -> None:
        """Record that a fault that was to last so many seconds is over."""
        self.lasts = seconds
        self.overdue = max(0.0, time.monotonic() - self.fault_time - seconds)

    def until(self, done: Callable[[], bool], seconds: float = START_SECONDS) -> Iterator[None]:
        """Yield until `done()`, the run is over, or the time is over."""
        deadline = time.monotonic() + seconds
        while not done() and not self.is_over and time.monotonic() < deadline:
            yield

    def sleep(self, seconds: float) -> Iterator[None]:
        """Yield for this time, or until the run is over."""
        yield from self.until(lambda: False, seconds)

    def all_train(self) -> bool:
        """Return whether every worker has begun its first step."""
        return all(any(r.what == "enters" for r in self.records(rank)[:8]) for rank in range(WORKERS))

    def named(self, word: str) -> int | None:
        """Return the cell's running process whose command line contains a word."""
        return next((pid for pid in self.processes() if word in command_of(pid)), None)

    def processes(self) -> list[int]:
        return belonging(self.pid, str(self.folder))

    def role_of(self, pid: int) -> str:
        roles = {self.pid_of(rank): f"worker {rank}" for rank in range(WORKERS)} | {self.pid: "launcher"}
        return roles.get(pid, "")

    def is_paused(self, pid: int) -> bool:
        seen = look_at(pid)
        return seen is not None and seen.state == "T"
