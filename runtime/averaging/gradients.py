"""Gradients: the one place that sends, replaces and scales a model's gradients and decides in whose memory they lie.

Gradients own their memory, as torch made it: an average is written into them, so that neither the mean model nor the
next average can change them afterwards. That costs one pass over the gradients in each step and no array. (Drift
correction changes gradients in place before a step; it never moves them.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.commit import only_where
from preduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preduce.runtime.averaging.bucket import Bucket


def load_gradients(bucket: Bucket, divisor: int) -> None:
    """Fill the scratch array: each gradient's share, zeros for a parameter without one, and who has one.

    Raises:
        InputError: a gradient is sparse.
    """
    scratch = bucket.scratch()
    _load_presence(bucket, scratch)
    present = [slot for slot in bucket.slots if slot.parameter.grad is not None]
    for slot in present:
        if slot.parameter.grad is not None and slot.parameter.grad.layout is not torch.strided:
            raise InputError(f"gradient of {slot.names[0]!r}: is sparse; use sparse=False in its embedding")
    if len(present) < len(bucket.slots):
        for slot in bucket.slots:
            if slot.parameter.grad is None:
                slot.view(scratch).zero_()
    if bucket.device.type == "cuda" and present:
        targets = [slot.view(scratch) for slot in present]
        torch._foreach_copy_(targets, [slot.parameter.grad for slot in present])  # type: ignore[misc]
        scratch[: bucket.size].div_(divisor)
        return
    for slot in present:
        gradient = slot.parameter.grad
        assert gradient is not None, "present slots have one"
        torch.div(gradient, divisor, out=slot.view(scratch))


def _load_presence(bucket: Bucket, scratch: torch.Tensor) -> None:
    """One number per parameter: 1 if it has a gradient here."""
    presence = scratch[bucket.tail : bucket.tail + len(bucket.slots)]
    flags = [slot.parameter.grad is not None for slot in bucket.slots]
    presence.copy_(torch.tensor(flags, dtype=bucket.dtype), non_blocking=True)


def commit_gradients(bucket: Bucket, ok: torch.Tensor | None) -> None:
    """Write the mean over the group into each parameter's gradient.

    A parameter without gradient on every member keeps none; one without gradient here only counts as zero here.
    """
    scratch = bucket.scratch()
    means = scratch[: bucket.size]
    if ok is not None:
        only_where(means, ok)
    presence: list[float] | None = None
    gradients: list[torch.Tensor] = []
    averages: list[torch.Tensor] = []
    for index, slot in enumerate(bucket.slots):
        if slot.parameter.grad is None:
            if presence is None:
                presence = scratch[bucket.tail : bucket.tail + len(bucket.slots)].tolist()
            if presence[index] != 0:
                slot.parameter.grad = slot.view(scratch).clone()
            continue
        gradients.append(slot.parameter.grad)
        averages.append(slot.view(scratch))
    if gradients:
        torch._foreach_copy_(gradients, averages)


def unscale(optimizer: torch.optim.Optimizer, scale: torch.Tensor) -> None:
    """Divide an optimizer's gradients by a GradScaler's scale, in place."""
    inverse = scale.double().reciprocal().float()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(inverse.to(parameter.grad.device, parameter.grad.dtype))


def averaged_are_finite(buckets: Iterable[Bucket]) -> bool:
    """Whether the averaged gradients, equal on all workers, are finite; all skip the step otherwise."""
    gradients = [slot.parameter.grad for bucket in buckets for slot in bucket.slots]
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)
