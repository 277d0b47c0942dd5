"""Strategies `static` and `allreduce` on parameters: each round ends with the mean over a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.commit import (
    commit_delayed,
    commit_mean,
    commit_riders,
    rescale_progress,
    snapshot_riders,
)
from preduce.topo.strategies.base import Averaging

if TYPE_CHECKING:
    from preduce.runtime.averaging.reducer import Reduction
    from preduce.runtime.strategies.base import Run
    from preduce.topo.phase import Group


class GroupMeans:
    """x ← x + relax · (mean − x) over `schedule.group_of(rank, round)` after the last step of each round.

    With overlap the mean is that of snapshots taken when the round began, and it runs while the round computes:
    x_{k+1} = W_k x_k + u_k(x_k). With step-normalised averaging a member's progress of the round is first multiplied by
    the members' mean pace and divided by its own. Snapshots cost one more copy of the parameters for each of the two.
    """

    averages_gradients = False

    def __init__(self, run: Run, *, overlap: bool) -> None:
        self.run, self.overlap = run, overlap
        strategy = run.schedule.strategy
        self.normalises = strategy.averaging is Averaging.STEP_NORMALISED
        self._snapshots: list[torch.Tensor] = []
        self._starts: list[torch.Tensor] = []
        self._riders: list[list[torch.Tensor | None]] = []
        self._pending: Reduction | None = None
        self._waited = False
        self._started = -1

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Remember where the round began; in the very first round also start its operation."""
        if first and self._started < round_:
            self._begin_round(step, round_)

    def end_round(self, step: int, round_: int) -> None:
        """Run or complete the round's group operation and commit it."""
        if self._started < round_:
            self._begin_round(step, round_)
        group = self._group(round_)
        if self.normalises and group is not None:
            self._normalise(group)
        if self.overlap:
            self._commit_delayed(group)
            self._begin_round(step, round_ + 1)
        elif group is not None:
            reduction = self.run.reducer.begin("average", step, round_, group)
            self.run.reducer.wait(reduction)
            self._commit(reduction)

    def settle(self) -> None:
        """Wait for the operation in flight; its sums move aside, so that the scratch arrays are free."""
        if self._pending is not None and not self._waited:
            self.run.reducer.wait(self._pending)
            self._waited = True
            for lane in self.run.flat.lanes:
                lane.put_aside()

    def drain(self) -> None:
        """Wait for the operation in flight and drop it: every member started it, none commits it."""
        self.settle()
        self._pending = None
        for lane in self.run.flat.lanes:
            lane.take_back()

    def resume(self, step: int, round_: int) -> None:
        """Start the operation that was in flight when a checkpoint was saved: from the buffers as they were then."""
        if self.overlap:
            self._begin_round(step, round_)

    def close(self) -> None:
        """Nothing runs beside the training loop."""

    def _group(self, round_: int) -> Group | None:
        """The workers that this one averages with in a round."""
        return self.run.schedule.group_of(self.run.rank, round_)

    def _begin_round(self, step: int, round_: int) -> None:
        self._started = round_
        lanes = self.run.flat.lanes
        if self.normalises and not self.overlap:
            self._starts = _copy_to(self._starts, [lane.flat for lane in lanes])
        if not self.overlap:
            return
        with torch.no_grad():
            self._snapshots = _copy_to(self._snapshots, [lane.flat for lane in lanes])
        group = self._group(round_)
        if group is not None:
            self._riders = [snapshot_riders(lane) for lane in lanes]
            self._pending = self.run.reducer.begin("average", step, round_, group)
            self._waited = False

    def _mean_pace(self, group: Group) -> float:
        """The pace that everybody's progress is brought to."""
        paces = [self.run.schedule.pace_of(member) for member in group.members]
        return sum(paces) / len(paces)

    def _normalise(self, group: Group) -> None:
        factor = self._mean_pace(group) / self.run.pace
        if factor != 1.0:
            starts = self._snapshots if self.overlap else self._starts
            for lane, start in zip(self.run.flat.lanes, starts, strict=True):
                rescale_progress(lane, start, factor)

    def _commit(self, reduction: Reduction) -> None:
        reducer, relax = self.run.reducer, float(reduction.group.relax)
        with torch.no_grad():
            for lane in self.run.flat.lanes:
                with reducer.stream(lane.device):
                    commit_riders(lane, reduction.ok)  # first: the next line may swap the arrays
                    commit_mean(lane, relax, reduction.ok, swap=True)
        reducer.rejoin()

    def _commit_delayed(self, group: Group | None) -> None:
        pending, reducer = self._pending, self.run.reducer
        self._pending = None
        if pending is None:
            assert group is None, "a round with a group started its operation when it began"
            return
        if self._waited:
            for lane in self.run.flat.lanes:
                lane.take_back()
        else:
            reducer.wait(pending)
        with torch.no_grad():
            for lane, snapshot, riders in zip(self.run.flat.lanes, self._snapshots, self._riders, strict=True):
                with reducer.stream(lane.device):
                    commit_delayed(lane, snapshot, float(pending.group.relax), pending.ok)
                    commit_riders(lane, pending.ok, riders)
        reducer.rejoin()


def _copy_to(old: list[torch.Tensor], new: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of `new`, in the memory of `old` where there is any."""
    if not old:
        return [tensor.clone() for tensor in new]
    for target, source in zip(old, new, strict=True):
        target.copy_(source)
    return old
