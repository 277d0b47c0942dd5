"""What workers of a run that continues must hold: the means over all who were members, turn by turn, and nothing else.

Each worker writes down the views that it knows: who is a member from which turn on (a round, or one of its fragments'
turns). All must know the same, as far as they know any: two views that average at one time would differ there. From
them alone the run is computed again.
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
"""Of a value; a member too many or too few changes it by at least a sixteenth."""


def same(a: Values, b: Values) -> bool:
    return bool(np.all(np.abs(a - b) <= TOLERANCE + 1e-5 * np.abs(b)))


def values_of(record: Record) -> Values:
    """(workers,): how much of each worker is in the parameters."""
    return np.array([low for low, _ in record.rows[:WORKERS]])


def views_of(records: Records) -> tuple[Views, list[str]]:
    """The views, as the one that knows most of them has them, and where others have different ones."""
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
    """The run computed again, step by step; x[worker] is what it holds."""

    kind: Kind
    views: Views
    x: Values = field(default_factory=lambda: np.zeros((WORKERS, WORKERS)))
    since: dict[int, int] = field(default_factory=dict)
    """With which step a member began that has joined."""
    outer_params: Values = field(default_factory=lambda: np.zeros((WORKERS, WORKERS)))
    momentum: Values = field(default_factory=lambda: np.zeros((WORKERS, WORKERS)))
    past: list[Values] = field(default_factory=list)
    """What all held after each step."""

    def members(self, step: int) -> tuple[int, ...]:
        """Who takes part in what comes next when a step is taken."""
        return _members(self.views, self.kind.turn_of(step))

    def present(self, step: int) -> list[int]:
        """Who was a member in some part of a turn; who failed in it may have given its state to one that joined."""
        turn = self.kind.turn_of(step)
        views = [members for after, members in self.views if after == turn] or [self.members(step)]
        return sorted(set().union(*views))

    def step(self, step: int, joined: dict[int, Values]) -> None:
        """One step of all members; who has `joined` in it began it with these values.

        Outer steps are those of DiLoCo's Algorithm 1 (arXiv 2311.08105), from each worker's outer parameters, which may
        be the same for all; a plain mean is one at rate 1. Merged late (arXiv 2501.18512): what is averaged is
        `late_steps` old, and `kept` of each worker's own stays. Rows of a fragment have their turn when its share of
        the round's steps is done, if it was sent by then.
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
        late, kept, outer = self.kind.late_steps, self.kind.kept, self.kind.outer
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
        """W of a step: the kind's own while all are members, then the mean of those who are."""
        if len(members) < WORKERS or self.kind.rounds is None:
            return means([members])
        return self.kind.rounds[step // self.kind.steps_a_round % len(self.kind.rounds)]

    def ends(self, step: int) -> list[Values]:
        """What all may finish with after so many steps: what is late then is applied by those who were left by then."""
        last = [members for after, members in self.views if after == self.kind.turn_of(step)]
        mean = self.x[list(self.members(step))].mean(axis=0)
        if not self.kind.lag:
            return [mean]
        late = range(step - self.kind.lag, step)
        return [mean + sum(self._mean(one, members) for one in late) for members in (self.members(step - 1), *last)]

    def _mean(self, step: int, members: tuple[int, ...]) -> Values:
        """What these add by the mean gradient of a step: those of them who took it; nothing where no one had begun."""
        givers = [member for member in members if self.since.get(member, 0) <= step]
        if step < 0 or not givers:
            return np.zeros(WORKERS)
        return _share(self.kind, len(givers)) * np.isin(np.arange(WORKERS), givers)


def states(kind: Kind, steps: int) -> Values:
    """(steps + 1, workers, rows): what each worker holds after so many steps of a run without faults."""
    replay, found = Replay(kind, [(-1, tuple(range(WORKERS)))]), [np.zeros((WORKERS, WORKERS))]
    for step in range(steps):
        replay.step(step, {})
        found.append(replay.x.copy())
    return np.array(found)


def _members(views: Views, turn: int) -> tuple[int, ...]:
    return next(members for after, members in reversed(views) if after <= turn)


def _share(kind: Kind, members: int) -> float:
    """What of one gradient is in a mean, rounded as it travels."""
    if kind.strategy.transport.codec is not Codec.BFLOAT16 or members == 1:
        return 1 / members
    bits = np.float32(1 / members).view(np.uint32)
    return float(((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32))


def judge(kind: Kind, records: Records) -> list[str]:
    """Everybody's records are those of a replay of the views that everybody knows."""
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
    """A worker's records, those of each of its processes by themselves."""
    parts: list[list[Record]] = []
    for record in listed:
        if record.what == "begins":
            parts.append([])
        if parts:
            parts[-1].append(record)
    return parts


def _joins(kind: Kind, views: Views, processes: list[tuple[int, list[Record]]]) -> dict[tuple[int, int], Values]:
    """With what each joiner began, by rank and step, where it continued to average."""
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
    """Whether a record is of a turn in which its worker was no member: no one continues from what it did alone."""
    return rank not in _members(views, kind.turn_of(record.step))
