"""The exact cycle time of a schedule when every worker has a fixed speed, by max-plus algebra on its event graph.

One round of a static schedule is linear over (max, +): a worker arrives after its steps, its group begins when the last
member has arrived. The cycle time of worker i, lim x_i(k)/k over periods, is the largest mean weight of a cycle among
the workers from which a path leads to i (Baccelli, Cohen, Olsder and Quadrat, "Synchronization and Linearity", 1992,
theorem 3.23 for the strongly connected case). Howard's policy iteration finds it without running the schedule: a policy
names for every group the member that it waits for; tracing the policy back through one period leads from each worker
to one worker at the start of the period (Cochet-Terrasson et al., "Numerical computation of spectral elements in
max-plus algebra", 1998).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np

from partreduce.topo.arithmetic.whole_numbers import number_rows
from partreduce.topo.errors import UndecidedError
from partreduce.topo.fields import Flags, Floats, Whole
from partreduce.topo.hardware import Hardware, regular_levels
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Sync
from partreduce.topo.timing.coding import Algorithm, Travel
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.cost import first_equal, phase_loads, segment_seconds
from partreduce.topo.timing.stages import Stage, in_segments, of_period, size_or_one

MAX_ITERATIONS = 10_000
TOLERANCE = 1e-10


@dataclass(frozen=True, slots=True)
class CycleTime:
    """The steady speed of a schedule with fixed step times.

    `per_round` is the seconds per round of the slowest worker, `per_step` that divided by the largest steps_per_round,
    `workers` the seconds per round of each worker. `critical` lists the workers on the slowest cycle of waits: only
    faster critical workers or links of their groups shorten it. If all nodes are equal, workers are local ranks.
    """

    per_round: float
    per_step: float
    workers: Floats
    critical: tuple[int, ...]


def cycle_time(
    schedule: Schedule,
    hardware: Hardware,
    compute: ComputeTimes | None = None,
    *,
    model_bytes: int | None = None,
    algorithm: Algorithm = None,
) -> CycleTime:
    """Compute the exact steady-state seconds per round and per step, with the step times of `compute` or `hardware`.

    Rules on equal nodes are solved on one node; racks of equal size keep nodes equal if the rule's first digits count
    the racks. The prologue is left out, and jitter and disturbances of `compute` are ignored (`timing.stages.sample`
    includes them). O(n · period) for each of a few policy iterations; UndecidedError above `MAX_ITERATIONS`.
    """
    times = ComputeTimes.of(hardware) if compute is None else compute
    return TimedPeriod.of(schedule, hardware, times, model_bytes=model_bytes, algorithm=algorithm).cycle()


@dataclass(frozen=True, slots=True, eq=False)
class TimedPeriod:
    """The costs of one period, which give the cycle time, also at other steps_per_round and delays.

    `stages` are the communication of each round, `steps` (workers,) the seconds of one step, `worker_steps` (workers,)
    the steps of a round.
    """

    stages: list[Stage]
    steps: Floats
    worker_steps: Whole
    sync: Sync

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        hardware: Hardware,
        times: ComputeTimes,
        *,
        model_bytes: int | None = None,
        algorithm: Algorithm = None,
    ) -> TimedPeriod:
        """Build from a schedule; arguments and errors as in `cycle_time`, where `times` is `compute`.

        If all nodes are equivalent, the workers of the result are the local ranks of one node.
        """
        times.check(schedule.num_workers)
        steps_per_round, sync = schedule.strategy.steps_per_round, schedule.strategy.sync
        if not _is_homogeneous(schedule, hardware, times):
            stages = of_period(schedule, hardware, model_bytes=model_bytes, algorithm=algorithm)
            return cls(stages, times.fixed(schedule.num_workers), schedule.worker_steps(), sync)
        count = schedule.cluster.workers_per_node or 0
        worker_steps = np.full(count, steps_per_round if isinstance(steps_per_round, int) else steps_per_round[0])
        return cls(
            _one_node(schedule, hardware, model_bytes, algorithm), np.full(count, times.base), worker_steps, sync
        )

    def cycle(self, *, steps_per_round: int | None = None, sync: Sync | None = None) -> CycleTime:
        """Return the cycle time; `steps_per_round` of all workers and `sync` replace the period's if given."""
        worker_steps = (
            self.worker_steps if steps_per_round is None else np.full_like(self.worker_steps, steps_per_round)
        )
        means, critical = _howard(self.stages, self.steps * worker_steps, self.sync if sync is None else sync)
        workers = means / len(self.stages)
        slowest = float(workers.max())
        return CycleTime(slowest, slowest / int(worker_steps.max()), workers, critical)

    def merged(self) -> TimedPeriod:
        """Return a period of equal speed in which one worker stands for each kind of workers.

        Workers of one kind always arrive at the same time: they have equal step times and wait for groups of equal
        kinds. Each of a few refinements of the kinds costs O(n log n · period). Fragments are not merged.
        """
        distinct = {id(stage): stage for stage in self.stages}
        if any(stage.turns for stage in distinct.values()):
            return self
        kinds, count = number_rows(self.steps, self.worker_steps), 0
        while count < (count := int(kinds.max()) + 1) < len(kinds):
            kinds = number_rows(kinds, *(_cell_kinds(stage, kinds) for stage in distinct.values()))
        if count == len(kinds):
            return self
        first = np.unique(kinds, return_index=True)[1]
        fewer = {key: _of_kinds(stage, kinds, first) for key, stage in distinct.items()}
        stages = [fewer[id(stage)] for stage in self.stages]
        return TimedPeriod(stages, self.steps[first], self.worker_steps[first], self.sync)


def _cell_kinds(stage: Stage, kinds: Whole) -> Whole:
    """Return a number for each worker's cell (group): equal for cells of equal seconds that wait for the same kinds.

    `kinds` has each worker's kind (`merged`), as a number. Sets of kinds are compared by a hash: the sum of 62 random
    bits per kind. -1 for workers without a cell.
    """
    if not len(stage.seconds):
        return np.full(len(kinds), -1, dtype=np.int64)
    cell, number = np.repeat(np.arange(len(stage.seconds)), np.diff(stage.offsets)), int(kinds.max()) + 1
    pairs = np.unique(cell * number + kinds[stage.sources])
    bits = np.random.default_rng(0).integers(1 << 62, size=number)
    sums = np.zeros(len(stage.seconds), dtype=np.int64)
    np.add.at(sums, pairs // number, bits[pairs % number])
    left = () if stage.segments is None else tuple(stage.segments.left)
    return np.where(stage.cell_of >= 0, number_rows(sums, stage.seconds, *left)[stage.cell_of], -1)


def _of_kinds(stage: Stage, kinds: Whole, first: Whole) -> Stage:
    """Return the stage with one worker for each kind (`merged`) in place of all workers.

    `kinds` (num_workers,) is the kind of each worker, `first` (kinds,) a worker of each kind.
    """
    own = stage.cell_of[first]
    cells = np.unique(own[own >= 0])
    sources = [np.unique(kinds[stage.sources[stage.offsets[c] : stage.offsets[c + 1]]]) for c in cells.tolist()]
    cell_of = np.where(own >= 0, np.searchsorted(cells, own), -1)
    offsets = np.cumsum([0, *map(len, sources)])
    segments = None if stage.segments is None else replace(stage.segments, left=stage.segments.left[:, cells])
    listed = np.concatenate(sources) if sources else np.zeros(0, dtype=np.int64)
    return Stage(listed, offsets, stage.seconds[cells], cell_of, segments)


def _is_homogeneous(schedule: Schedule, hardware: Hardware, times: ComputeTimes) -> bool:
    """Whether all nodes are surely equivalent: renumberings that keep links and groups map any node to any other."""
    num_nodes, rule = schedule.cluster.num_nodes, schedule.rule(by_node=True)
    if (
        hardware.node_nic
        or hardware.node_inside
        or times.slowdown
        or not isinstance(schedule.strategy.steps_per_round, int)
    ):
        return False
    levels = regular_levels(hardware.shared_switches(num_nodes), num_nodes)
    if levels is None or rule is None:
        return False
    if all(len(block.across) in (0, rule.num_digits) for phase in rule.phases for block in phase):
        return True  # only groups inside nodes and of all nodes: any renumbering keeps them
    # Shifting one digit moves whole racks, or nodes inside their racks, if the first few digits count the racks.
    return set(accumulate(levels, mul)) <= set(accumulate(rule.radices, mul, initial=1))


def _one_node(schedule: Schedule, hardware: Hardware, model_bytes: int | None, algorithm: Algorithm) -> list[Stage]:
    """Return the stages of a rule's period, with the local ranks of one node as workers.

    All nodes must be equivalent (`_is_homogeneous`), so that workers of equal local rank arrive at the same time.
    """
    rule = schedule.rule(by_node=True)
    assert rule is not None, "homogeneous nodes have a rule"
    size, sent = rule.workers_per_node, size_or_one(hardware, model_bytes)
    travel = Travel.of_strategy(schedule.strategy, hardware, algorithm)
    stages: list[Stage] = []
    for index, (first, phase) in enumerate(zip(first_equal(schedule), rule.phases, strict=True)):
        if first < index:
            stages.append(stages[first])
            continue
        every = segment_seconds(phase_loads(schedule, index, hardware, model_bytes=sent, travel=travel))
        cell_of = np.full(size, -1, dtype=np.int64)
        members: list[int] = []
        ends, spans = [0], []
        for block in phase:
            span = rule.span(block)
            if len(block.local) * span >= 2:
                cell_of[list(block.local)] = len(ends) - 1
                members += sorted(block.local)
                ends.append(len(members))
                spans.append(span)
        # The costs have one entry per block, or one per group, ordered by block; groups of one block cost the same.
        count = every.shape[1]
        counts = [1] * len(spans) if count == len(spans) else [schedule.cluster.num_nodes // s for s in spans]
        ones = np.cumsum([0, *counts])[:-1]
        stages.append(in_segments(np.array(members, dtype=np.int64), np.array(ends), every[:, ones], cell_of, travel))
    return stages


class _Ways(NamedTuple):
    """For every worker, the path of waits that leads to it from the period's start, as the policy chooses them.

    `origin` is the state (`_howard`) in which the path begins, `weight` the seconds from there.
    """

    origin: Whole
    weight: Floats


class _Potential(NamedTuple):
    """The current values of policy iteration for each state (`_howard`).

    `rank` orders states by the mean seconds of their cycle; `values` are the seconds by which a state is later than
    that mean (the bias).
    """

    rank: Whole
    values: Floats

    def later(self, one: _Ways, other: _Ways) -> _Ways:
        """Return, for every worker, that of two paths which arrives later in the long run, `one` if they are equal."""
        mine, others = self.rank[one.origin], self.rank[other.origin]
        arrives, departs = self.values[one.origin] + one.weight, self.values[other.origin] + other.weight
        keep = (mine > others) | ((mine == others) & (arrives >= departs))
        return _Ways(np.where(keep, one.origin, other.origin), np.where(keep, one.weight, other.weight))

    def ready(self, stage: Stage, ways: _Ways) -> _Ways:
        """Return, for each worker, the path of the last worker for which its cell waits; without a cell, its own."""
        best = _largest(stage, self.rank[ways.origin], self.values[ways.origin] + ways.weight)
        own = np.arange(len(ways.origin))
        pick = np.where(stage.cell_of >= 0, best[stage.cell_of] if len(best) else 0, own)
        return _Ways(ways.origin[pick], ways.weight[pick])


def _howard(stages: list[Stage], compute: Floats, sync: Sync) -> tuple[Floats, tuple[int, ...]]:
    """Return each worker's seconds per period, by the slowest cycle of waits that reaches it, and the slowest cycle.

    The latter is given by its workers. `stages` are the rounds of a period, `compute` (num_workers,) the seconds that
    each worker computes in a round. A state is a worker at the beginning of a round, or an operation that it has in
    flight. States of operations follow those of the workers: in a pipeline K−1 operations, newest first; fragments
    oldest first. Raises UndecidedError after `MAX_ITERATIONS`.
    """
    count = len(compute) * (1 + (sync.lag if sync.delays_gradients else stages[0].carried))
    means, values = np.full(count, -np.inf), np.zeros(count)
    origin, weight = np.arange(count), np.zeros(count)
    for _ in range(MAX_ITERATIONS):
        new_origin, new_weight, better = _improve(stages, compute, means, values, sync)
        if not better.any():
            means = means[: len(compute)]
            cycle = {state % len(compute) for state in _cycle_of(origin, int(means.argmax()))}
            return means, tuple(sorted(cycle))
        # A state without improvement keeps its choice: alternating between ties could cycle forever.
        origin, weight = np.where(better, new_origin, origin), np.where(better, new_weight, weight)
        means, values = _evaluate(origin, weight)
    raise UndecidedError(f"cycle time: policy iteration did not settle within {MAX_ITERATIONS} iterations")


def _improve(
    stages: list[Stage], compute: Floats, means: Floats, values: Floats, sync: Sync
) -> tuple[Whole, Floats, Flags]:
    """Improve the policy: in each round of a period a cell (group) waits for the member with the largest (mean, value).

    `means` and `values` are those of the states (`_howard`). Returns, for every state at the period's end, the state at
    its start to which its path leads back, the seconds in between, and whether they are strictly later than before.
    """
    potential = _Potential(_levels(means), values)
    blocks = np.split(np.arange(len(means)), len(means) // len(compute))
    states = [_Ways(block, np.zeros(len(compute))) for block in blocks]
    for stage in stages:
        states = _forward(stage, compute, states, potential, sync)
    origin, weight = states[0] if len(states) == 1 else map(np.concatenate, zip(*states, strict=True))
    if not np.isfinite(means).all():
        return origin, weight, np.ones(len(means), dtype=bool)
    scale = max(1e-300, float(np.abs(weight).max()))
    raised = means[origin] > means + TOLERANCE * scale
    grown = values[origin] + weight - means > values + TOLERANCE * scale
    level = means[origin] >= means - TOLERANCE * scale
    return origin, weight, raised | (level & grown)


def _forward(stage: Stage, compute: Floats, states: list[_Ways], potential: _Potential, sync: Sync) -> list[_Ways]:
    """Advance paths of waits (`_Ways`) by one round, by the equations in `topo.timing.stages`.

    `states` holds the paths of the workers, then those of each operation in flight; `compute` the seconds per round;
    `potential` decides which of two paths arrives later.
    """
    now, *under_way = states
    before: float | Floats = 0.0
    for turn in stage.turns:
        now, before = _Ways(now.origin, now.weight + compute * (turn.at - before)), turn.at
        if turn.is_awaited:
            now = potential.later(now, under_way.pop(0))
            continue
        begin = potential.ready(stage, potential.later(now, under_way[-1]) if under_way else now)
        under_way.append(_Ways(begin.origin, begin.weight + stage.duration(turn.seconds)))
    if stage.turns:
        return [now, *under_way]
    computed = _Ways(now.origin, now.weight + compute)
    sent = computed if stage.segments is None else _Ways(now.origin, now.weight + stage.before(compute))
    if under_way:  # the operation begins after the newest one, and the round ends with the oldest
        newest = _Ways(under_way[0].origin, under_way[0].weight + stage.duration())
        sent = potential.later(_Ways(sent.origin, sent.weight + stage.after()), newest)
        return [potential.later(computed, under_way[-1]), potential.ready(stage, sent), *under_way[:-1]]
    begin = potential.ready(stage, now if sync.lag else sent)
    end = _Ways(begin.origin, begin.weight + (stage.duration() if sync.lag else stage.after()))
    return [potential.later(computed, end) if sync.lag else end]


def _levels(means: Floats) -> Whole:
    """Return the rank of each mean, from 0 for the smallest; means that differ only by rounding have one rank.

    With different ranks, two cycles of equal mean would alternate as the larger one, and the iteration would never
    settle.
    """
    order = np.argsort(means, kind="stable")
    if not np.isfinite(means[order[0]]):
        return np.zeros(len(means), dtype=np.int64)  # no mean is known before the first iteration
    place = np.zeros(len(means), dtype=np.int64)
    place[order[1:]] = np.cumsum(np.diff(means[order]) > TOLERANCE * float(np.abs(means).max()))
    return place


def _largest(stage: Stage, rank: Whole, value: Floats) -> Whole:
    """Return, for each cell, the worker of largest (rank, value) for which it waits, the first of equal ones.

    `rank` and `value` are (num_workers,), the result (cells,).
    """
    if not len(stage.seconds):
        return np.zeros(0, dtype=np.int64)
    sources, starts = stage.sources, stage.offsets[:-1]
    cell = np.repeat(np.arange(len(starts)), stage.offsets[1:] - starts)
    top = np.maximum.reduceat(rank[sources], starts)
    candidate = np.where(rank[sources] == top[cell], value[sources], -np.inf)
    best = np.maximum.reduceat(candidate, starts)
    position = np.where(candidate == best[cell], np.arange(len(sources)), len(sources))
    return sources[np.minimum.reduceat(position, starts)]


def _evaluate(origin: Whole, weight: Floats) -> tuple[Floats, Floats]:
    """Return, for each state, the mean seconds per period of its cycle, and the seconds by which it is later (bias).

    State i leads back to state `origin[i]`, `weight[i]` seconds earlier, and so finally into a cycle. O(n).
    """
    count = len(origin)
    if (origin[origin] == origin).all():  # all cycles have length 1
        means = weight[origin]
        return means, np.where(origin == np.arange(count), 0.0, weight - means)
    means, values = np.zeros(count), np.zeros(count)
    state = np.zeros(count, dtype=np.int8)
    back, cost = origin.tolist(), weight.tolist()
    for start in range(count):
        path = []
        node = start
        while state[node] == 0:
            state[node] = 1
            path.append(node)
            node = back[node]
        if state[node] == 1:
            cycle = path[path.index(node) :]
            means[cycle] = sum(cost[member] for member in cycle) / len(cycle)
            values[node] = 0.0
            state[node] = 2
        for member in reversed(path):
            if state[member] == 1:
                before = back[member]
                means[member] = means[before]
                values[member] = cost[member] - means[member] + values[before]
                state[member] = 2
    return means, values


def _cycle_of(origin: Whole, start: int) -> list[int]:
    seen: dict[int, int] = {}
    node = start
    while node not in seen:
        seen[node] = len(seen)
        node = int(origin[node])
    return [member for member, place in seen.items() if place >= seen[node]]
