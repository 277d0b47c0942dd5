"""Report a worker's statistics so far, for monitoring while the job runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from partreduce.runtime.recorder import Recorder
from partreduce.runtime.worker.engine import Engine
from partreduce.topo.errors import FileError, InputError

Stats = dict[str, float]


class ScalarWriter(Protocol):
    """What takes numbers one by one, such as TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Note a number of a step."""
        ...


Writer = ScalarWriter | Callable[[Mapping[str, float]], object] | str | Path


def stats_of(engine: Engine, recorder: Recorder) -> Stats:
    """What the engine and the recorder have counted; `DistributedOptimizer.stats` says what each number is."""
    totals = recorder.totals
    return {
        "steps": engine.steps,
        "round": engine.round,
        "skipped": engine.skipped,
        "operations": totals.operations,
        "operation_seconds": totals.seconds,
        "bytes": totals.num_bytes,
        "failed": totals.failed,
        "age": totals.lag,
        "distance": totals.distance,
    }


def write_stats(stats: Stats, writer: Writer) -> None:
    """Give the numbers to a writer; unknown ones are not written."""
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
