"""Strategy `allreduce` at pace 1 in lockstep: gradients are averaged over all workers before the step, as DDP does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.runtime.averaging.gradients import commit_gradients
from preduce.runtime.averaging.riders import commit_riders
from preduce.runtime.strategies.base import Runner

if TYPE_CHECKING:
    import torch

    from preduce.runtime.averaging.bucket import Bucket
    from preduce.runtime.strategies.base import Run


class GradientMeans(Runner):
    """Every worker steps with the mean gradient, so that all stay equal, for every optimizer.

    Nothing is ever in flight between steps. With a `divisor` of 1 the step is taken with the sum instead.
    """

    averages_gradients = True

    def __init__(self, run: Run, *, divisor: int | None = None) -> None:
        super().__init__(run)
        self._divisor = divisor

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Replace the gradients by their means over all workers."""
        assert first, "gradients are averaged in each step"
        group = self.run.schedule.group_of(self.run.rank, round_)
        assert group is not None, "all-reduce has every worker in its group"
        reducer = self.run.reducer
        reduction = reducer.begin("gradient average", step, round_, group, gradients=True, divisor=self._divisor)
        reducer.wait(reduction)

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            commit_gradients(bucket, sums, ok, reduction.absent[index])
            commit_riders(bucket, sums, ok)

        reducer.commit(reduction, commit)
        self.run.applier.remember(reduction.ok)

    def end_round(self, step: int, round_: int) -> None:  # noqa: ARG002 - the signature of all
        """Undo the step where the device found that the gradients are no means; on CPU nothing is left to do."""
        self.run.applier.undo()

    def settle(self) -> None:
        """Hear the device's verdicts."""
        self.run.reducer.flush()

    def drain(self) -> None:
        """As `settle`."""
        self.settle()
