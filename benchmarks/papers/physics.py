"""What physics allows: a contestant's step in virtual time, where only computing takes time.

Steps are as long as those of the lab's runs, worker by worker and step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.lab.contestants import contestants
from benchmarks.lab.gaps import SERVER
from benchmarks.lab.lengths import StepLengths
from preduce.runtime.virtual_time.simulate import simulate
from preduce.topo.cluster import Cluster
from preduce.topo.errors import PreduceError
from preduce.topo.hardware import Hardware, Link
from preduce.topo.timing.compute import ComputeTimes

if TYPE_CHECKING:
    from benchmarks.lab.setting import Setting

FREE = Link(0.0, 1e-15)
"""A link that takes no time worth a name."""


def physics_ms(name: str, setting: Setting, steps: int, repetition: int, *, after: int = 0) -> float | None:
    """Milliseconds per step as the lab counts them in one of its repetitions; None where the engine does not know it.

    The first steps, up to `after`, are left out.
    Virtual time knows no server; where only computing takes time, a synchronous one is an all-reduce.
    """
    listed = {contestant.name: contestant for contestant in contestants(lambda *_: None)}
    make = listed["flat ring" if name == SERVER else name].make
    schedule = make(Cluster.regular(4, 4), setting) if make is not None else None
    if schedule is None:
        return None
    count = schedule.cluster.num_workers
    lengths = [StepLengths(setting, count, rank, repetition) for rank in range(count)]
    trace = np.array([[worker(step) for worker in lengths] for step in range(steps)])
    try:
        timeline = simulate(
            schedule, Hardware(nic=FREE), compute=ComputeTimes(trace=trace), num_rounds=steps, model_bytes=1
        )
    except PreduceError:
        return None
    begun = timeline.finish[after - 1] if after else 0.0  # (num_workers,)
    return 1e3 * count / float(((steps - after) / (timeline.finish[-1] - begun)).sum())
