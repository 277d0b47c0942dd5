"""Group means of parameters that come a round late, in a run that continues after failures.

What a group does or nobody in it does is the end of a round: to take what the mean was when the round began. Its sum is
begun there and dropped with the generation (see `elastic.sums_ahead`); then it is begun again from the snapshots, which
live until the round ends. Who joins has the snapshots of its donor, as it has its model.
"""

from __future__ import annotations

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.piggybacked import load_piggybacked, snapshot_piggybacked
from partreduce.runtime.elastic.sums_ahead import Sums
from partreduce.runtime.strategies.base import Run
from partreduce.runtime.strategies.group_means import INSIDE, GroupMeans
from partreduce.topo.phase import Group
from partreduce.topo.strategies.base import Averaging


class ElasticDelayedAverage(GroupMeans):
    """As `GroupMeans` with overlap."""

    def __init__(self, run: Run, *, averaging: Averaging) -> None:
        super().__init__(run, averaging=averaging, is_delayed=True)
        assert run.generations is not None, "as said"
        self._generations = run.generations

    def end_round(self, step: int, round_: int) -> int:
        """Commit the mean with which the round began, and begin the next."""
        if self._started < round_:
            self._begin_round(step, round_)
        self._is_inside = False
        self._generations.carry_out(
            round_,
            lambda group: self._begin_sum(round_, group),
            lambda _, reduction: self._put_late(reduction),
            ahead=round_,
        )
        self._begin_round(step, round_ + 1)
        return 0

    def connected(self) -> None:
        """All have dropped the sums of their rounds."""
        if self._started >= 0:
            self._begin_ahead(self._started)

    def settle(self) -> None:
        """What is in flight neither hinders a mean of all nor is changed by it."""
        self.run.reducer.flush()

    def drain(self) -> str:
        """Drop the operation in flight: every member does."""
        self._generations.drop_ahead()
        self._started, self._is_inside = -1, False
        return ""

    def state(self) -> dict[str, torch.Tensor]:
        """As `GroupMeans`; for who joins where the round began."""
        if self._generations.is_between:
            return {f"{INSIDE}/start/{index}": start for index, start in enumerate(self._snapshots)}
        return super().state()

    def flight(self) -> dict[str, torch.Tensor]:
        """As `GroupMeans`; the sums of a worker that is the only one left are its own."""
        round_, buckets = self._started, self.run.reducer.buckets
        group = self._generations.regrouping.group_of(round_)
        if group is None or self._generations.resumes > round_:
            return {}
        found = self._generations.arrived_ahead(round_, round_, lambda group: self._begin_sum(round_, group))
        if not found:
            self._piggybacked = [snapshot_piggybacked(bucket) for bucket in buckets]
        arrays = found[0][1].arrays if found else [self._own(*pair) for pair in enumerate(buckets)]
        return self._told(round_ * self.run.steps_per_round, round_, arrays)

    def take_up(self, flight: dict[str, torch.Tensor]) -> None:
        """The sums are begun again from the snapshots, by those that are there."""

    def resume(self, step: int, round_: int) -> None:
        super().resume(step, round_)
        if self._is_inside:
            self._begin_ahead(round_)

    def _begin_late(self, step: int, round_: int) -> None:  # noqa: ARG002 - who begins again knows the round alone
        self._begin_ahead(round_)

    def _begin_ahead(self, round_: int) -> None:
        self._generations.begin_ahead(round_, round_, lambda group: self._begin_sum(round_, group))

    def _begin_sum(self, round_: int, group: Group) -> Sums:
        """What rides along is as it is now."""
        reducer = self.run.reducer
        self._piggybacked = [snapshot_piggybacked(bucket) for bucket in reducer.buckets]
        step = round_ * self.run.steps_per_round
        return [(reducer, reducer.begin(self.name, step, round_, group, lag=1, values=self._snapshots))]

    def _own(self, index: int, bucket: Bucket) -> torch.Tensor:
        array = torch.zeros(bucket.array_length, dtype=bucket.dtype)
        array[: bucket.size] = self._snapshots[index][: bucket.size]
        load_piggybacked(bucket, array, 1, is_first=True, rank=self.run.rank)
        return array
