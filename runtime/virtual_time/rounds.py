"""Fixed phases in virtual time: a schedule's rounds one after another in max-plus arithmetic, for thousands of workers.

Every worker computes the steps of its round, arrives, waits for its group and takes part in the group's operation,
exactly in the order in which the real runtime does; only the clock is virtual. With `overlap` a round's group operation
starts from the snapshot at the start of the round and runs while the round's steps compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from preduce.runtime.virtual_time.timeline import Timeline
from preduce.topo.timing.stages import of_period, of_prologue

if TYPE_CHECKING:
    from preduce.topo.hardware import Hardware
    from preduce.topo.schedule import Schedule
    from preduce.topo.strategies.axes import Form
    from preduce.topo.timing.compute import ComputeTimes


@dataclass(frozen=True, slots=True)
class SharedHost:
    """What one machine adds that emulates all nodes: seconds for each step, and per round of a period for its groups.

    A round's seconds fall on every worker that is in a group of that round.
    """

    step_seconds: float
    round_seconds: tuple[float, ...]


def run_rounds(
    schedule: Schedule,
    hardware: Hardware,
    compute: ComputeTimes,
    *,
    num_rounds: int,
    seed: int,
    model_bytes: int | None,
    form: Form,
    host: SharedHost | None = None,
) -> Timeline:
    """The rounds of a schedule with fixed phases, its prologue first; `host` is for emulated nodes. O(num_rounds · n).

    Raises:
        ScheduleError: the strategy has no fixed phases, or groups overlap.
    """
    stages = of_period(schedule, hardware, model_bytes=model_bytes, form=form)
    first = of_prologue(schedule, hardware, model_bytes=model_bytes, form=form) if schedule.prologue else None
    overlap = schedule.strategy.overlap
    paces, rng = schedule.paces(), np.random.default_rng(seed)
    records = np.empty((5, num_rounds, schedule.num_workers))
    now = np.zeros(schedule.num_workers)
    host = host or SharedHost(0.0, (0.0,) * len(stages))
    for round_ in range(num_rounds):
        index = (round_ - schedule.prologue) % len(stages)
        stage = first if first is not None and round_ < schedule.prologue else stages[index]
        computed = now + compute.round_seconds(paces, round_, rng)[0] + paces * host.step_seconds
        begin = stage.ready(now if overlap else computed)
        end = begin + stage.duration()
        finish = np.maximum(computed, end) + np.where(stage.cell_of >= 0, host.round_seconds[index], 0.0)
        records[:, round_] = now, computed, begin, end, finish
        now = records[4, round_]
    return Timeline(paces, records[0], records[1], records[2], records[3], records[4], overlap)
