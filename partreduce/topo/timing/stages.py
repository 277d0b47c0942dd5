"""A schedule's rounds as max-plus stages: who waits for whom, and for how long everybody then communicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing import loads
from partreduce.topo.timing.coding import Travel
from partreduce.topo.timing.cost import bytes_of, first_equal, round_seconds


@dataclass(frozen=True, slots=True)
class Segments:
    """The pieces of an operation that are sent one after the other, each as soon as it is there.

    Segment j is ready when the share `ready[j]` of a round's computing is done; from its beginning to the operation's
    end `left[j, c]` seconds pass in cell c, if nothing has to be waited for. Shapes (segments,) and (segments, cells).
    """

    ready: npt.NDArray[np.float64]
    left: npt.NDArray[np.float64]


class Turn(NamedTuple):
    """A part of a round's operation that begins, or is waited for, where a share of the round's computing is done.

    It takes cell c `seconds[c]`.
    """

    at: float | npt.NDArray[np.float64]
    part: int
    is_awaited: bool
    seconds: npt.NDArray[np.float64]


class Parts(NamedTuple):
    """The seconds of each cell's operation, and its segments or turns where it does not go in one piece."""

    seconds: npt.NDArray[np.float64]
    segments: Segments | None = None
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One round. Cell c waits for the workers `sources[offsets[c]:offsets[c+1]]` and then takes `seconds[c]`.

    `cell_of` (num_workers,) is the cell that a worker takes part in, −1 for none. The cells are the groups of a phase,
    or one for each worker and its in-neighbors. With `segments` an operation begins while its round computes; with
    `turns` it is several, each of which overlaps with computing, if need be into the next round.
    """

    sources: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    cell_of: npt.NDArray[np.int64]
    segments: Segments | None = None
    turns: tuple[Turn, ...] = ()

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

    @property
    def carried(self) -> int:
        """Parts that are on their way from one round to the next: those awaited before they begin."""
        begun, carried = set(), 0
        for turn in self.turns:
            carried += turn.is_awaited and turn.part not in begun
            begun.add(turn.part)
        return carried

    def seconds_of(self, turn: Turn) -> npt.NDArray[np.float64]:
        """Seconds that each worker communicates in one of its turns, shape (num_workers,)."""
        return np.where(self.cell_of >= 0, turn.seconds[self.cell_of], 0.0) if len(self.seconds) else self.duration()

    def before(self, compute: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Seconds from a worker's beginning to compute until its cell, if all the others are ready, ends or begins.

        Until it ends where there are segments: the latest of them decides, and what comes `after` is nothing. Until it
        begins elsewhere. Shape (..., num_workers) in and out.
        """
        if self.segments is None:
            return compute
        latest = compute
        for ready, left in zip(self.segments.ready, self.segments.left, strict=True):
            latest = np.maximum(latest, compute * ready + np.where(self.cell_of >= 0, left[self.cell_of], 0.0))
        return latest

    def after(self) -> npt.NDArray[np.float64]:
        """Seconds from what `before` says to the end of the operation, shape (num_workers,)."""
        return self.duration() if self.segments is None else np.zeros(len(self.cell_of))

    def first_ready(self, compute: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Seconds from a worker's beginning to compute until it has something to send, shape (..., num_workers)."""
        if self.segments is None:
            return compute
        return np.where(self.cell_of >= 0, compute * self.segments.ready[0], compute)


def of_period(
    schedule: Schedule,
    hardware: Hardware,
    *,
    model_bytes: int | None = None,
    algorithm: AllReduceAlgorithm | None = None,
) -> list[Stage]:
    """The stages of one period. O(size of its phases), expanded.

    A hardware without any numbers of links costs nothing, so the model's size may be left out then.

    Raises:
        InputError: the model's size is needed and missing.
        ScheduleError: the strategy has no fixed phases.
    """
    travel = Travel.of_strategy(schedule.strategy, hardware, algorithm)
    stages: list[Stage] = []
    for index, first in enumerate(first_equal(schedule)):
        stages.append(stages[first] if first < index else _stage(schedule, index, hardware, model_bytes, travel))
    return stages


def of_prologue(
    schedule: Schedule,
    hardware: Hardware,
    *,
    model_bytes: int | None = None,
    algorithm: AllReduceAlgorithm | None = None,
) -> Stage:
    """The stage of a prologue round: everybody with everybody."""
    everybody = Schedule("prologue", schedule.cluster, AllReduce())
    return _stage(everybody, 0, hardware, model_bytes, Travel.of(schedule.strategy.transport, hardware, algorithm))


def _stage(schedule: Schedule, index: int, hardware: Hardware, model_bytes: int | None, travel: Travel) -> Stage:
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
    found = {
        share: loads.of_phase(
            phase,
            schedule.cluster,
            hardware,
            model_bytes=size * share,
            algorithm=travel.algorithm.value,
            coding=travel.coding,
        ).seconds()
        for share in set(travel.shares)
    }
    parts = in_segments(np.stack([found[share] for share in travel.shares]), travel)
    labels = phase.labels().astype(np.int64)
    return Stage(phase.members.astype(np.int64), phase.offsets, parts.seconds, labels, *parts[1:])


def in_segments(seconds: npt.NDArray[np.float64], travel: Travel) -> Parts:
    """What an operation consists of, from the seconds of each of its segments, (segments, cells)."""
    if travel.turns:
        turns = tuple(Turn(at, move.fragment, move.merges, seconds[move.fragment]) for at, move in travel.turns)
        return Parts(seconds.sum(axis=0), turns=turns)
    if travel.ready == (1.0,):
        return Parts(seconds[0])
    left = np.cumsum(seconds[::-1], axis=0)[::-1]
    return Parts(left[0], Segments(np.array(travel.ready), left))


def size_or_one(hardware: Hardware, model_bytes: int | None) -> int:
    """The model's size; 1 when it is not given and no link's bandwidth is either.

    Raises:
        InputError: the size is needed and missing.
    """
    if model_bytes is None and hardware.model_bytes is None and hardware.is_free_of_bytes():
        return 1
    return bytes_of(hardware, model_bytes)
