"""The models that workers of a continuing run must hold: means over all members, turn by turn, and nothing else.

Each worker records the views that it knows: the members from which turn on (a turn is a round, or that of one
fragment). All must know the same views, as far as they know any, since two views that average at one time would differ.
The run is computed again from the views alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.faults.kinds import WORKERS, Kind, means
from benchmarks.faults.running import Record
from partreduce.topo.strategies.axes import Codec

Values = npt.NDArray[np.float64]
Records = dict[int, list[Record]]
Views = list[tuple[int, tuple[int, ...]]]
TOLERANCE = 2e-3
"""Tolerance of a value; one member too many or too few changes it by at least a sixteenth."""


def same(a: Values, b: Values) -> bool:
    return bool(np.all(np.abs(a - b) <= TOLERANCE + 1e-5 * np.abs(b)))


def values_of(record: Record) -> Values:
    """Return how much of each worker is in the parameters, shape (workers,)."""
    return np.array([low for low, _ in record.rows[:WORKERS]])


def views_of(records: Records) -> tuple[Views, list[str]]:
    """Return the views of the worker that knows most, and sentences on workers with different ones."""
    known = [
        (rank, record.step, [(int(after), tuple(members)) for after, members in record.more])
        for rank, listed in records.items()
        for record in listed
        if record.what == "leaves" and record.more  # else it ends with the first loss
    ]
    longest = max((views for _, _, views in known), key=len, default=[(-1, tuple(range(WORKERS)))])
    problems = [
        f"mixed generations: worker {rank} in step {step} has the views {views}, others {longest}"
        for rank, step, views in known
        if views != longest[: len(views)]
    ]
    return longest, problems[:2]


def joins_in(views: Views) -> int:
    return sum(len(set(after[1]) - set(before[1])) for before, after in itertools.pairwise(views))


@dataclass
class Replay:
    """The run computed again, step by step; x[worker] is the worker's model."""

    kind: Kind
    views: Views
    x: Values = field(default_factory=lambda: np.zeros((WORKERS, WORKERS)))
    since: dict[int, int] = field(default_factory=dict)
    """The first step of each member that joined."""
    outer_params: Values = field(default_factory=lambda: np.zeros((WORKERS, WORKERS)))
    momentum: Values = field(default_factory=lambda: np.zeros((WORKERS, WORKERS)))
    past: list[Values] = field(default_factory=list)
    """All workers' models after each step."""

    def members(self, step: int) -> tuple[int, ...]:
        """Return the members of the next turn after a step."""
        return _members(self.views, self.kind.turn_of(step))

    def present(self, step: int) -> list[int]:
        """Return all members of some part of a turn; a failed one may have given its state to one that joined."""
        turn = self.kind.turn_of(step)
        views = [members for after, members in self.views if after == turn] or [self.members(step)]
        return sorted(set().union(*views))

    def step(self, step: int, joined: dict[int, Values]) -> None:
        """Compute one step of all members; `joined` maps workers that join in it to their initial values.

        Outer steps are those of DiLoCo's Algorithm 1 (arXiv 2311.08105), from each worker's outer parameters, which may
        be equal for all; a plain mean is one at rate 1. Merged late (arXiv 2501.18512): the average is of models
        `late_steps` old, and `kept` is the weight of a worker's own. A fragment's rows have their turn when its share
        of the round's steps is done, if they were sent by then.
        """
        members = list(self.members(step))
        if self.kind.gradients:
            self.since.update(dict.fromkeys(joined, step))
            self.x += self._mean(step - self.kind.lag, self.members(step))
            return
        starts, own = self.x.copy(), np.eye(WORKERS)
        present = self.present(step)
        self.x[present] += own[present]
        held = {rank: start + own[rank] for rank, start in enumerate(starts)}
        for worker, begun in sorted(joined.items(), key=lambda one: one[1].sum()):  # who has another joiner's is later
            self.x[worker] = held[worker] = begun + own[worker]
            donor = next((other for other, x in held.items() if other != worker and same(x, begun)), worker)
            for held_too in (starts, self.outer_params, self.momentum, *self.past):
                held_too[worker] = held_too[donor]
        w = self._matrix(step, members)
        if self.kind.late:
            self.x[members] += (w @ starts - starts)[members]
            return
        strategy, kept = self.kind.strategy, self.kind.kept
        late, outer = strategy.sync.late_steps, strategy.payload.outer
        if step >= late:
            due = np.ix_(members, self.kind.is_due(step))
            sent = self.past[-late] if late else self.x
            movement = (w @ sent)[due] - self.outer_params[due]
            self.momentum[due] = momentum = float(outer.momentum) * self.momentum[due] + movement
            ahead = movement + float(outer.momentum) * momentum if outer.nesterov else momentum
            self.outer_params[due] += float(outer.lr) * ahead
            self.x[due] = kept * self.x[due] + (1 - kept) * self.outer_params[due]
        self.past.append(self.x.copy())

    def _matrix(self, step: int, members: list[int]) -> Values:
        """Return W of a step: the kind's own if all workers are members, else the mean of the members."""
        if len(members) < WORKERS or self.kind.rounds is None:
            return means([members])
        return self.kind.rounds[step // self.kind.steps_a_round % len(self.kind.rounds)]

    def ends(self, step: int) -> list[Values]:
        """Return the possible final models after so many steps; late gradients are applied by the last members."""
        last = [members for after, members in self.views if after == self.kind.turn_of(step)]
        mean = self.x[list(self.members(step))].mean(axis=0)
        if not self.kind.lag:
            return [mean]
        late = range(step - self.kind.lag, step)
        return [mean + sum(self._mean(one, members) for one in late) for members in (self.members(step - 1), *last)]

    def _mean(self, step: int, members: tuple[int, ...]) -> Values:
        """Return what the mean gradient of a step adds: that of the members that took the step; zero if none did."""
        givers = [member for member in members if self.since.get(member, 0) <= step]
        if step < 0 or not givers:
            return np.zeros(WORKERS)
        return _share(self.kind, len(givers)) * np.isin(np.arange(WORKERS), givers)


def states(kind: Kind, steps: int) -> Values:
    """Return each worker's model after each step of a run without faults, shape (steps + 1, workers, rows)."""
    replay, found = Replay(kind, [(-1, tuple(range(WORKERS)))]), [np.zeros((WORKERS, WORKERS))]
    for step in range(steps):
        replay.step(step, {})
        found.append(replay.x.copy())
    return np.array(found)


def _members(views: Views, turn: int) -> tuple[int, ...]:
    return next(members for after, members in reversed(views) if after <= turn)


def _share(kind: Kind, members: int) -> float:
    """Return the weight of one gradient in a mean, as the codec rounds it."""
    if kind.strategy.transport.codec is not Codec.BFLOAT16 or members == 1:
        return 1 / members
    bits = np.float32(1 / members).view(np.uint32)
    return float(((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32))


def judge(kind: Kind, records: Records) -> list[str]:
    """Return sentences on records that differ from a replay of the views that all workers know."""
    views, problems = views_of(records)
    processes = [(rank, part) for rank, listed in records.items() for part in _processes(listed)]
    begun = _joins(kind, views, processes)
    replay = Replay(kind, views)
    last, own = max((record.step for listed in records.values() for record in listed), default=0), np.eye(WORKERS)
    for step in range(last + 1):
        before, ends = replay.x.copy(), replay.ends(step)
        donors = {rank: values for (rank, at), values in begun.items() if at == step}
        replay.step(step, donors)
        states = {"enters": before, "finishes": before, "leaves": replay.x}
        for rank, listed in processes:
            first = _first_entered(listed)
            for record in (record for record in listed if record.step == step):
                if _is_behind(kind, views, rank, record):
                    continue
                if record.what == "finished":
                    expected = next((end for end in ends if same(values_of(record), end)), ends[-1])
                elif record.what in states:
                    expected = states[record.what][rank]
                else:
                    continue
                joined = record is first and rank in donors and np.array_equal(values_of(record), donors[rank])
                if joined and not kind.gradients:
                    # It has the state of one that had taken this step, and waited for the mean; who gave it may have
                    # joined in this step itself.
                    may = [*before + own, *(values + own[w] for w, values in donors.items() if w != rank)]
                    if not any(same(values_of(record), one) for one in may):
                        problems.append(f"worker {rank} joined step {step} with {values_of(record)}, which no one had")
                elif not same(values_of(record), expected):
                    problems.append(
                        f"worker {rank} {record.what} step {step} with {values_of(record)}, not {expected}; {views}"
                    )
    return problems


def _processes(listed: list[Record]) -> list[list[Record]]:
    """Return a worker's records by process."""
    parts: list[list[Record]] = []
    for record in listed:
        if record.what == "begins":
            parts.append([])
        if parts:
            parts[-1].append(record)
    return parts


def _joins(kind: Kind, views: Views, processes: list[tuple[int, list[Record]]]) -> dict[tuple[int, int], Values]:
    """Return the initial values of joining workers that average, by (rank, step)."""
    found: dict[tuple[int, int], Values] = {}
    ranks: set[int] = set()
    for rank, listed in processes:
        first, again = _first_entered(listed), rank in ranks
        ranks.add(rank)
        if first is None or _is_behind(kind, views, rank, first):
            continue
        if first.step or (again and values_of(first).any()):  # in the first step its donor has taken its own
            found[rank, first.step] = values_of(first)
    return found


def _first_entered(process: list[Record]) -> Record | None:
    return next((record for record in process if record.what == "enters"), None)


def _is_behind(kind: Kind, views: Views, rank: int, record: Record) -> bool:
    """Return whether a record is of a turn in which its worker was no member."""
    return rank not in _members(views, kind.turn_of(record.step))
