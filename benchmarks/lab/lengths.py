"""Lengths of steps: how long each worker computes in each step of a setting, and so of the jobs that run it.

The worker sleeps by them and the simulator predicts with them: both ask the same value. Steps that vary are drawn from
one seed that all workers share, so that "one of 16, drawn again" is the same one for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.timing.compute import ComputeTimes, RandomDelay, RandomSlowdown, RotatingDelay, StragglerModel
from partreduce.topo.timing.sampling import read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Plain numbers that travel as JSON; at most one of the disturbances.

    `compute` is the seconds that a step of an undisturbed worker computes; `slow` lists (rank, factor) on it. With
    probability `random_chance` a worker's step takes `random_factor` times as long. `delayed` = (workers, seconds): so
    many, drawn again in every step, are held up. `skew` = (low, high) seconds: everybody is held up, and by how much
    moves on by one worker from step to step. `trace` names a CSV file of recorded seconds, a row for each step and a
    column for each worker, which replaces all of these and repeats.
    """

    compute: float = 0.08
    slow: tuple[tuple[int, float], ...] = ()
    random_factor: float = 1.0
    random_chance: float = 0.0
    delayed: tuple[int, float] = (0, 0.0)
    skew: tuple[float, float] = (0.0, 0.0)
    trace: str = ""

    def lengths(self) -> dict[str, Any]:
        """These fields alone, of a setting or a job."""
        return {field.name: getattr(self, field.name) for field in fields(Lengths)}

    @property
    def is_disturbed(self) -> bool:
        """Whether some worker is slower than others, always or at times."""
        return bool(self.slow) or self.disturbance is not None or bool(self.trace)

    @property
    def disturbance(self) -> StragglerModel | None:
        """What varies from step to step, as the simulator knows it."""
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
        """The same as the simulator and the planner take it.

        Raises:
            FileError: the trace cannot be read.
            InputError: it is no table of seconds.
        """
        return ComputeTimes(
            base=self.compute,
            slowdown=self.slow,
            disturbance=self.disturbance,
            trace=read_trace(Path(self.trace)) if self.trace else None,
        )

    def mean_seconds(self, num_workers: int) -> npt.NDArray[np.float64]:
        """Each worker's mean step, shape (num_workers,)."""
        times = self.compute_times()
        if times.trace is not None:
            return np.asarray(times.trace.mean(axis=0))
        steady = times.fixed(num_workers) * (1 + self.random_chance * (self.random_factor - 1))
        held_up = min(self.delayed[0], num_workers) / num_workers * self.delayed[1] + sum(self.skew) / 2
        return np.asarray(steady + held_up)

    def free_step(self, num_workers: int) -> float:
        """Seconds per step (workers ÷ steps of all per second) over a free network on which nobody waits."""
        with np.errstate(divide="ignore"):  # where nobody computes for a time, it is none
            return num_workers / float((1 / self.mean_seconds(num_workers)).sum())


class StepLengths:
    """What one worker asks before each of its steps."""

    def __init__(self, lengths: Lengths, num_workers: int, rank: int, seed: int) -> None:
        self._times, self._count, self._rank, self._seed = lengths.compute_times(), num_workers, rank, seed
        self._times.check(num_workers)

    def __call__(self, step: int) -> float:
        """Seconds that step number `step` computes; the first is 0."""
        rng = np.random.default_rng((77_000 * (self._seed + 1), step))
        return float(self._times.step_seconds(self._count, step, rng)[0, self._rank])
