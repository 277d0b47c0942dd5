"""Strategy `allreduce` at pace 1 in lockstep: gradients are averaged over all workers before the step, as DDP does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.runtime.averaging.gradients import commit_gradients
from partreduce.runtime.averaging.layers import LayerSender
from partreduce.runtime.averaging.piggybacked import commit_piggybacked
from partreduce.runtime.codecs.coding import Codings
from partreduce.runtime.strategies.base import Runner
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.axes import Sending

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from partreduce.runtime.averaging.bucket import Bucket, Reduction
    from partreduce.runtime.strategies.base import Run
    from partreduce.topo.phase import Group

KIND = "gradient average"


class GradientMeans(Runner):
    """Every worker steps with the mean gradient, so that all stay equal, for every optimizer.

    Nothing is ever in flight between steps, except, where they are sent by layers, the gradients of a backward pass
    whose step has not come. With a `divisor` of 1 the step is taken with the sum instead.
    """

    averages_gradients = True

    def __init__(self, run: Run, *, divisor: int | None = None) -> None:
        super().__init__(run)
        self._divisor = divisor
        group = run.schedule.group_of(run.rank, 0)
        assert group is not None, "all-reduce has every worker in its group"
        self._group = group
        how = run.schedule.strategy.how
        self.sends_early = how.sending is Sending.LAYERS
        self.layers: LayerSender | None = None
        if self.sends_early:
            self.layers = LayerSender(run.reducer, run.flat.model.parameters(), KIND, divisor=divisor)
            self.layers.group = self.group
        num_parts = len(run.flat.buckets) if self.layers is None else len(self.layers.segments)
        self._codings = Codings.of(how, num_parts)
        if self.layers is not None:
            self.layers.codings = self._codings

    def group(self, round_: int) -> Group:  # noqa: ARG002 - the face of all
        return self._group

    def send(self, step: int, round_: int) -> Reduction:
        """Start the sum of the gradients as they are, or what is left to start of it.

        Raises:
            PeerLostError: a worker is gone.
            InputError: gradients were changed after they had left.
        """
        if self.layers is not None:
            return self.layers.finish(step)
        codings = None if self._codings is None else self._codings.of_buckets
        # In the tag, so that workers of whom only some clipped in the last step hear of it, rather than part unnoticed.
        kind = f"{KIND} after a changed mean" if self.run.applier.changes_means else KIND
        return self.run.reducer.begin(
            kind, step, round_, self.group(round_), gradients=True, divisor=self._divisor, codings=codings
        )

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """Replace the gradients by their means over all workers."""
        assert first, "gradients are averaged in each step"
        reduction = self.send(step, round_)
        self.run.reducer.wait(reduction)

        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            commit_gradients(bucket, sums, ok, reduction.absent[index])
            if bucket.piggybacked:
                commit_piggybacked(bucket, sums, ok)

        self.run.reducer.commit(reduction, commit)
        if reduction.ok is not None:
            self.run.applier.remember(reduction.ok)

    def end_round(self, step: int, round_: int) -> None:  # noqa: ARG002 - the signature of all
        """Undo the step where the device found that the gradients are no means; on CPU nothing is left to undo."""
        if self.run.reducer.streams.runs_ahead:
            self.run.applier.undo()
        if self.layers is not None:
            self.layers.reopen()

    def follow(self, clock: Callable[[], int]) -> None:
        """For gradients that leave before the step."""
        if self.layers is not None:
            self.layers.clock = clock

    def refuse_unfinished(self, place: str) -> None:
        """Refuse a call that comes between a backward pass and its step, where its gradients have left already.

        Raises:
            InputError: as said.
        """
        if self.layers is not None and self.layers.is_under_way:
            raise InputError(
                f"{place}: this step's gradients have left during backward(), since they are sent by layers; "
                "call step() first, or let gradients travel whole"
            )

    def refuse_late(self) -> None:
        """Refuse what a backward pass has added to gradients that are averaged already.

        Raises:
            InputError: as said.
        """
        if self.layers is not None:
            self.layers.refuse_late()

    def leave(self) -> None:
        """The others could not tell whether the step of a backward pass still comes.

        Raises:
            InputError: it has not come.
        """
        self.refuse_unfinished("finish, join or checkpoint")

    def settle(self) -> None:
        """Hear the device's checks.

        Raises:
            InputError: the step of a backward pass has not come.
        """
        self.refuse_unfinished("mean_model or checkpoint")
        self.run.reducer.flush()

    def drain(self) -> None:
        """Give up what a backward pass has sent; what roundings left over belongs to other parameters, too."""
        if self.layers is not None:
            self.layers.drop()
        self.settle()
        if self._codings is not None:
            self._codings.clear()

    def close(self) -> None:
        if self.layers is not None:
            self.layers.close()

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
