"""Gradients: the one place that sends, replaces and scales a model's gradients and decides in whose memory they lie.

Gradients own their memory, as torch made it: an average is written into them, so that neither the mean model nor the
next average can change them afterwards. That costs one pass over the gradients in each step and no array. (Drift
correction changes gradients in place before a step; it never moves them.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from partreduce.runtime.averaging.commit import only_where
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partreduce.runtime.averaging.bucket import Bucket, Slot


def load_gradients(bucket: Bucket, scratch: torch.Tensor, divisor: int) -> frozenset[int]:
    """Fill the scratch array: each gradient's share, zeros for a parameter without one, and who has one.

    Returns the slots whose parameters have none here.

    Raises:
        InputError: a gradient is sparse.
    """
    load_some(bucket.slots, scratch, divisor)
    return load_presence(bucket, scratch)


def load_some(slots: Sequence[Slot], scratch: torch.Tensor, divisor: int) -> None:
    """Fill the places of some parameters with their gradients' shares, or zeros.

    Raises:
        InputError: a gradient is sparse.
    """
    present: list[tuple[torch.Tensor, torch.Tensor]] = []
    for slot in slots:
        gradient = slot.parameter.grad
        if gradient is None:
            slot.view(scratch).zero_()
            continue
        if gradient.layout is not torch.strided:
            raise InputError(f"gradient of {slot.names[0]!r}: is sparse; use sparse=False in its embedding")
        present.append((slot.view(scratch), gradient))
    if scratch.device.type == "cuda" and present:
        targets = [target for target, _ in present]
        torch._foreach_copy_(targets, [gradient for _, gradient in present])
        torch._foreach_div_(targets, divisor)
        return
    for target, gradient in present:
        torch.div(gradient, divisor, out=target)


def own_gradients(slots: Iterable[Slot]) -> None:
    """Give each gradient memory of its own, in which it can be changed.

    `backward()` makes them so. What a script puts there by hand may be a view (of `torch.autograd.grad`), expanded, or
    one tensor for several parameters.
    """
    seen: set[int] = set()
    for slot in slots:
        gradient = slot.parameter.grad
        if gradient is not None:
            if gradient._is_view() or id(gradient) in seen:  # noqa: SLF001 - torch has no public way
                gradient = slot.parameter.grad = gradient.detach().clone()
            seen.add(id(gradient))


def load_presence(bucket: Bucket, scratch: torch.Tensor) -> frozenset[int]:
    """One number per parameter, 1 if it has a gradient here; the slots of those without."""
    flags = [slot.parameter.grad is not None for slot in bucket.slots]
    presence = scratch[bucket.tail : bucket.tail + len(bucket.slots)]
    if all(flags):
        presence.fill_(1)
        return frozenset()
    presence.copy_(torch.tensor(flags, dtype=bucket.dtype), non_blocking=True)
    return frozenset([index for index, is_there in enumerate(flags) if not is_there])


def commit_gradients(bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None, absent: frozenset[int]) -> None:
    """Write the mean over the group into each parameter's gradient.

    Args:
        bucket: whose parameters.
        sums: what came of `load_gradients`, maybe called some steps ago.
        ok: the device's check, see `commit`.
        absent: the slots without a gradient here when it was sent. Without one on any member they have none now; of the
            others somebody had one, so that the host need not ask the device.
    """
    means = sums[: bucket.size]
    if ok is not None:
        only_where(means, ok)
    presence = sums[bucket.tail : bucket.tail + len(bucket.slots)].tolist() if absent else ()
    gradients: list[torch.Tensor] = []
    averages: list[torch.Tensor] = []
    for index, slot in enumerate(bucket.slots):
        if index in absent and presence[index] == 0:
            slot.parameter.grad = None
        elif slot.parameter.grad is None:
            slot.parameter.grad = slot.view(sums).clone()
        else:
            gradients.append(slot.parameter.grad)
            averages.append(slot.view(sums))
    if gradients:
        torch._foreach_copy_(gradients, averages)


def clear_gradients(buckets: Iterable[Bucket]) -> None:
    """Make every gradient zero, and give one to each parameter that is trained and has none."""
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
    """Whether the averaged gradients, equal on all workers, are finite; all skip the step otherwise."""
    gradients = [slot.parameter.grad for bucket in buckets for slot in bucket.slots]
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)
