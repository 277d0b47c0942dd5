"""Piggybacked tensors: BatchNorm buffers and optimizer state that travel in a bucket's array, beside the parameters."""

from __future__ import annotations

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.commit import replace_where
from partreduce.topo.errors import InputError


def load_piggybacked(bucket: Bucket, array: torch.Tensor, divisor: int, *, is_first: bool, rank: int) -> None:
    """Copy what rides along into an operation's array, divided by the number of members; zero where there is none.

    Raises:
        InputError: worker `rank` has given a buffer a shape or a dtype that has no place in the array.
    """
    for tensor in bucket.piggybacked:
        value = tensor.fetch()
        if value is not None and tuple(value.shape) != tensor.shape:
            raise InputError(
                f"buffer {tensor.name!r}: has the shape {list(value.shape)} on worker {rank} now, and had "
                f"{list(tensor.shape)} on all workers when DistributedOptimizer was made; keep its size, or give it "
                "the new one on every worker before that"
            )
        if value is not None and value.layout is not torch.strided:
            raise InputError(
                f"buffer {tensor.name!r}: is sparse on worker {rank} now, and was dense on all workers when "
                "DistributedOptimizer was made; keep it dense, or make it sparse on every worker before that"
            )
        if value is not None and value.is_complex():
            raise InputError(
                f"buffer {tensor.name!r}: is {value.dtype} on worker {rank} now, and was {bucket.dtype} on all workers "
                "when DistributedOptimizer was made; keep it real, or make it complex on every worker before that, "
                "which leaves it out of the average"
            )
        part = tensor.view(array)
        if value is None or (tensor.broadcast and not is_first):
            part.zero_()
        elif tensor.broadcast:
            part.copy_(value)
        else:
            torch.div(value.detach(), divisor, out=part)


def snapshot_piggybacked(bucket: Bucket) -> list[torch.Tensor | None]:
    """Copies of what rides along, None where there is nothing yet."""
    values = (tensor.fetch() for tensor in bucket.piggybacked)
    return [None if value is None else value.detach().clone() for value in values]


def commit_piggybacked(
    bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None, before: list[torch.Tensor | None] | None = None
) -> None:
    """Write averaged buffers and optimizer state back; with `before` what changed since that snapshot stays."""
    for index, tensor in enumerate(bucket.piggybacked):
        value = tensor.fetch()
        if value is None:
            continue
        new = tensor.view(sums)
        old = before[index] if before is not None else None
        if old is not None:
            # What stood still takes the mean as it is: the infinities of a mask would make a difference of no number.
            new = torch.where(value == old, new, new + (value - old))
            if tensor.name.endswith("running_var"):
                new = new.clamp_min(0)  # a variance stays one
        replace_where(value, new, ok)
