"""Shard: the part of a data set that this worker trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch

from preduce.runtime.transport.rendezvous import place

if TYPE_CHECKING:
    from collections.abc import Sequence

Data = TypeVar("Data")


def shard(data: Data) -> Data | torch.utils.data.Subset[object]:
    """Every n-th element from this worker's rank on; equally many on all workers (up to n − 1 elements are left out).

    Tensors, arrays and lists are sliced; a torch Dataset becomes a Subset. Outside of a launcher the data comes back as
    it is. Shuffle first if neighbouring elements are alike.
    """
    rank, num_workers = place()
    if num_workers == 1:
        return data
    sized: Sequence[object] = data  # type: ignore[assignment]
    count = len(sized) // num_workers * num_workers
    if isinstance(data, torch.utils.data.Dataset):
        return torch.utils.data.Subset(data, range(rank, count, num_workers))
    part: Data = sized[rank:count:num_workers]  # type: ignore[assignment]
    return part
