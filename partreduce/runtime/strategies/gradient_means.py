"""Strategy `allreduce` of gradients: they are averaged over all workers before the step, as DDP does it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.gradients import KeptGradients, commit_gradients
from partreduce.runtime.averaging.layers import LayerSender
from partreduce.runtime.averaging.piggybacked import commit_piggybacked
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Reduction
from partreduce.runtime.codecs import Codings
from partreduce.runtime.liveness.settings import Settings, settings_of
from partreduce.runtime.strategies.base import Arrived, GradientRunner, Run
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group
from partreduce.topo.strategies.axes import GradientBuckets

KIND = "gradient average"
ON_TIME = Arrived()
TAKEN_ELSEWHERE = "would apply gradients to it that were taken at other parameters"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What this worker adds to the sum of a step, with what all members must have in common: the kind, and settings."""

    kind: str
    settings: Settings
    gradients: list[KeptGradients] | None = None
    """Kept, where the sum may have to be begun again; else those that are in place."""
    divisor: int | None = None
    """Of these gradients, where it is not the number of members."""


class GradientMeans(GradientRunner):
    """Every worker steps with the mean gradient, so that all stay equal, for every optimizer.

    Nothing is ever in flight between steps, except, where they are sent by layers, the gradients of a backward pass
    whose step has not come. With a `divisor` of 1 the step is taken with the sum instead.
    """

    def __init__(self, run: Run, *, divisor: int | None = None) -> None:
        super().__init__(run)
        self._divisor = divisor
        group = run.schedule.group_of(run.rank, 0)
        assert group is not None, "all-reduce has every worker in its group"
        self.group = group
        transport = run.schedule.strategy.transport
        self.layers: LayerSender | None = None
        if transport.gradient_buckets is GradientBuckets.PER_LAYER:
            self.watch = None  # what is changed after it has left is refused and not warned of
            self.layers = LayerSender(run.reducer, run.flat.model.parameters(), KIND, group, divisor=divisor)
            self.layers.clock = lambda: run.progress.step
            self.layers.settings = lambda: settings_of(run.applier.optimizer)
        num_parts = len(run.flat.buckets) if self.layers is None else len(self.layers.segments)
        self._codings = Codings.of(transport, num_parts)
        if self.layers is not None:
            self.layers.codings = self._codings

    def contribution(self) -> Contribution:
        """The gradients in place, as they are to be sent now."""
        # In the tag, so that workers of whom only some clipped in the last step hear of it, rather than part unnoticed.
        kind = f"{KIND} after a changed mean" if self.run.applier.changes_means else KIND
        return Contribution(kind, settings_of(self.run.applier.optimizer), divisor=self._divisor)

    def send(self, step: int, group: Group | None = None, contribution: Contribution | None = None) -> Reduction:
        """Start the sum of the gradients as they are, or what is left to start of it; or of those of a contribution.

        Raises:
            PeerFailedError: a worker is gone.
            InputError: gradients were changed after they had left.
        """
        if self.layers is not None:
            return self.layers.finish(step)
        codings = None if self._codings is None else self._codings.of_buckets
        given = contribution or self.contribution()
        return self.run.reducer.begin(
            given.kind,
            step,
            step,
            group or self.group,
            gradients=given.gradients or True,
            divisor=given.divisor,
            codings=codings,
            settings=given.settings,
        )

    def average(self, step: int) -> Arrived:
        """Replace the gradients by their means over all workers."""
        if (generations := self.run.generations) is not None:
            generations.carry_out(step, lambda group: [(self.run.reducer, self.send(step, group))], self._put_means)
            return ON_TIME
        reduction = self.send(step)
        self.run.reducer.wait(reduction)
        self._put_means(self.run.reducer, reduction)
        return ON_TIME

    def _put_means(self, reducer: Reducer, reduction: Reduction) -> None:
        def commit(index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
            commit_gradients(bucket, sums, ok, reduction.absent[index])
            if bucket.piggybacked:
                commit_piggybacked(bucket, sums, ok)

        reducer.commit(reduction, commit)
        if reduction.ok is not None:
            self.run.applier.remember(reduction.ok)

    def end_step(self, step: int) -> None:  # noqa: ARG002 - the signature of all
        """Undo the step where the device found that the gradients are no means; on CPU nothing is left to undo."""
        if self.run.reducer.streams.runs_ahead:
            self.run.applier.undo()
        if self.layers is not None:
            self.layers.reopen()

    def check_unfit(self, *, skip: bool, scaled: bool) -> None:
        """Where gradients leave during the backward pass, nothing changes them afterwards."""
        if skip:
            self.leave("skip")
        if scaled and self.layers is not None:
            raise InputError(
                "GradScaler: divides gradients after backward(), when they have left already, since they are sent by "
                "layers; let gradients travel whole, or use bfloat16, which needs no scaler"
            )

    def leave(self, place: str) -> None:
        """The others could not tell whether the step of a backward pass still comes.

        Raises:
            InputError: its gradients have left, and it has not come.
        """
        if self.layers is not None and self.layers.is_under_way:
            raise InputError(
                f"{place}: this step's gradients have left during backward(), since they are sent by layers; "
                "call step() first, or let gradients travel whole"
            )

    def check_late(self) -> None:
        """Refuse what a backward pass has added to gradients that are averaged already."""
        if self.layers is not None:
            self.layers.check_late()

    def members_changed(self) -> None:
        """What roundings left over is of shards that others have now, and a sum that is repeated rounds again."""
        if self._codings is not None:
            self._codings.clear()

    def settle(self) -> None:
        """Hear the device's checks."""
        self.run.reducer.flush()

    def drain(self) -> str:
        """Give up what a backward pass has sent; what roundings left over belongs to other parameters, too."""
        if self.layers is not None:
            self.layers.drop()
        self.settle()
        if self._codings is not None:
            self._codings.clear()
        return ""

    def close(self) -> None:
        if self.layers is not None:
            self.layers.close()
        super().close()

    def state(self) -> dict[str, torch.Tensor]:
        """What roundings left over, with error feedback."""
        return {} if self._codings is None else self._codings.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave.

        Raises:
            InputError: this run feeds no errors back.
        """
        if self._codings is None or not self._codings.state():
            super().load_state(state)
        else:
            self._codings.load_state(state)
