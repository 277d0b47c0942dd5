"""Compute times of workers: constant speeds, jitter, random slowdowns and delays, or a recorded trace.

The published straggler models, as values of `ComputeTimes.disturbance`:

* `RandomSlowdown(6, 1/n)`: each worker's step takes 6 times as long with probability 1/n (Hop, ASPLOS'19, section 7).
* `RandomDelay(workers, seconds)`: that many random workers are delayed by a fixed time in every step (eager-SGD,
  PPoPP'20: one of 8 by 200, 300 or 400 ms; four of 64 by 300 or 460 ms).
* `RotatingDelay(low, high)`: every worker is delayed, evenly between low and high, and each delay moves by
  one worker from step to step (eager-SGD's severe skew: 8 workers, 50 to 400 ms).
"""
# ruff: noqa: ARG002 - disturbances take what others need

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from partreduce.topo.document.reader import read_bytes
from partreduce.topo.errors import InputError
from partreduce.topo.fields import CheckedFields, Floats, Index, Whole
from partreduce.topo.hardware import LONGEST_SECONDS, Hardware, Seconds, Share, Variation

MAX_TRACE_BYTES = 2**30
MOST_DRAWN = 2**16
"""The most step times drawn in one call of NumPy, which take a few megabytes."""


class StragglerModel(Protocol):
    """A model of stragglers: it changes the compute times of workers step by step."""

    def disturb(self, seconds: Floats, step: int, rng: np.random.Generator) -> Floats:
        """Return the seconds of step number `step`, changed by the model; shape (samples, num_workers) in and out."""


@dataclass(frozen=True, slots=True)
class RandomSlowdown(CheckedFields):
    """A step takes `factor` times as long with `probability` (None: 1/n), independently for each worker and step."""

    place: ClassVar[str] = "random slowdown: "
    factor: Seconds = 6.0
    probability: Share | None = None

    def disturb(self, seconds: Floats, step: int, rng: np.random.Generator) -> Floats:
        chance = 1 / seconds.shape[1] if self.probability is None else self.probability
        return np.where(rng.random(seconds.shape) < chance, seconds * self.factor, seconds)


@dataclass(frozen=True, slots=True)
class RandomDelay(CheckedFields):
    """In every step `workers` randomly drawn workers are delayed by `seconds`."""

    place: ClassVar[str] = "delay: "
    workers: Index
    seconds: Seconds

    def disturb(self, seconds: Floats, step: int, rng: np.random.Generator) -> Floats:
        count = min(self.workers, seconds.shape[1])
        if not count:
            return seconds
        keys = rng.random(seconds.shape)
        threshold = np.partition(keys, count - 1, axis=1)[:, count - 1 : count]
        return np.where(keys <= threshold, seconds + self.seconds, seconds)


@dataclass(frozen=True, slots=True)
class RotatingDelay(CheckedFields):
    """In every step, worker i of n is delayed by low + (high − low)·((i + step) mod n)/(n − 1) seconds."""

    place: ClassVar[str] = "skew: "
    low: Seconds
    high: Seconds

    def __post_init__(self) -> None:
        CheckedFields.__post_init__(self)
        if self.low > self.high:
            raise InputError(f"skew: from {self.low} s to {self.high} s; write 0 <= LOW <= HIGH")

    def disturb(self, seconds: Floats, step: int, rng: np.random.Generator) -> Floats:
        count = seconds.shape[1]
        place = (np.arange(count) + step) % count / max(1, count - 1)
        delayed: Floats = seconds + self.low + (self.high - self.low) * place
        return delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTimes(CheckedFields):
    """The seconds that each worker needs to compute one step.

    They are `base` times the worker's `slowdown`; `jitter` is the coefficient of variation of a log-normal factor of
    mean 1, drawn per worker and step; `disturbance` is applied last. A `trace` (steps, num_workers) of recorded seconds
    replaces all of them and repeats.
    """

    place: ClassVar[str] = "compute times: "
    base: Seconds = 0.0
    slowdown: tuple[tuple[int, float], ...] = ()
    jitter: Variation = 0.0
    disturbance: StragglerModel | None = None
    trace: Floats | None = None

    def __post_init__(self) -> None:
        CheckedFields.__post_init__(self)
        for worker, factor in self.slowdown:
            if worker < 0 or not 0 < factor <= LONGEST_SECONDS:
                raise InputError(
                    f"slow {worker}:{factor}: write WORKER:FACTOR with a rank >= 0 and a factor > 0, of at most "
                    f"{LONGEST_SECONDS:g}"
                )
        if self.trace is not None and (self.trace.ndim != 2 or not len(self.trace) or not (self.trace >= 0).all()):
            raise InputError("trace: is not a table of seconds >= 0 with one row per step and one column per worker")

    @classmethod
    def of(cls, hardware: Hardware) -> ComputeTimes:
        return cls(base=hardware.compute or 0.0, slowdown=hardware.slowdown, jitter=hardware.jitter)

    @property
    def is_fixed(self) -> bool:
        """Whether every step of a worker takes the same time."""
        return self.jitter == 0 and self.disturbance is None and self.trace is None

    def check(self, num_workers: int) -> None:
        if isinstance(self.disturbance, RandomDelay) and self.disturbance.workers > num_workers:
            raise InputError(
                f"disturb=delay: {self.disturbance.workers} workers are held up, and there are only {num_workers}"
            )
        for worker, _ in self.slowdown:
            if worker >= num_workers:
                raise InputError(f"slow {worker}: worker {worker} is out of range; workers are 0..{num_workers - 1}")
        if self.trace is not None and self.trace.shape[1] != num_workers:
            raise InputError(f"trace: has {self.trace.shape[1]} columns, there are {num_workers} workers")

    def fixed(self, num_workers: int) -> Floats:
        """Return the seconds per step without jitter, disturbance and trace, shape (num_workers,)."""
        seconds = np.full(num_workers, float(self.base))
        for worker, factor in self.slowdown:
            seconds[worker] *= factor
        return seconds

    def step_seconds(self, num_workers: int, step: int, rng: np.random.Generator, *, num_samples: int = 1) -> Floats:
        """Return the seconds of one step, shape (num_samples, num_workers)."""
        if self.trace is not None:
            return np.broadcast_to(self.trace[step % len(self.trace)], (num_samples, num_workers)).copy()
        seconds = self._jittered((num_samples, num_workers), rng)
        return seconds if self.disturbance is None else self.disturbance.disturb(seconds, step, rng)

    def rounds(
        self, worker_steps: Whole, num_rounds: int, rng: np.random.Generator, *, num_samples: int = 1
    ) -> Iterator[Floats]:
        """Yield, for each round, the seconds that workers compute in `worker_steps` steps, (samples, num_workers)."""
        longest, num_workers = int(worker_steps.max()), len(worker_steps)
        if self.is_fixed:
            yield from [
                np.broadcast_to(self.fixed(num_workers) * worker_steps, (num_samples, num_workers))
            ] * num_rounds
            return
        at_once = max(1, MOST_DRAWN // (longest * num_samples * num_workers))
        for first in range(0, num_rounds, at_once):
            count = min(at_once, num_rounds - first)
            steps = self._steps(first * longest, (count * longest, num_samples, num_workers), rng)
            by_round = steps.reshape(count, longest, num_samples, num_workers)
            total = np.zeros((count, num_samples, num_workers))
            for index in range(longest):
                total += np.where(index < worker_steps, by_round[:, index], 0.0)
            yield from total

    def _steps(self, first: int, shape: tuple[int, int, int], rng: np.random.Generator) -> Floats:
        """Return the seconds of the steps from number `first` on; `shape` is (steps, num_samples, num_workers).

        The result is that of `step_seconds` called for each step.
        """
        if self.trace is None and self.disturbance is None:
            return self._jittered(shape, rng)
        steps = range(first, first + shape[0])
        return np.stack([self.step_seconds(shape[2], step, rng, num_samples=shape[1]) for step in steps])

    def _jittered(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Return seconds of steps with jitter but no straggler model, in this `shape`; its last axis is the workers."""
        seconds = np.broadcast_to(self.fixed(shape[-1]), shape).copy()
        if self.jitter:
            spread = sqrt(log(1 + self.jitter**2))
            seconds *= rng.lognormal(-(spread**2) / 2, spread, shape)
        return seconds


def read_trace(path: Path) -> Floats:
    """Read recorded seconds per step from a CSV file: one row per step, one column per worker, no header.

    Raises InputError for any other content.
    """
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
