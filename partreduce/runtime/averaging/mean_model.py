"""Compute the mean model over all workers, which is used for evaluation, saving and the end of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from partreduce.runtime.averaging.apply_average import commit_mean
from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.buffer_rules import BufferSpec, check_spec
from partreduce.runtime.averaging.buffers_and_state import commit_piggybacked
from partreduce.runtime.averaging.flat_model import FlatModel
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Group


def average_model(reducers: Sequence[Reducer], members: tuple[int, ...], step: int, round_: int) -> None:
    """Replace the parameters of `members` by their means over all of them, and buffers by their rules; alone, nothing.

    What is read or kept next is this mean, so the checks on it are waited for.
    """
    if len(members) == 1:
        return
    for reducer in reducers:
        reduction = reducer.begin("mean model", step, round_, Group(members))
        reducer.wait(reduction)
        reducer.commit(reduction, commit_plain_mean)
        reducer.flush()


def commit_plain_mean(_index: int, bucket: Bucket, sums: torch.Tensor, ok: torch.Tensor | None) -> None:
    """Parameters and what rides along become their means."""
    commit_mean(bucket, sums, 1.0, ok)
    commit_piggybacked(bucket, sums, ok)


@contextmanager
def restore_local_values(flat: FlatModel, rank: int) -> Iterator[list[torch.Tensor]]:
    """Afterwards parameters, buffers and optimizer state that rides along are what they were before, bit for bit."""
    tensors, buffers = _values(flat), dict(flat.named_buffers())
    with torch.no_grad():
        own = [tensor.clone() for tensor in tensors]
        own_buffers = {name: (buffer.clone(), BufferSpec.of(buffer)) for name, buffer in buffers.items()}
    states = [
        (value, value.clone())
        for bucket in flat.buckets
        for tensor in bucket.piggybacked
        if tensor.is_state and (value := tensor.fetch()) is not None
    ]
    problem: InputError | None = None
    try:
        yield own
    finally:
        flat.sharders.reshard()
        with torch.no_grad():
            for tensor, value in zip(_values(flat), own, strict=True):  # a commit may have swapped the arrays
                tensor.copy_(value)
            for tensor, value in states:
                tensor.copy_(value)
            now = dict(flat.named_buffers())
            for name, (value, spec) in own_buffers.items():
                try:
                    check_spec(name, now.get(name), spec, rank, "when mean_model() began")
                except InputError as error:
                    problem = problem or error
                else:
                    now[name].copy_(value)
    if problem is not None:
        raise problem


SAMPLED = 1 << 16
"""Numbers of each bucket that are compared."""


def sample_of(flat: FlatModel) -> list[torch.Tensor]:
    """Copies of numbers from all over the model."""
    return [array[:: max(1, len(array) // SAMPLED)].clone() for array in flat.arrays()]


def has_moved(flat: FlatModel, before: list[torch.Tensor]) -> bool:
    """Whether the model differs from a sample of itself by more than rounding, on whatever machines, explains."""
    pairs = zip(sample_of(flat), before, strict=True)
    return any(
        bool((now - old).double().norm() > torch.finfo(old.dtype).eps ** 0.5 * old.double().norm())
        for now, old in pairs
    )


def squared_distance(flat: FlatModel, own: list[torch.Tensor]) -> float:
    """Of this worker's `own` parameters to those that the model holds now."""
    buckets = zip(flat.buckets, own, strict=False)  # what follows them is frozen
    return float(sum((bucket.flat - before).double().square().sum().item() for bucket, before in buckets))


def _values(flat: FlatModel) -> list[torch.Tensor]:
    return [bucket.flat for bucket in flat.buckets] + [p.detach() for p in flat.frozen]
