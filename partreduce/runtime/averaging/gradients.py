"""Send, replace and scale a model's gradients, and take a step of the wrapped optimizer with their mean.

Gradients own their memory, as torch made it: an average is written into them, so that neither the mean model nor the
next average can change them afterwards. That costs one pass over the gradients in each step and no array. No worker
takes a step with non-finite gradients if a GradScaler is used, and a step whose gradients were no means, which only a
device knows, is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from partreduce.runtime.averaging.bucket import Bucket, Slot, copy_to, only_where, replace_where
from partreduce.runtime.averaging.flat_model import FlatModel
from partreduce.runtime.transport.tags import EXACT_DTYPES, Tail
from partreduce.topo.errors import InputError


def sparse_gradient(name: str) -> InputError:
    """Return the error for parameter `name` with a sparse gradient, which cannot be averaged, with the remedy."""
    return InputError(
        f"gradient of {name!r}: is sparse; partreduce.parallelize instead of DistributedOptimizer sends touched rows "
        "only, or use sparse=False in its embedding"
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy of a bucket's parameters or gradients in one step; without an array for a step that was not taken here."""

    bucket: Bucket
    array: torch.Tensor | None
    absent: frozenset[int] = frozenset()
    is_of_gradients: bool = True

    @classmethod
    def of_gradients(cls, bucket: Bucket) -> Snapshot:
        array = bucket.lend()
        with torch.no_grad():
            return cls(bucket, array, load_some(bucket.slots, bucket.windows(array), 1))

    @classmethod
    def copy(cls, bucket: Bucket, values: torch.Tensor) -> Snapshot:
        array = bucket.lend()
        with torch.no_grad():
            array[: bucket.size].copy_(values[: bucket.size])
        return cls(bucket, array, is_of_gradients=False)

    @classmethod
    def none(cls, bucket: Bucket) -> Snapshot:
        """The snapshot of a step that this worker did not take."""
        return cls(bucket, None, frozenset(range(len(bucket.slots))))

    def release(self) -> None:
        if self.array is not None:
            self.bucket.give_back(self.array)


def load_gradients(
    bucket: Bucket, scratch: torch.Tensor, divisor: int, tail: Tail | None = None, kept: Snapshot | None = None
) -> frozenset[int]:
    """Fill `scratch` with gradients (or `kept`) / `divisor` and presence flags; return the slots without a gradient."""
    if kept is None:
        absent = load_some(bucket.slots, bucket.windows(scratch), divisor)
    else:
        absent, share = kept.absent, scratch[: bucket.size]
        if kept.array is None:
            share.zero_()
        else:
            torch.div(kept.array[: bucket.size], divisor, out=share)
    load_presence(bucket, scratch, absent, tail)
    return absent


def load_some(slots: Sequence[Slot], targets: list[torch.Tensor], divisor: int) -> frozenset[int]:
    """Copy the gradients of some parameters, divided by `divisor`, to `targets`, zeros if there is none.

    Returns the indices of the slots without a gradient.
    """
    gradients = [slot.gradient for slot in slots]
    if absent := frozenset([place for place, gradient in enumerate(gradients) if gradient is None]):
        for place in absent:
            targets[place].zero_()
        targets = [target for target, gradient in zip(targets, gradients, strict=True) if gradient is not None]
    present = [gradient for gradient in gradients if gradient is not None]
    for gradient in present:
        if gradient.layout is not torch.strided:
            name = next(slot.names[0] for slot in slots if slot.gradient is gradient)
            raise sparse_gradient(name)
    if present and present[0].device.type == "cuda":
        torch._foreach_copy_(targets, present)
        torch._foreach_div_(targets, divisor)
        return absent
    by = _as_tensor(divisor, targets[0].dtype) if present and targets[0].dtype in EXACT_DTYPES else divisor
    for target, gradient in zip(targets, present, strict=True):
        torch.div(gradient, by, out=target)
    return absent


@cache
def _as_tensor(divisor: int, dtype: torch.dtype) -> torch.Tensor:
    """For whole small arrays a call with a number takes torch twice as long; the quotients are the same."""
    return torch.tensor(divisor, dtype=dtype)


def own_gradients(slots: Iterable[Slot]) -> None:
    """Copy each gradient that is a view, or that several parameters share, to separate memory."""
    seen: set[int] = set()
    for slot in slots:
        gradient = slot.parameter.grad
        if gradient is not None:
            if gradient._is_view() or id(gradient) in seen:  # noqa: SLF001 - torch has no public way
                gradient = slot.parameter.grad = gradient.detach().clone()
            seen.add(id(gradient))


def load_presence(bucket: Bucket, scratch: torch.Tensor, absent: frozenset[int], tail: Tail | None = None) -> None:
    """Write 1 per parameter with a gradient and 0 for the slots in `absent`; `tail` as in `load_gradients`."""
    flags = [float(place not in absent) for place in range(len(bucket.slots))] if absent else [1.0]
    if tail is not None:
        tail[: len(bucket.slots)] = flags
        return
    presence = scratch[bucket.length : bucket.length + len(bucket.slots)]
    if absent:
        presence.copy_(torch.tensor(flags, dtype=bucket.dtype), non_blocking=True)
    else:
        presence.fill_(1)


def commit_gradients(bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None, absent: frozenset[int]) -> None:
    """Write the mean over the group into each parameter's gradient.

    `absent` are the slots that had no gradient here when it was sent. Such a slot gets None if no member had one.
    """
    if ok is not None:
        only_where(sums[: bucket.size], ok)
    presence = sums[bucket.length : bucket.length + len(bucket.slots)].tolist() if absent else ()
    put_gradients(bucket.slots, bucket.windows(sums), [place for place in absent if presence[place] == 0])


def put_gradients(slots: Sequence[Slot], values: Sequence[torch.Tensor], missing: Sequence[int]) -> None:
    """Set the parameters' gradients to `values`, and to None at the indices in `missing`."""
    gradients: list[torch.Tensor] = []
    averages: list[torch.Tensor] = []
    for index, (slot, average) in enumerate(zip(slots, values, strict=True)):
        gradient = slot.gradient
        if missing and index in missing:
            slot.put_gradient(None)
        elif gradient is None:
            slot.put_gradient(average.to(slot.parameter.device, copy=True))
        else:
            gradients.append(gradient)
            averages.append(average)
    if gradients:
        torch._foreach_copy_(gradients, averages)


def clear_gradients(buckets: Iterable[Bucket]) -> None:
    """Set all gradients to zero, also of trainable parameters that have none."""
    for bucket in buckets:
        for slot in bucket.slots:
            if slot.parameter.grad is not None:
                slot.parameter.grad.detach_().zero_()
            elif slot.parameter.requires_grad:
                slot.parameter.grad = torch.zeros_like(slot.parameter)


def unscale(optimizer: torch.optim.Optimizer, scale: torch.Tensor) -> None:
    """Divide an optimizer's gradients by a GradScaler's scale, in place."""
    inverse = scale.double().reciprocal().float()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(inverse.to(parameter.grad.device, parameter.grad.dtype))


def averaged_are_finite(buckets: Iterable[Bucket]) -> bool:
    """Whether the averaged gradients are finite; equal on all workers, which skip the step otherwise."""
    gradients = [slot.gradient for bucket in buckets for slot in bucket.slots]
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)


class OptimizerStepper:
    """Steps the wrapped optimizer with mean gradients; `apart` are parameters that are exchanged separately."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, flat: FlatModel, apart: Sequence[torch.nn.Parameter] = ()
    ) -> None:
        self.optimizer, self._flat, self._apart = optimizer, flat, apart
        self.scaled = False  # whether a GradScaler scaled the loss of this worker's last step
        self.changes_means = False  # whether the script changed the last step's means, as clipping does
        self.after_averaging: Callable[[], object] | None = None  # what it does to means, for those it does not see
        self.is_stepping = False  # whether its own step is wanted, where its `step` drives the schedule (see `attach`)
        self.evaluated: list[Any] = []  # the loss of the script's closure, which has made the averaged gradients
        self._before: list[torch.Tensor] = []
        self._ok: torch.Tensor | None = None

    def apply(self, put: Callable[[], torch.Tensor | None], *, check_finite: bool) -> bool:
        """Take an optimizer step, which the loop did not ask for, with mean gradients; returns whether it was taken.

        `put` writes them and returns a device's flag, true if they are means (else the step is undone), or None if
        the host has checked. With `check_finite` no step is taken unless all are finite.
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
        """Step with the present gradients, with `check_finite` only if all are finite; returns whether it was taken."""
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
        """Save the parameters before a step whose check `ok` only the device knows."""
        self._ok = ok
        if ok is None:
            return
        with torch.no_grad():
            self._before = copy_to(self._before, self._flat.buckets)

    def undo(self) -> None:
        """Restore the saved parameters if the device's check failed: a step with zeros would still apply momentum."""
        if self._ok is None:
            return
        wrong = ~self._ok
        with torch.no_grad():
            for bucket, before in zip(self._flat.buckets, self._before, strict=True):
                replace_where(bucket.flat, before, wrong)
        self._ok = None
