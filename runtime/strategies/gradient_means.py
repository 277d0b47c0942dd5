"""Strategy `allreduce` at pace 1 in lockstep: gradients are averaged over all workers before the step, as DDP does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.runtime.averaging.gradients import commit_gradients
from preduce.runtime.averaging.riders import commit_riders
from preduce.runtime.codecs.coding import Codings
from preduce.runtime.strategies.base import Runner

if TYPE_CHECKING:
    import torch

    from preduce.runtime.averaging.bucket import Bucket
    from preduce.runtime.averaging.reducer import Reduction
    from preduce.runtime.strategies.base import Run
    from preduce.topo.phase import Group

KIND = "gradient average"


class GradientMeans(Runner):
    """Every worker steps with the mean gradient, so that all stay equal, for every optimizer.

    Nothing is ever in flight between steps. With a `divisor` of 1 the step is taken with the sum instead.
    """

    averages_gradients = True

    def __init__(self, run: Run, *, divisor: int | None = None) -> None:
        super().__init__(run)
        self._divisor = divisor
        self._codings = Codings.of(run.schedule.strategy.how, len(run.flat.buckets))

    def group(self, round_: int) -> Group:
        """All workers."""
        group = self.run.schedule.group_of(self.run.rank, round_)
        assert group is not None, "all-reduce has every worker in its group"
        return group

    def send(self, step: int, round_: int) -> Reduction:
        """Start the sum of the gradients as they are.

        Raises:
            PeerLostError: a worker is gone.
        """
        codings = None if self._codings is None else self._codings.in_round(round_)
        return self.run.reducer.begin(
            KIND, step, round_, self.group(round_), gradients=True, divisor=self._divisor, codings=codings
        )

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Replace the gradients by their means over all workers."""
        assert first, "gradients are averaged in each step"
        reduction = self.send(step, round_)
        self.run.reducer.wait(reduction)

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            commit_gradients(bucket, sums, ok, reduction.absent[index])
            commit_riders(bucket, sums, ok)

        self.run.reducer.commit(reduction, commit)
        self.run.applier.remember(reduction.ok)

    def end_round(self, step: int, round_: int) -> None:  # noqa: ARG002 - the signature of all
        """Undo the step where the device found that the gradients are no means; on CPU nothing is left to do."""
        self.run.applier.undo()

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
