"""Strategy `allreduce` at pace 1: gradients are averaged over all workers before the step, which equals DDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.commit import replace_where
from preduce.runtime.averaging.gradients import commit_gradients
from preduce.runtime.averaging.riders import commit_riders
from preduce.runtime.codecs.coding import Codings
from preduce.runtime.strategies.base import Runner
from preduce.runtime.strategies.group_means import means_of_groups
from preduce.topo.errors import MissingFeatureError

if TYPE_CHECKING:
    from preduce.runtime.averaging.bucket import Bucket
    from preduce.runtime.strategies.base import Run
    from preduce.topo.strategies.allreduce import AllReduce


class GradientMeans(Runner):
    """Every worker steps with the mean gradient, so that all stay equal, for every optimizer.

    Nothing is ever in flight between steps.
    """

    averages_gradients = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._before: list[torch.Tensor] = []
        self._ok: torch.Tensor | None = None
        self._codings = Codings.of(run.schedule.strategy.how, len(run.flat.buckets))

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Replace the gradients by their means over all workers."""
        assert first, "gradients are averaged in each step"
        group = self.run.schedule.group_of(self.run.rank, round_)
        assert group is not None, "all-reduce has every worker in its group"
        reducer = self.run.reducer
        codings = None if self._codings is None else self._codings.in_round(round_)
        reduction = reducer.begin("gradient average", step, round_, group, gradients=True, codings=codings)
        reducer.wait(reduction)

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            commit_gradients(bucket, sums, ok, reduction.absent[index])
            commit_riders(bucket, sums, ok)

        reducer.commit(reduction, commit)
        self._ok = reduction.ok
        if self._ok is not None:
            self._remember()

    def end_round(self, step: int, round_: int) -> None:  # noqa: ARG002 - the signature of all
        """Undo the step where the device found that the gradients are no means; on CPU nothing is left to do.

        Without this even gradients of zero would let momentum and weight decay move the parameters.
        """
        if self._ok is None:
            return
        undo = ~self._ok
        with torch.no_grad():
            for bucket, before in zip(self.run.flat.buckets, self._before, strict=True):
                replace_where(bucket.flat, before, undo)
        self._ok = None

    def settle(self) -> None:
        """Hear the device's verdicts."""
        self.run.reducer.flush()

    def drain(self) -> None:
        """As `settle`; what roundings left over belongs to parameters that the run may not go on from."""
        self.settle()
        if self._codings is not None:
            self._codings.clear()

    def state(self) -> dict[str, torch.Tensor]:
        """What roundings left over, with error feedback."""
        return {} if self._codings is None else self._codings.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave.

        Raises:
            InputError: this run feeds no errors back.
        """
        if not self.state():
            super().load_state(state)
        elif self._codings is not None:
            self._codings.load_state(state)

    def _remember(self) -> None:
        """Keep the parameters, until the step is known to be right."""
        with torch.no_grad():
            if not self._before:
                self._before = [torch.empty_like(bucket.flat) for bucket in self.run.flat.buckets]
            for before, bucket in zip(self._before, self.run.flat.buckets, strict=True):
                before.copy_(bucket.flat)


def all_reduce(strategy: AllReduce, run: Run) -> Runner:
    """The runner of all-reduce: of gradients in each step, of parameters otherwise.

    Raises:
        MissingFeatureError: the gradients come late.
    """
    if strategy.when.delays_gradients:
        raise MissingFeatureError(f"schedule {run.schedule.name!r}: a pipeline cannot be executed by this version")
    return GradientMeans(run) if strategy.averages_gradients else means_of_groups(strategy, run)
