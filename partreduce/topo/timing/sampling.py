"""Waiting under random step times, by sampling many runs of a schedule at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from partreduce.topo.document.reader import read_bytes
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.stages import Rounds, of_period

MAX_TRACE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds per round and per step (of the workers with most steps) of a schedule, estimated from independent runs.

    `error` is the standard error of `per_step` over the runs; `compute` the mean seconds per step that the
    workers with most steps spend computing, so `per_step − compute` is communication and waiting.
    """

    per_round: float
    per_step: float
    error: float
    compute: float
    runs: int
    rounds: int


def sample(
    schedule: Schedule,
    hardware: Hardware,
    compute: ComputeTimes,
    *,
    model_bytes: int | None = None,
    algorithm: AllReduceAlgorithm | None = None,
    num_rounds: int = 200,
    num_samples: int = 32,
    seed: int = 0,
) -> Sample:
    """Run `num_samples` copies of the schedule side by side in max-plus arithmetic; the first quarter is warm-up.

    Warm-up and the rounds that count are rounded up to whole periods: phases cost differently, and a part of a period
    would weigh some of them more. A schedule's own first rounds, prologue and warm-up, are left out.
    O(num_samples · num_rounds · n), vectorized over runs and workers.
    """
    if num_rounds < 4 or num_samples < 2:
        raise InputError(f"sampling: {num_rounds} rounds of {num_samples} runs; at least 4 rounds of 2 runs are needed")
    compute.check(schedule.num_workers)
    stages = of_period(schedule, hardware, model_bytes=model_bytes, algorithm=algorithm)
    worker_steps = schedule.worker_steps()
    rng = np.random.default_rng(seed)
    rounds = Rounds(schedule.strategy.sync, (num_samples, schedule.num_workers), skip_warm_up=True)
    period = len(stages)
    warm_up = -(-(num_rounds // 4) // period) * period
    counted = -(-(num_rounds - num_rounds // 4) // period) * period
    at_warm_up, worked = rounds.now, np.zeros_like(rounds.now)
    drawn = compute.rounds(worker_steps, warm_up + counted, rng, num_samples=num_samples)
    for round_, seconds in enumerate(drawn):
        if round_ == warm_up:
            at_warm_up, worked = rounds.now, np.zeros_like(rounds.now)
        worked += seconds
        rounds.next(stages[round_ % period], seconds)
    steps_per_round = int(worker_steps.max())
    each = (rounds.now.max(axis=1) - at_warm_up.max(axis=1)) / counted / steps_per_round
    fastest = worker_steps == steps_per_round
    return Sample(
        float(each.mean()) * steps_per_round,
        float(each.mean()),
        float(each.std(ddof=1) / np.sqrt(num_samples)),
        float(worked[:, fastest].mean()) / counted / steps_per_round,
        num_samples,
        counted,
    )


def read_trace(path: Path) -> npt.NDArray[np.float64]:
    """Recorded seconds per step from a CSV file: one row per step, one column per worker, no header."""
    try:
        text = read_bytes(path, MAX_TRACE_BYTES).decode()
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file") from None
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = [float(cell) for cell in line.split(",")]
        except ValueError:
            raise InputError(f"{path}: line {number} is not a list of seconds separated by commas") from None
        if rows and len(row) != len(rows[0]):
            raise InputError(f"{path}: line {number} has {len(row)} columns, the first line has {len(rows[0])}")
        if not all(0 <= value < float("inf") for value in row):
            raise InputError(f"{path}: line {number} holds a value that is not a finite time >= 0")
        rows.append(row)
    if not rows:
        raise InputError(
            f"{path}: holds no step times; write a row for each step, with each worker's seconds between commas"
        )
    return np.array(rows)
