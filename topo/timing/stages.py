"""A schedule's rounds as max-plus stages: who waits for whom, and for how long everybody then communicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.schedule import Schedule
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.timing import loads
from preduce.topo.timing.cost import bytes_of, round_seconds

if TYPE_CHECKING:
    import numpy.typing as npt

    from preduce.topo.hardware import Hardware
    from preduce.topo.phase import Phase
    from preduce.topo.strategies.axes import Form


@dataclass(frozen=True, slots=True)
class Stage:
    """One round. Cell c waits for the workers `sources[offsets[c]:offsets[c+1]]` and then takes `seconds[c]`.

    `cell_of` (num_workers,) is the cell that a worker takes part in, −1 for none. The cells are the groups of a phase,
    or one for each worker and its in-neighbours.
    """

    sources: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    cell_of: npt.NDArray[np.int64]

    def ready(self, arrival: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """When the operation of each worker's cell can begin, shape (..., num_workers); its own arrival if in none."""
        if not len(self.seconds):
            return arrival
        latest = np.maximum.reduceat(arrival[..., self.sources], self.offsets[:-1], axis=-1)
        return np.where(self.cell_of >= 0, latest[..., self.cell_of], arrival)

    def duration(self) -> npt.NDArray[np.float64]:
        """Seconds that each worker communicates, shape (num_workers,)."""
        if not len(self.seconds):
            return np.zeros(len(self.cell_of))
        return np.where(self.cell_of >= 0, self.seconds[self.cell_of], 0.0)


def of_period(
    schedule: Schedule, hardware: Hardware, *, model_bytes: int | None = None, form: Form | None = None
) -> list[Stage]:
    """The stages of one period. O(size of its phases), expanded.

    A hardware without any link figures costs nothing, so the model's size may be left out then.

    Raises:
        InputError: the model's size is needed and missing.
        ScheduleError: the strategy has no fixed phases.
    """
    form = form or schedule.strategy.how.form
    return [_stage(schedule, index, hardware, model_bytes, form) for index in range(schedule.period)]


def of_prologue(
    schedule: Schedule, hardware: Hardware, *, model_bytes: int | None = None, form: Form | None = None
) -> Stage:
    """The stage of a prologue round: everybody with everybody."""
    everybody = Schedule("prologue", schedule.cluster, AllReduce())
    return _stage(everybody, 0, hardware, model_bytes, form or schedule.strategy.how.form)


def _stage(schedule: Schedule, index: int, hardware: Hardware, model_bytes: int | None, form: Form) -> Stage:
    size = size_or_one(hardware, model_bytes)
    if graphs := schedule.strategy.graphs:
        edges = graphs[index]
        own = np.arange(edges.num_workers)
        targets = np.concatenate([edges.targets, own])
        sources = np.concatenate([edges.sources, own])
        order = np.lexsort((sources, targets))
        counts = np.bincount(targets, minlength=edges.num_workers)
        seconds = round_seconds(edges, schedule.cluster, hardware, model_bytes=size)
        return Stage(sources[order].astype(np.int64), np.r_[0, np.cumsum(counts)], seconds, own)
    phase = schedule.phase(index)
    groups = loads.of_phase(phase, schedule.cluster, hardware, model_bytes=size, form=form.value)
    return _of_groups(phase, groups.seconds())


def _of_groups(phase: Phase, seconds: npt.NDArray[np.float64]) -> Stage:
    return Stage(phase.members.astype(np.int64), phase.offsets, seconds, phase.labels().astype(np.int64))


def size_or_one(hardware: Hardware, model_bytes: int | None) -> int:
    """The model's size; 1 when it is not given and no link's bandwidth is either.

    Raises:
        InputError: the size is needed and missing.
    """
    if model_bytes is None and hardware.model_bytes is None and hardware.is_free_of_bytes():
        return 1
    return bytes_of(hardware, model_bytes)
