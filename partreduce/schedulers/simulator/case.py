"""The inputs of a simulated run, for any protocol of the schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.stages import size_or_one
from partreduce.topo.timing.tables import Exchange


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs of a simulated run: a schedule, the hardware and compute times, and the number of rounds.

    `seed` draws jitter, stragglers and partners; `model_bytes` is the model's size unless the hardware has one;
    `algorithm` is the all-reduce algorithm. `exchange` is the cost per step of embedding tables that are not averaged
    with the model, None without them. `listeners`, which measure ages and metrics, are called for each average in kinds
    of strategy without common rounds.
    """

    schedule: Schedule
    hardware: Hardware
    compute: ComputeTimes
    num_rounds: int
    seed: int
    model_bytes: int | None
    algorithm: AllReduceAlgorithm
    exchange: Exchange | None = None
    listeners: tuple[Any, ...] = ()

    def worker_steps(self) -> npt.NDArray[np.int64]:
        """Return the steps per round of every worker, shape (num_workers,)."""
        return self.schedule.worker_steps()

    def size(self) -> int:
        return size_or_one(self.hardware, self.model_bytes)

    def seconds(self) -> npt.NDArray[np.float64]:
        """Return the seconds of each worker's computing in each round, (num_rounds, num_workers); fixed by the seed."""
        worker_steps, rng = self.worker_steps(), np.random.default_rng(self.seed)
        return np.array([seconds[0] for seconds in self.compute.rounds(worker_steps, self.num_rounds, rng)])

    def seconds_of_steps(self) -> npt.NDArray[np.float64]:
        """Return the seconds of each step's computing, (num_rounds, k, num_workers), if all take k steps in a round."""
        rng, count, steps = np.random.default_rng(self.seed), self.schedule.num_workers, int(self.worker_steps().max())
        listed = [self.compute.step_seconds(count, step, rng)[0] for step in range(self.num_rounds * steps)]
        return np.array(listed).reshape(self.num_rounds, steps, count)
