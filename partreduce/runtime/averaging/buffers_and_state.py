"""Piggyback buffers and optimizer state on a bucket's array, after the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partreduce.runtime.averaging.apply_average import replace_where
from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.buffer_rules import BufferRule, check_spec


def load_piggybacked(bucket: Bucket, array: torch.Tensor, divisor: int, *, is_first: bool, rank: int) -> None:
    """Copy what rides along into an operation's array, divided by the number of members; zero where there is none.

    Of what is copied from the lowest rank that one sends its values, and the others zeros.
    """
    for tensor in bucket.piggybacked:
        value = tensor.fetch()
        if not tensor.is_state:
            check_spec(tensor.name, value, tensor.spec, rank)
        part = tensor.view(array)
        is_copied = tensor.rule is not BufferRule.MEAN
        if value is None or (is_copied and not is_first):
            part.zero_()
        elif is_copied:
            part.copy_(value)
        else:
            torch.div(value.detach(), divisor, out=part)


def snapshot_piggybacked(bucket: Bucket) -> list[torch.Tensor | None]:
    """Copies of what rides along, None where there is nothing yet."""
    values = (tensor.fetch() for tensor in bucket.piggybacked)
    return [None if value is None else value.detach().clone() for value in values]


def commit_piggybacked(
    bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None, before: Sequence[torch.Tensor | None] | None = None
) -> None:
    """Write averaged buffers and optimizer state back; with `before` what changed since that snapshot stays."""
    for index, tensor in enumerate(bucket.piggybacked):
        value = tensor.fetch()
        if value is None:
            continue
        new = tensor.view(sums)
        if tensor.rule is BufferRule.OWN:
            _replace_bytes(value, new, ok)
            continue
        old = before[index] if before is not None else None
        if old is not None and tensor.rule is BufferRule.FIRST:
            # Whose values these are may have others by now, and keeps them. All of it, since vectors belong together.
            new = torch.where((new == old).all(), value, new)
        elif old is not None:
            # What stood still takes the mean as it is: the infinities of a mask would make a difference of no number.
            new = torch.where(value == old, new, new + (value - old))
            if tensor.name.endswith("running_var"):
                new = new.clamp_min(0)  # a variance stays one
        replace_where(value, new, ok)


def _replace_bytes(value: torch.Tensor, new: torch.Tensor, ok: torch.Tensor | None) -> None:
    """As `replace_where`, for dtypes in which a device may not choose between two tensors."""
    if ok is not None:
        own = value.detach().contiguous().reshape(-1).view(torch.uint8)
        new = torch.where(ok, new.reshape(-1).view(torch.uint8), own).view(value.dtype).view(value.shape)
    value.copy_(new)
