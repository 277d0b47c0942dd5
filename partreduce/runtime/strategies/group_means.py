"""Strategies `static` and `allreduce` on parameters: each round ends with the mean over a group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.commit import commit_delayed, commit_mean, rescale_progress
from partreduce.runtime.averaging.piggybacked import commit_piggybacked, snapshot_piggybacked
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.averaging.reference import Reference
from partreduce.runtime.elastic.generations import Generations
from partreduce.runtime.strategies.base import ADDS_PROGRESS, ParameterRunner, Run
from partreduce.topo.phase import Group
from partreduce.topo.strategies.base import Averaging

INSIDE = "inside"
"""What the names of tensors begin with that only a checkpoint inside a round holds."""


class GroupMeans(ParameterRunner):
    """x ← x + relaxation · (mean − x) over `schedule.group_of(rank, round)` after the last step of each round.

    With overlap the mean is that of snapshots taken when the round began, and it runs while the round computes:
    x_{k+1} = W_k x_k + u_k(x_k). With step-normalized averaging a member's progress of the round is first multiplied by
    the members' mean steps per round and divided by its own. Snapshots cost one more copy of the parameters for each of
    the two, and a checkpoint inside a round holds one of where the round began, and with delay one of the sums in
    flight.
    """

    saves_inside_rounds = True

    def __init__(self, run: Run, *, averaging: Averaging, is_delayed: bool) -> None:
        super().__init__(run)
        self.is_delayed, self.normalizes = is_delayed, averaging is Averaging.STEP_NORMALIZED
        self.needs_round_start = self.is_delayed or self.normalizes
        self._snapshots: list[torch.Tensor] = []
        self._starts: list[torch.Tensor] = []
        self._piggybacked: list[list[torch.Tensor | None]] = []
        self.name = "average"
        """What reports call its operations."""
        self._pending: Reduction | None = None
        self._waited = False
        self._started = -1
        self._is_inside = False

    def begin(self, step: int, round_: int, *, first: bool) -> None:
        """Remember where the round began; in the very first round also start its operation."""
        self.are_equal, self._is_inside = False, True
        if first and self._started < round_:
            self._begin_round(step, round_)

    def end_round(self, step: int, round_: int) -> int:
        """Run or complete the round's group operation and commit it."""
        if self._started < round_:
            self._begin_round(step, round_)
        self._is_inside = False
        group = self._group(round_)
        if self.normalizes and group is not None:
            self._normalize(group)
        if self.is_delayed:
            self._commit_delayed(group)
            self._begin_round(step, round_ + 1)
        elif (generations := self.run.generations) is not None:
            self.carry_out(generations, step, round_, round_)
        elif group is not None:
            self.send(step, round_)
            self.merge()
            self.are_equal = self._makes_equal(group)
        return 0

    def carry_out(self, generations: Generations, step: int, round_: int, turn: int) -> None:
        """The operation of a synchronous turn, with those that are left."""
        generations.carry_out(
            turn,
            lambda group: [(self.run.reducer, self._start_sum(step, round_, group))],
            lambda _, reduction: self._commit(reduction),
            lambda: self._average_alone(round_),
        )

    def send(self, step: int, round_: int, *, early: bool = False) -> None:
        """Start the operation of a synchronous round; where that is `early`, steps are taken until it is merged."""
        group = self._group(round_)
        if group is None:
            return
        self._piggybacked = [snapshot_piggybacked(bucket) for bucket in self.run.reducer.buckets] if early else []
        self._pending, self._waited = self._start_sum(step, round_, group), False

    def merge(self) -> None:
        """Complete and commit the operation that is in flight, if one is."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if not self._waited:
            self.run.reducer.wait(pending)
        self._commit(pending)

    @property
    def is_sent(self) -> bool:
        """Whether an operation is in flight."""
        return self._pending is not None

    def flight(self) -> dict[str, torch.Tensor]:
        """What `take_up` needs of the operation in flight, whose sums are waited for; empty where there is none."""
        if self._pending is None:
            return {}
        self.settle()
        operation = self._pending.operation
        return self._told(operation.step, operation.round, self._pending.arrays)

    def _told(self, step: int, round_: int, arrays: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """An operation in flight by the names that it has in a file."""
        buckets = self.run.reducer.buckets
        sums = {f"sums/{i}": array[: buckets[i].length] for i, array in enumerate(arrays)}
        before = {
            f"before/{i}/{place}": value
            for i, values in enumerate(self._piggybacked)
            for place, value in enumerate(values)
            if value is not None
        }
        return sums | before | {"place": torch.tensor([step, round_])}

    def take_up(self, flight: dict[str, torch.Tensor]) -> None:
        """Go on with the operation of which `flight` told."""
        step, round_ = map(int, flight["place"])
        group, buckets = self._group(round_), self.run.reducer.buckets
        assert group is not None, "asked of workers that have one"
        sums = [flight[f"sums/{i}"] for i in range(len(buckets))]
        self._pending = self.run.reducer.arrived(
            self.name, step, round_, group, sums, lag=int(self.is_delayed), since=self._since(group)
        )
        self._waited = True
        self._piggybacked = [
            [flight.get(f"before/{i}/{place}") for place in range(len(bucket.piggybacked))]
            for i, bucket in enumerate(buckets)
        ]

    def settle(self) -> None:
        """Wait for the operation in flight, which keeps its sums for the end of the round."""
        if self._pending is not None and not self._waited:
            self.run.reducer.wait(self._pending)
            self._waited = True
        self.run.reducer.flush()

    def drain(self) -> str:
        """Wait for the operation in flight and drop it: every member started it, none commits it.

        The next round begins with the parameters that its first step finds, also if it is an earlier one than the last.
        """
        self.settle()
        if self._pending is not None:
            self._pending.release()
        self._pending = None
        self._started = -1
        self._is_inside = False
        return ""

    def harm_of_loading(self, round_: int, *, first: bool) -> str:
        """Where a round is measured from its beginning, and has begun."""
        is_measured = self.is_delayed or (self.normalizes and not first)
        return ADDS_PROGRESS if is_measured and self._started >= round_ else ""

    def state(self) -> dict[str, torch.Tensor]:
        """Where the round began, and what is in flight since, inside one whose end depends on it."""
        if not (self._is_inside and self.needs_round_start):
            return {}
        starts = self._snapshots if self.is_delayed else self._starts
        named = {f"start/{index}": start for index, start in enumerate(starts)} | self.flight()
        return {f"{INSIDE}/{name}": tensor for name, tensor in named.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if not all(name.startswith(INSIDE) for name in state):
            super().load_state(state)
        buckets = self.run.reducer.buckets
        named = {name.removeprefix(f"{INSIDE}/"): tensor.to(buckets[0].device) for name, tensor in state.items()}
        starts = [named.pop(f"start/{index}").clone() for index in range(len(buckets))]
        if self.is_delayed:
            self._snapshots = starts
        else:
            self._starts = starts
        if named:
            self.take_up(named)
        self._is_inside = True

    def resume(self, step: int, round_: int) -> None:
        """Inside a round everything is loaded; else start the operation that was in flight when it was saved."""
        if self._is_inside:
            self._started = round_
        elif self.is_delayed:
            self._begin_round(step, round_)

    def _group(self, round_: int) -> Group | None:
        """The workers that this one averages with in a round."""
        return self.run.schedule.group_of(self.run.rank, round_)

    def _begin_round(self, step: int, round_: int) -> None:
        self._started = round_
        buckets = self.run.reducer.buckets
        if self.normalizes and not self.is_delayed:
            self._starts = _copy_to(self._starts, [bucket.flat for bucket in buckets])
        if not self.is_delayed:
            return
        with torch.no_grad():
            self._snapshots = _copy_to(self._snapshots, [bucket.flat for bucket in buckets])
        self._begin_late(step, round_)

    def _begin_late(self, step: int, round_: int) -> None:
        """Start the operation of the snapshots, which the end of the round commits."""
        group = self._group(round_)
        if group is not None:
            self._piggybacked = [snapshot_piggybacked(bucket) for bucket in self.run.reducer.buckets]
            self._pending = self._start_sum(step, round_, group)
            self._waited = False

    def _start_sum(self, step: int, round_: int, group: Group) -> Reduction:
        return self.run.reducer.begin(self.name, step, round_, group, lag=int(self.is_delayed))

    def _since(self, group: Group) -> Reference | None:  # noqa: ARG002 - for those that have one
        """The reference from which a group's operation is measured."""
        return None

    def _average_alone(self, round_: int) -> None:
        """The end of a round of which this worker, the only one left, is all: its model is the mean."""

    def _receive(self, index: int, sums: torch.Tensor, reduction: Reduction) -> None:
        """Called with the sums of one bucket that have arrived, before their commit."""

    def _makes_equal(self, group: Group) -> bool:
        """Whether all workers hold the same model after this group's operation, buffers included."""
        everyone = len(group.members) == len(self.others.members)
        return everyone and group.relaxation == 1 and not self.run.flat.keeps_buffers

    def _mean_steps_per_round(self, group: Group) -> float:
        """The steps per round that everybody's progress is brought to."""
        worker_steps = [self.run.schedule.steps_per_round_of(member) for member in group.members]
        return sum(worker_steps) / len(worker_steps)

    def _normalize(self, group: Group) -> None:
        factor = self._mean_steps_per_round(group) / self.run.steps_per_round
        if factor != 1.0:
            starts = self._snapshots if self.is_delayed else self._starts
            for bucket, start in zip(self.run.reducer.buckets, starts, strict=True):
                rescale_progress(bucket, start, factor)

    def _commit(self, reduction: Reduction) -> None:
        relaxation = float(reduction.group.relaxation)

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            self._receive(index, sums, reduction)
            commit_piggybacked(bucket, sums, ok, self._piggybacked[index] if self._piggybacked else None)
            commit_mean(bucket, sums, relaxation, ok, swap=True)

        self.run.reducer.commit(reduction, commit)

    def _commit_delayed(self, group: Group | None) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            assert group is None, "a round with a group started its operation when it began"
            return
        if not self._waited:
            self.run.reducer.wait(pending)
        self._put_late(pending)

    def _put_late(self, reduction: Reduction) -> None:
        relaxation = float(reduction.group.relaxation)

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            self._receive(index, sums, reduction)
            commit_delayed(bucket, sums, self._snapshots[index], relaxation, ok)
            commit_piggybacked(bucket, sums, ok, self._piggybacked[index])

        self.run.reducer.commit(reduction, commit)


def _copy_to(old: list[torch.Tensor], new: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of `new`, in the memory of `old` where there is any."""
    if not old:
        return [tensor.clone() for tensor in new]
    for target, source in zip(old, new, strict=True):
        target.copy_(source)
    return old
