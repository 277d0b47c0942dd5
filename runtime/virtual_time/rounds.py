"""The virtual-time engine: runs a schedule's rounds without torch, threads or waiting, for thousands of workers.

Every worker computes the steps of its round, arrives, waits for its group and takes part in the group's operation,
exactly in the order in which the real runtime does; only the clock is virtual. With `overlap` a round's group operation
starts from the snapshot at the start of the round and runs while the round's steps compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.errors import InputError
from preduce.topo.hardware import Hardware
from preduce.topo.strategies.axes import Form
from preduce.topo.timing.compute import ComputeTimes
from preduce.topo.timing.stages import of_period, of_prologue

if TYPE_CHECKING:
    import numpy.typing as npt

    from preduce.topo.schedule import Schedule

MAX_CELLS = 50_000_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """What every worker did in every round; all arrays have shape (rounds, num_workers), in seconds.

    A worker computes from `compute_start` to `compute_end` and communicates from `communicate_start` to
    `communicate_end` (equal when it is in no group); what lies between is waiting. `finish` is the end of its round.
    """

    paces: npt.NDArray[np.int64]
    compute_start: npt.NDArray[np.float64]
    compute_end: npt.NDArray[np.float64]
    communicate_start: npt.NDArray[np.float64]
    communicate_end: npt.NDArray[np.float64]
    finish: npt.NDArray[np.float64]
    overlap: bool

    @property
    def num_rounds(self) -> int:
        """Rounds that were run."""
        return len(self.finish)

    @property
    def makespan(self) -> float:
        """When the last worker finished its last round."""
        return float(self.finish[-1].max(initial=0.0))

    def round_seconds(self) -> npt.NDArray[np.float64]:
        """Seconds that each round added to the slowest worker's clock, shape (rounds,)."""
        return np.asarray(np.diff(self.finish.max(axis=1), prepend=0.0))

    def per_step(self, *, warm_up: int = 0) -> float:
        """Mean seconds per step of the workers with the largest pace, after `warm_up` rounds."""
        latest = self.finish.max(axis=1)
        start = latest[warm_up - 1] if warm_up else 0.0
        return float((latest[-1] - start) / (self.num_rounds - warm_up) / self.paces.max())

    def computing(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker computed, shape (num_workers,)."""
        return np.asarray((self.compute_end - self.compute_start).sum(axis=0))

    def communicating(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker's group operations took (under overlap partly behind its computing)."""
        return np.asarray((self.communicate_end - self.communicate_start).sum(axis=0))

    def waiting(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker neither computed nor communicated, shape (num_workers,)."""
        start = np.concatenate([np.zeros((1, self.finish.shape[1])), self.finish[:-1]])
        if not self.overlap:
            return np.asarray(self.finish[-1] - self.computing() - self.communicating())
        busy_to = np.maximum(self.compute_end, start)
        hidden = np.maximum(self.finish - np.maximum(self.communicate_start, busy_to), 0.0)
        return np.asarray((self.finish - busy_to - hidden).sum(axis=0))


def simulate(
    schedule: Schedule,
    hardware: Hardware | None = None,
    *,
    compute: ComputeTimes | None = None,
    num_rounds: int = 100,
    seed: int = 0,
    model_bytes: int | None = None,
    form: Form = Form.RING,
) -> Timeline:
    """Run a schedule in virtual time. Deterministic for a seed; O(num_rounds · n).

    Args:
        schedule: static, allreduce or neighbor; its prologue is run first.
        hardware: links and speeds; None for links that take no time.
        compute: step times; None for those of the hardware.
        num_rounds: how many rounds every worker does.
        seed: of jitter and disturbances.
        model_bytes: the model's size, unless the hardware states it.
        form: how groups average.

    Raises:
        InputError: step times that do not fit the workers, no rounds, or a timeline that would not fit memory.
        ScheduleError: the strategy has no fixed phases, or groups overlap.
    """
    hardware = hardware or Hardware()
    compute = ComputeTimes.of(hardware) if compute is None else compute
    count = schedule.num_workers
    compute.check(count)
    if num_rounds < 1:
        raise InputError(f"rounds: {num_rounds}; at least 1 round is run")
    if num_rounds * count > MAX_CELLS:
        raise InputError(
            f"rounds: {num_rounds} rounds of {count} workers are more than {MAX_CELLS} intervals; "
            f"at most {max(1, MAX_CELLS // count)} rounds fit"
        )
    stages = of_period(schedule, hardware, model_bytes=model_bytes, form=form)
    first = of_prologue(schedule, hardware, model_bytes=model_bytes, form=form) if schedule.prologue else None
    overlap = schedule.strategy.overlap
    paces, rng = schedule.paces(), np.random.default_rng(seed)
    records = np.empty((5, num_rounds, count))
    now = np.zeros(count)
    for round_ in range(num_rounds):
        if first is not None and round_ < schedule.prologue:
            stage = first
        else:
            stage = stages[(round_ - schedule.prologue) % len(stages)]
        computed = now + compute.round_seconds(paces, round_, rng)[0]
        begin = stage.ready(now if overlap else computed)
        end = begin + stage.duration()
        records[:, round_] = now, computed, begin, end, np.maximum(computed, end)
        now = records[4, round_]
    return Timeline(paces, records[0], records[1], records[2], records[3], records[4], overlap)
