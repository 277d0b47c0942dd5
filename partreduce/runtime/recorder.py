"""Record a worker's last operations for error reports, its statistics, and a trace for Perfetto.

The last operations are always recorded; the trace only if a directory is given. A failure to write never ends a run.
"""

from __future__ import annotations

import csv
import json
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.document.writer import write_file
from partreduce.topo.errors import FileError, InputError

RING_LENGTH = 256
MAX_TRACE_EVENTS = 200_000


@dataclass(slots=True)
class Operation:
    """Record of one average or other collective on this worker, for error reports and traces.

    `start` and `end` are seconds since the epoch; `end` is None while it runs.
    """

    index: int
    kind: str
    step: int
    round: int
    members: tuple[int, ...]
    num_bytes: int
    start: float
    end: float | None = None
    outcome: str = "running"
    lag: int = 0  # rounds of delay: 1 if it was started at the beginning of its round

    @property
    def rounds_before(self) -> int:
        """Number of rounds before the operation; a member that took no more rounds than that never started it."""
        return self.round - self.lag

    def entered(self) -> str:
        return f"entered {self}"

    def finished(self) -> str:
        return f"finished {self}"

    def __str__(self) -> str:
        """Describe the operation for messages: `the average of round 41 in group {1,3}`."""
        return f"the {self.kind} of round {self.round} in group {{{','.join(map(str, self.members))}}}"


Parsed = TypeVar("Parsed")
Stats = dict[str, float]
COUNTED = ("operations", "operation_seconds", "bytes", "failed", "age")  # keys of `DistributedOptimizer.stats`


class Recorder:
    """Record of one worker's last 256 operations, its statistics and, given a directory, a trace; thread-safe."""

    def __init__(self, rank: int, trace: str | Path | None = None) -> None:
        self.rank = rank
        self.directory = None if trace is None else Path(trace)
        self._clock_origin = time.time() - time.perf_counter()
        self._ring: deque[Operation] = deque(maxlen=RING_LENGTH)
        self.stats: Stats = dict.fromkeys(COUNTED, 0) | {"operation_seconds": 0.0, "distance": math.nan}
        self._events: list[dict[str, Any]] = []
        self._dropped = 0
        self._warned = False
        self._facts: dict[str, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def attach(self, name: str, facts: Callable[[], object]) -> None:
        """Add an entry `name` to traces and failure reports, whose value `facts()` returns when they are written."""
        self._facts[name] = facts

    def now(self) -> float:
        return self._clock_origin + time.perf_counter()

    def begin(
        self, kind: str, step: int, round_: int, members: tuple[int, ...], num_bytes: int, *, lag: int = 0
    ) -> Operation:
        with self._lock:
            stats = self.stats
            operation = Operation(int(stats["operations"]), kind, step, round_, members, num_bytes, self.now(), lag=lag)
            stats["operations"] += 1
            stats["bytes"] += num_bytes
            stats["age"] = lag
            self._ring.append(operation)
        return operation

    def end(self, operation: Operation, outcome: str = "ok", *, times: tuple[float, float] | None = None) -> None:
        """Mark an operation as ended now, with `ok` or a failure as outcome.

        `times` are its start and end by `time.perf_counter`, if they were measured on the device.
        """
        operation.end, operation.outcome = self.now(), outcome
        if times is not None:
            operation.start, operation.end = self._clock_origin + times[0], self._clock_origin + times[1]
        with self._lock:
            self.stats["operation_seconds"] += operation.end - operation.start
            self.stats["failed"] += outcome != "ok"
        if self.directory is not None:
            name = f"{operation.kind} {{{','.join(map(str, operation.members))}}}"
            details = {"round": operation.round, "step": operation.step, "bytes": operation.num_bytes}
            self._add(name, "communication", operation.start, operation.end, details | {"outcome": outcome})

    @contextmanager
    def span(self, name: str, **details: object) -> Iterator[None]:
        """Context that records its duration as an event called `name` in the trace; does nothing without a trace."""
        if self.directory is None:
            yield
            return
        start = self.now()
        try:
            yield
        finally:
            self._add(name, "worker", start, self.now(), details)

    def note(self, **numbers: float) -> None:
        """Record values at this time in the trace, which Perfetto draws as lines; does nothing without a trace."""
        if self.directory is not None:
            self._add("log", "log", self.now(), None, numbers)

    def _add(self, name: str, track: str, start: float, end: float | None, details: dict[str, Any]) -> None:
        event = {
            "name": name,
            "cat": track,
            "ts": start * 1e6,
            **({"ph": "C"} if end is None else {"ph": "X", "dur": (end - start) * 1e6}),
            "pid": self.rank,
            "tid": 0 if track == "worker" else 1,
            "args": details,
        }
        with self._lock:
            if len(self._events) < MAX_TRACE_EVENTS:
                self._events.append(event)
            else:
                self._dropped += 1

    def last(self) -> list[Operation]:
        with self._lock:  # copying a deque while it grows raises an error
            return list(self._ring)

    def dump(self, reason: str) -> Path | None:
        """Write the last operations and `reason` to `operations-RANK.json`; return its path, or else None."""
        if self.directory is None:
            return None
        content = {"rank": self.rank, "reason": reason, "operations": [asdict(o) for o in self.last()]}
        content |= {name: facts() for name, facts in self._facts.items()}
        return self._written(self.directory / f"operations-{self.rank:05d}.json", content)

    def write_trace(self) -> Path | None:
        """Write `trace-RANK.json` (Chrome trace format); return its path, or None without a directory or on failure."""
        if self.directory is None:
            return None
        names = [
            {"name": "process_name", "ph": "M", "pid": self.rank, "args": {"name": f"worker {self.rank}"}},
            {"name": "thread_name", "ph": "M", "pid": self.rank, "tid": 0, "args": {"name": "step"}},
            {"name": "thread_name", "ph": "M", "pid": self.rank, "tid": 1, "args": {"name": "communication"}},
        ]
        other = {"droppedEvents": self._dropped} | {name: facts() for name, facts in self._facts.items()}
        with self._lock:
            content = {"traceEvents": names + self._events, "otherData": other}
        return self._written(self.directory / f"trace-{self.rank:05d}.json", content)

    def _written(self, path: Path, content: object) -> Path | None:
        try:
            return _write(path, content)
        except FileError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"tracing: {error}; the run continues without it", RuntimeWarning, stacklevel=2)
            return None


@check_arguments
def merge_traces(directory: str | Path, output: str | Path | None = None) -> Path:
    """Merge the traces of all workers in a directory into one file, with times from 0.

    Args:
        directory: the folder of the workers' files `trace-RANK.json` (`trace=` of DistributedOptimizer).
        output: the file to write; `trace.json` in the directory by default.

    Returns:
        The path that was written: a JSON trace for Perfetto or chrome://tracing, times in microseconds.

    Raises:
        FileError: the directory has no trace, one cannot be read, or the output cannot be written.
    """
    directory = Path(directory)
    traces = read_traces(directory, lambda trace: [dict(event) for event in trace["traceEvents"]])
    events = [event for trace in traces for event in trace]
    first = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] -= first
    return _write(Path(output) if output is not None else directory / "trace.json", {"traceEvents": events})


def read_traces(folder: Path, parse: Callable[[Any], Parsed]) -> list[Parsed]:
    """Return `parse(content)` of each worker's trace in a folder, by rank.

    Raises:
        FileError: the folder has no trace, or one of another program, in which `parse` does not find what it reads.
    """
    paths = sorted(folder.glob("trace-[0-9]*.json"))
    if not paths:
        raise FileError(f"{folder}: holds no trace-RANK.json; give trace=DIRECTORY to DistributedOptimizer")
    parsed = []
    for path in paths:
        try:
            parsed.append(parse(json.loads(path.read_text())))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path}: is not a trace of this program ({error})") from None
    return parsed


def _write(path: Path, content: object) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from None
    write_file(path, json.dumps(content).encode())
    return path


class ScalarWriter(Protocol):
    """Interface of an object with TensorBoard's `add_scalar`, such as its `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Write one number under `tag` for the step `global_step`."""
        ...


Writer = ScalarWriter | Callable[[Mapping[str, float]], object] | str | Path


def write_stats(stats: Stats, writer: Writer) -> None:
    """Write statistics to a SummaryWriter (except NaN), as a row of a CSV file, or to a function.

    Raises InputError for another writer, FileError if the file cannot be written.
    """
    if callable(add := getattr(writer, "add_scalar", None)):
        for name, number in stats.items():
            if not math.isnan(number):
                add(f"partreduce/{name}", number, int(stats["steps"]))
    elif isinstance(writer, str | Path):
        _append(Path(writer), stats)
    elif callable(writer):
        writer(stats)
    else:
        raise InputError(
            f"stats: writer is a {type(writer).__name__}; give a SummaryWriter, the path of a CSV file or a function"
        )


def _append(path: Path, stats: Stats) -> None:
    try:
        with path.open("a", newline="", encoding="utf-8") as file:
            rows = csv.DictWriter(file, stats)
            if not file.tell():
                rows.writeheader()
            rows.writerow(stats)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from None
