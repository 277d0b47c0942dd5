"""Take a step of the wrapped optimizer when a mean gradient is available.

No worker takes a step with non-finite gradients if a GradScaler is used, and a step whose gradients were no means,
which only a device knows, is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from partreduce.runtime.averaging.bucket import replace_where
from partreduce.runtime.averaging.flat_model import FlatModel
from partreduce.runtime.averaging.gradients import averaged_are_finite
from partreduce.topo.errors import InputError


class OptimizerStepper:
    """Takes the wrapped optimizer's steps with mean gradients; `apart` are parameters that others exchange."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, flat: FlatModel, apart: Sequence[torch.nn.Parameter] = ()
    ) -> None:
        self.optimizer, self._flat, self._apart = optimizer, flat, apart
        self.scaled = False  # whether a GradScaler scaled the loss of this worker's last step
        self.changes_means = False
        """Whether the script changed the means of this worker's last step before it took them, as clipping does."""
        self.after_averaging: Callable[[], object] | None = None
        """What the script does to a mean gradient before the step, where it said so; for those that it does not see."""
        self.is_stepping = False
        """Whether the wrapped optimizer's own step is wanted, where its `step` drives the schedule (see `attach`)."""
        self.evaluated: list[Any] = []
        """The loss of the script's closure, where that has made the gradients that were averaged."""
        self._before: list[torch.Tensor] = []
        self._ok: torch.Tensor | None = None

    def apply(self, put: Callable[[], torch.Tensor | None], *, check_finite: bool) -> bool:
        """Take a step of its own, between those of the training loop; whether it was taken.

        `put` writes mean gradients and returns the device's check on them, None where the host knows that all is well.
        """
        aside = [parameter.grad for parameter in self._apart]
        for parameter in self._apart:
            parameter.grad = None  # of a step that the training loop asks for, or asked for
        self.remember(put())
        taken = self.step(check_finite=check_finite)
        self.undo()
        for parameter, gradient in zip(self._apart, aside, strict=True):
            parameter.grad = gradient
        return taken

    def step(self, *, check_finite: bool) -> bool:
        """Step with the gradients that are in place; with `check_finite` only if all are finite, equally on all."""
        if check_finite and not averaged_are_finite(self._flat.buckets):
            return False
        self.plain_step()
        return True

    def plain_step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - what the closure returns
        if closure is None and self.evaluated:
            closure = self._known_loss(*self.evaluated)
        self.is_stepping = True
        try:
            return self.optimizer.step() if closure is None else self.optimizer.step(closure)
        finally:
            self.is_stepping = False

    def _known_loss(self, loss: Any) -> Callable[[], Any]:  # noqa: ANN401 - what the closure returned
        """A closure for an optimizer that evaluates it once and first, which has been done."""
        begun, asked = self._versions(), 0

        def closure() -> Any:  # noqa: ANN401 - as above
            nonlocal asked
            asked += 1
            if asked > 1 or self._versions() != begun:
                raise InputError(
                    f"optimizer: {type(self.optimizer).__name__} evaluates its closure several times, or after it has "
                    "changed the model, and this schedule averages the gradients of one evaluation before the step; "
                    "average parameters instead (steps_per_round > 1)"
                )
            return loss

        return closure

    def _versions(self) -> list[tuple[int, int, int]]:
        """Which gradients and parameters there are, and how often they were changed."""
        parameters = [slot.parameter for slot in self._flat.slots()]
        gradients = [parameter.grad for parameter in parameters]
        return [
            (parameter._version, id(gradient), 0 if gradient is None else gradient._version)  # noqa: SLF001 - no public way
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]

    def remember(self, ok: torch.Tensor | None) -> None:
        """Keep the parameters until the coming step is known to be right, where only the device knows whether it is."""
        self._ok = ok
        if ok is None:
            return
        with torch.no_grad():
            if not self._before:
                self._before = [torch.empty_like(bucket.flat) for bucket in self._flat.buckets]
            for before, bucket in zip(self._before, self._flat.buckets, strict=True):
                before.copy_(bucket.flat)

    def undo(self) -> None:
        """Undo the step where the device found no means: by zeros, too, momentum and decay would move parameters."""
        if self._ok is None:
            return
        wrong = ~self._ok
        with torch.no_grad():
            for bucket, before in zip(self._flat.buckets, self._before, strict=True):
                replace_where(bucket.flat, before, wrong)
        self._ok = None
