"""Fixed phases in virtual time: a schedule's rounds one after another in max-plus arithmetic, for thousands of workers.

Every worker computes the steps of its round, arrives, waits for its group and takes part in the group's operation,
exactly in the order in which the real runtime does; only the clock is virtual. With `overlap` a round's group operation
starts from the snapshot at the start of the round and runs while the round's steps compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.runtime.virtual_time.timeline import Timeline
from preduce.topo.timing.stages import of_period, of_prologue

if TYPE_CHECKING:
    from preduce.topo.hardware import Hardware
    from preduce.topo.schedule import Schedule
    from preduce.topo.strategies.axes import Form
    from preduce.topo.timing.compute import ComputeTimes


def run_rounds(
    schedule: Schedule,
    hardware: Hardware,
    compute: ComputeTimes,
    *,
    num_rounds: int,
    seed: int,
    model_bytes: int | None,
    form: Form,
) -> Timeline:
    """The rounds of a schedule with fixed phases, its prologue first. O(num_rounds · n).

    Raises:
        ScheduleError: the strategy has no fixed phases, or groups overlap.
    """
    stages = of_period(schedule, hardware, model_bytes=model_bytes, form=form)
    first = of_prologue(schedule, hardware, model_bytes=model_bytes, form=form) if schedule.prologue else None
    overlap = schedule.strategy.overlap
    paces, rng = schedule.paces(), np.random.default_rng(seed)
    records = np.empty((5, num_rounds, schedule.num_workers))
    now = np.zeros(schedule.num_workers)
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
