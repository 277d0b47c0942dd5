"""Strategy `allreduce` at pace 1: gradients are averaged over all workers before the step, which equals DDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.commit import commit_gradients, commit_riders

if TYPE_CHECKING:
    from preduce.runtime.strategies.base import Run


class GradientMeans:
    """Every worker steps with the mean gradient, so that all stay equal, for every optimizer."""

    averages_gradients = True

    def __init__(self, run: Run) -> None:
        self.run = run

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Replace the gradients by their means over all workers."""
        assert first, "gradients are averaged in each step"
        group = self.run.schedule.group_of(self.run.rank, round_)
        assert group is not None, "all-reduce has every worker in its group"
        reducer = self.run.reducer
        reduction = reducer.begin("gradient average", step, round_, group, gradients=True)
        reducer.wait(reduction)
        with torch.no_grad():
            for lane in self.run.flat.lanes:
                with reducer.stream(lane.device):
                    commit_gradients(lane, reduction.ok)
                    commit_riders(lane, reduction.ok)
        reducer.rejoin()

    def end_round(self, step: int, round_: int) -> None:
        """Nothing is left to do after the step."""

    def settle(self) -> None:
        """Nothing is ever in flight between steps."""

    def drain(self) -> None:
        """Nothing is ever in flight between steps."""

    def resume(self, step: int, round_: int) -> None:
        """Nothing was in flight."""

    def close(self) -> None:
        """Nothing runs beside the training loop."""
