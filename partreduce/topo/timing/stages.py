"""A schedule's rounds as max-plus stages, and the progress of workers through them, in one run or many samples.

Write s[t] for when a worker begins to compute round t, c[t] for how long it computes, e[t] for the end of its group's
operation of that round, d[t] for how long that takes, and let `max` be over the group.

    synchronous   e[t] = max(s[t] + c[t]) + d[t]                             s[t+1] = e[t]
    late          e[t] = max(s[t]) + d[t]                                    s[t+1] = max(s[t] + c[t], e[t])
    pipeline      e[t] = max(s[t] + c[t], e[t−1]) + d[t]                     s[t+1] = max(s[t] + c[t], e[t−K+1])
    merge         e[t] = max(s[t] + w·c[t]) + d[t]                           s[t+1] = max(s[t] + c[t], e[t])

A late operation begins when the round begins, on the parameters of that moment. In a pipeline it begins when the
round's gradient is ready, and the round ends without waiting for it: workers wait K−1 rounds later. With K = 2 both are
one recursion, in which the operation of a pipeline belongs to the round before; they differ in the first round, which
waits for nothing in a pipeline (the first gradients are zero), and in the end, when a pipeline has operations left to
wait for. A delayed merge begins where the share w of a round is computed. Fragments that take turns are that many
operations, begun and awaited where their moves are (`topo.strategies.payload`), possibly a round later.
Warm-up rounds of a pipeline are synchronous and leave nothing in flight.

Operations of one worker run one after another, in order. An operation that is sent layer by layer begins as soon as a
segment is ready (`Stage.before`), so that it is partly hidden behind the computing even if it is synchronous.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partreduce.topo.errors import InputError
from partreduce.topo.fields import Floats, Whole
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Sync
from partreduce.topo.timing import loads
from partreduce.topo.timing.coding import Algorithm, Travel
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.cost import bytes_of, first_equal, round_seconds


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of an operation, which are sent one after another, each as soon as it is ready.

    Segment j is ready when the share `ready[j]` of a round's computing is done; in cell c (a group) it and all later
    ones take `left[j, c]` seconds. Shapes (segments,) and (segments, cells).
    """

    ready: Floats
    left: Floats


class Turn(NamedTuple):
    """A point of a round at which the operation of fragment number `part` starts or, if `is_awaited`, is awaited.

    `at` is the share of the round's computing done until then, an array (num_workers,) if workers differ; `seconds`
    (cells,) is how long the operation takes in each cell (group).
    """

    at: float | Floats
    part: int
    is_awaited: bool
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Stage:
    """The communication of one round as cells: the groups of a phase, or each worker with its in-neighbors.

    Cell c waits for the workers `sources[offsets[c]:offsets[c+1]]` and then takes `seconds[c]`. `cell_of`
    (num_workers,) is the cell of each worker, −1 for none. With `segments` an operation begins while its round
    computes; with `turns` each fragment has an operation that overlaps with computing, possibly of the next round.
    """

    sources: Whole
    offsets: Whole
    seconds: Floats
    cell_of: Whole
    segments: Segments | None = None
    turns: tuple[Turn, ...] = ()

    def ready(self, arrival: Floats) -> Floats:
        """Return, for each worker, when the operation of its cell can begin, given all arrivals, (..., num_workers).

        It begins when the last worker for which the cell waits arrives; without a cell, at the worker's own arrival.
        """
        if not len(self.seconds):
            return arrival
        latest = np.maximum.reduceat(arrival[..., self.sources], self.offsets[:-1], axis=-1)
        return np.where(self.cell_of >= 0, latest[..., self.cell_of], arrival)

    def duration(self, seconds: Floats | None = None) -> Floats:
        """Return the seconds of each worker's cell, (num_workers,), 0 for none; `seconds` replaces the stage's."""
        seconds = self.seconds if seconds is None else seconds
        return np.where(self.cell_of >= 0, seconds[self.cell_of], 0.0) if len(seconds) else np.zeros(len(self.cell_of))

    @property
    def carried(self) -> int:
        """The number of fragments whose operations are in flight at the end of a round."""
        begun, carried = set(), 0
        for turn in self.turns:
            carried += turn.is_awaited and turn.part not in begun
            begun.add(turn.part)
        return carried

    def before(self, compute: Floats) -> Floats:
        """Return the seconds from a worker's start of computing to the start of its operation, if no other is late.

        If gradients are sent in segments during the backward pass, return the seconds to the end of the operation
        instead, set by the last segment to end; `after` is then 0. `compute` are the seconds of computing; shape
        (..., num_workers) in and out.
        """
        if self.segments is None:
            return compute
        latest = compute
        for ready, left in zip(self.segments.ready, self.segments.left, strict=True):
            latest = np.maximum(latest, compute * ready + self.duration(left))
        return latest

    def after(self) -> Floats:
        """Return the seconds from the point that `before` reaches to the end of the operation, shape (num_workers,)."""
        return self.duration() if self.segments is None else np.zeros(len(self.cell_of))

    def first_ready(self, compute: Floats) -> Floats:
        """Return the seconds from a worker's start of computing, `compute` in all, until its first segment is ready."""
        if self.segments is None:
            return compute
        return np.where(self.cell_of >= 0, compute * self.segments.ready[0], compute)


def of_period(
    schedule: Schedule, hardware: Hardware, *, model_bytes: int | None = None, algorithm: Algorithm = None
) -> list[Stage]:
    """Return the stage of each round of a period.

    Arguments are as in `timing.cost.communication`, but no model size is needed if no link takes time for bytes.
    """
    travel = Travel.of_strategy(schedule.strategy, hardware, algorithm)
    stages: list[Stage] = []
    for index, first in enumerate(first_equal(schedule)):
        stages.append(stages[first] if first < index else _stage(schedule, index, hardware, model_bytes, travel))
    return stages


def of_prologue(
    schedule: Schedule, hardware: Hardware, *, model_bytes: int | None = None, algorithm: Algorithm = None
) -> Stage:
    """Return the stage of a prologue round, which averages over all workers; arguments as in `of_period`."""
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
            phase, schedule.cluster, hardware, model_bytes=size * share, algorithm=travel.algorithm.value,
            coding=travel.coding,
        ).seconds()
        for share in set(travel.shares)
    }  # fmt: skip
    sources, seconds = phase.members.astype(np.int64), np.stack([found[share] for share in travel.shares])
    return in_segments(sources, phase.offsets, seconds, phase.labels().astype(np.int64), travel)


def in_segments(sources: Whole, offsets: Whole, seconds: Floats, cell_of: Whole, travel: Travel) -> Stage:
    """Return the stage of a round whose operation is sent in the segments or turns of `travel`.

    `seconds` (segments, cells) are those of each segment in each cell (group); the others are fields of `Stage`.
    """
    if travel.turns:
        turns = tuple(Turn(at, move.fragment, move.merges, seconds[move.fragment]) for at, move in travel.turns)
        return Stage(sources, offsets, seconds.sum(axis=0), cell_of, turns=turns)
    if travel.ready == (1.0,):
        return Stage(sources, offsets, seconds[0], cell_of)
    left = np.cumsum(seconds[::-1], axis=0)[::-1]
    return Stage(sources, offsets, left[0], cell_of, Segments(np.array(travel.ready), left))


def size_or_one(hardware: Hardware, model_bytes: int | None) -> int:
    """Return the model's size in bytes: `model_bytes`, or the hardware's if that is None.

    If both are None, return 1 if no link takes time for bytes, else raise InputError.
    """
    if model_bytes is None and hardware.model_bytes is None and hardware.is_free_of_bytes():
        return 1
    return bytes_of(hardware, model_bytes)


class Moments(NamedTuple):
    """Each worker's times of a round: start, end of computing, start and end of its operation, start of the next."""

    start: Floats
    computed: Floats
    begin: Floats
    end: Floats
    finish: Floats


class Rounds:
    """The progress of all workers, round by round: the times at which they compute, communicate and wait.

    Times are seconds since the start of the run, of the given `shape` (..., num_workers). `sync` decides when averages
    apply; `skip_warm_up` leaves out the warm-up of a pipeline.
    """

    def __init__(self, sync: Sync, shape: tuple[int, ...], *, skip_warm_up: bool = False) -> None:
        self.sync, self.count = sync, sync.warm_up if skip_warm_up else 0
        self.now: Floats = np.zeros(shape)
        self._last_end: Floats = np.zeros(shape)
        self._under_way: deque[tuple[int, Floats]] = deque()  # (round that commits the operation, its end)
        self._parts: dict[int, Floats] = {}  # fragment → end of its operation, until that is awaited

    def next(self, stage: Stage, compute: Floats) -> Moments:
        """Advance by one round and return its times; `compute` are the seconds of computing, (..., num_workers)."""
        if stage.turns:
            return self._in_turns(stage, compute)
        start, computed = self.now, self.now + compute
        due = self.sync.due(self.count)
        if due == self.count:
            late = self.sync.lag > 0 and not self.sync.delays_gradients
            if late or stage.segments is None:
                begin = stage.ready(start if late else computed)
                end = begin + stage.duration()
            else:
                begin = stage.ready(start + stage.first_ready(compute))
                end = stage.ready(start + stage.before(compute))
            self.now = np.maximum(computed, end)
            self._last_end = self.now
        else:
            begin = stage.ready(np.maximum(start + stage.first_ready(compute), self._last_end))
            busy = stage.ready(self._last_end) + stage.duration()
            end = np.maximum(stage.ready(start + stage.before(compute)) + stage.after(), busy)
            self._last_end = end
            self._under_way.append((due, end))
            is_due = self._under_way[0][0] == self.count
            self.now = np.maximum(computed, self._under_way.popleft()[1]) if is_due else computed
        self.count += 1
        return Moments(start, computed, begin, end, self.now)

    def _in_turns(self, stage: Stage, compute: Floats) -> Moments:
        start, begins, end = self.now, [], self.now
        before: float | Floats = 0.0
        for turn in stage.turns:
            self.now, before = self.now + compute * (turn.at - before), turn.at
            if not turn.is_awaited:
                begins.append(stage.ready(np.maximum(self.now, self._last_end)))
                self._last_end = self._parts[turn.part] = begins[-1] + stage.duration(turn.seconds)
            elif turn.part in self._parts:  # in the first round there may be no operation to await
                end = self._parts.pop(turn.part)
                self.now = np.maximum(self.now, end)
        self.count += 1
        return Moments(start, start + compute, begins[0], end, self.now)

    def drained(self) -> Floats:
        """Return when each worker's operations in flight have ended, also those whose results a pipeline drops."""
        return np.maximum(self.now, self._last_end)


@dataclass(frozen=True, slots=True)
class Sample:
    """The seconds per round and per step of a schedule, estimated from independent runs.

    `per_step` counts the steps of the workers with most steps; `error` is its standard error over the runs, `compute`
    the mean seconds per step that these workers spend computing, so `per_step − compute` is communication and waiting.
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
    algorithm: Algorithm = None,
    num_rounds: int = 200,
    num_samples: int = 32,
    seed: int = 0,
) -> Sample:
    """Return the seconds per round and step, from `num_samples` simulated runs of `num_rounds` rounds.

    The first quarter of the rounds is not counted; both parts are rounded up to whole periods. The prologue, and the
    warm-up of a pipeline, are left out. Raises InputError for fewer than 4 rounds or 2 samples.
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
