"""Copy, average and scale a model's gradients, and step the wrapped optimizer with the averaged ones.

An average is written into the gradient tensors that torch allocated, so that later averages cannot change gradients
that the script holds; this costs one pass over the gradients per step and no extra memory. With a GradScaler no worker
steps if an averaged gradient is not finite. On CUDA only the device knows whether an average was valid; a step with
invalid gradients is undone there.
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
    """Return the InputError for a sparse gradient of parameter `name`, which cannot be averaged."""
    return InputError(
        f"gradient of {name!r}: is sparse; partreduce.parallelize_embeddings instead of DistributedOptimizer sends "
        "touched rows only, or use sparse=False in its embedding"
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy of a bucket's parameters or gradients (`absent`: slots without); `array` is None if no step was taken."""

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
        """Return the snapshot for a step that this worker did not take."""
        return cls(bucket, None, frozenset(range(len(bucket.slots))))

    def release(self) -> None:
        if self.array is not None:
            self.bucket.give_back(self.array)


def load_gradients(
    bucket: Bucket, scratch: torch.Tensor, divisor: int, tail: Tail | None = None, kept: Snapshot | None = None
) -> frozenset[int]:
    """Fill `scratch` with gradients, or with their copy `kept`, divided by `divisor`, and with presence flags.

    Returns the indices of the slots without a gradient. `tail` is the end of `scratch` as a NumPy view, if it has one.
    """
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
    """Copy some parameters' gradients, divided by `divisor`, to `targets`; write zeros for missing ones.

    Returns the indices of the slots without a gradient. Raises InputError for a sparse gradient.
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
    """Return the divisor as a tensor: for small arrays, dividing by a Python number takes torch twice as long."""
    return torch.tensor(divisor, dtype=dtype)


def own_gradients(slots: Iterable[Slot]) -> None:
    """Give each gradient its own memory: copy those that are views or shared by several parameters."""
    seen: set[int] = set()
    for slot in slots:
        gradient = slot.parameter.grad
        if gradient is not None:
            if gradient._is_view() or id(gradient) in seen:  # noqa: SLF001 - torch has no public way
                gradient = slot.parameter.grad = gradient.detach().clone()
            seen.add(id(gradient))


def load_presence(bucket: Bucket, scratch: torch.Tensor, absent: frozenset[int], tail: Tail | None = None) -> None:
    """Write the presence flags into `scratch`: 1 per parameter with a gradient, 0 for the slots in `absent`.

    `tail` is the end of `scratch` as a NumPy view, if it has one.
    """
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
    """Write the group's mean, in `sums`, into each parameter's gradient; zeros if the device's check `ok` is False.

    `absent` has the slots without a gradient here when they were sent. If no member had one, the gradient becomes None.
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
    """Set all gradients to zero; trainable parameters without a gradient get one of zeros."""
    for bucket in buckets:
        for slot in bucket.slots:
            if slot.parameter.grad is not None:
                slot.parameter.grad.detach_().zero_()
            elif slot.parameter.requires_grad:
                slot.parameter.grad = torch.zeros_like(slot.parameter)


def unscale(optimizer: torch.optim.Optimizer, scale: torch.Tensor) -> None:
    """Divide an optimizer's gradients by a GradScaler's scale, in place. Raises InputError for float16, as torch."""
    inverse = scale.double().reciprocal().float()
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(gradient.dtype == torch.float16 for gradient in gradients):
        raise InputError(
            "GradScaler: gradients are float16, in which small ones become 0 when they are divided by the scale; keep "
            "the parameters in float32 and use torch.autocast"
        )
    for gradient in gradients:
        gradient.mul_(inverse.to(gradient.device, gradient.dtype))


def averaged_are_finite(buckets: Iterable[Bucket]) -> bool:
    """Return whether all averaged gradients are finite; the result is equal on all workers."""
    gradients = [slot.gradient for bucket in buckets for slot in bucket.slots]
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)


class OptimizerStepper:
    """Steps the wrapped optimizer with averaged gradients, and undoes a step whose average turns out to be invalid.

    An average is invalid if its members ran different operations; on CUDA only the device knows this. `apart` are
    parameters that are exchanged separately (embedding tables).
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, flat: FlatModel, apart: Sequence[torch.nn.Parameter] = ()
    ) -> None:
        self.optimizer, self._flat, self._apart = optimizer, flat, apart
        self.scaled = False  # whether a GradScaler scaled the loss of this worker's last step
        self.changes_means = False  # whether the script changed the last averaged gradients, as clipping does
        self.after_averaging: Callable[[], object] | None = None  # how the script changes averaged gradients
        self.is_stepping = False  # whether `optimizer.step()` means the plain step, not the schedule's (see `attach`)
        self.evaluated: list[Any] = []  # loss of the script's closure, which was called before gradients were averaged
        self._before: list[torch.Tensor] = []
        self._ok: torch.Tensor | None = None

    def apply(self, put: Callable[[], torch.Tensor | None], *, check_finite: bool) -> bool:
        """Take an optimizer step that the training loop did not call, and return whether it was taken.

        `put` writes the gradients. It returns a 0-d bool tensor on the device, False if the average is invalid, in
        which case the step is undone; or None if the host has checked. With `check_finite` the step is taken only if
        all are finite.
        """
        aside = [parameter.grad for parameter in self._apart]
        for parameter in self._apart:
            parameter.grad = None  # belongs to a step of the training loop
        self.remember(put())
        taken = self.step(check_finite=check_finite)
        self.undo()
        for parameter, gradient in zip(self._apart, aside, strict=True):
            parameter.grad = gradient
        return taken

    def step(self, *, check_finite: bool) -> bool:
        """Step with the current gradients, with `check_finite` only if all are finite; return whether it stepped."""
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
        """Return a closure that returns the known `loss`; InputError if called twice or after a change of the model."""
        begun, calls = self._versions(), 0

        def closure() -> Any:  # noqa: ANN401 - as above
            nonlocal calls
            calls += 1
            if calls > 1 or self._versions() != begun:
                raise InputError(
                    f"optimizer: {type(self.optimizer).__name__} evaluates its closure several times, or after it has "
                    "changed the model, and this schedule averages the gradients of one evaluation before the step; "
                    "average parameters instead (steps_per_round > 1)"
                )
            return loss

        return closure

    def _versions(self) -> list[tuple[int, int, int]]:
        """Return (parameter's version, gradient's id, gradient's version) of each parameter, to detect changes."""
        parameters = [slot.parameter for slot in self._flat.slots()]
        gradients = [parameter.grad for parameter in parameters]
        return [
            (parameter._version, id(gradient), 0 if gradient is None else gradient._version)  # noqa: SLF001 - no public way
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]

    def remember(self, ok: torch.Tensor | None) -> None:
        """Save the parameters unless `ok` is None; `undo` restores them if `ok`, a 0-d bool on the device, is False."""
        self._ok = ok
        if ok is None:
            return
        with torch.no_grad():
            self._before = copy_to(self._before, self._flat.buckets)

    def undo(self) -> None:
        """Restore the saved parameters if the average was invalid: gradients were zero, but momentum moved these."""
        if self._ok is None:
            return
        wrong = ~self._ok
        with torch.no_grad():
            for bucket, before in zip(self._flat.buckets, self._before, strict=True):
                replace_where(bucket.flat, before, wrong)
        self._ok = None
