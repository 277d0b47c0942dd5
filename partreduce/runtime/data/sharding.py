"""Select the shard of a data set that this worker trains on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

import torch

from partreduce.runtime.data.data_fingerprints import record_fingerprint
from partreduce.runtime.transport.rendezvous import place
from partreduce.topo.errors import InputError

Data = TypeVar("Data")


class ShardOrder(StrEnum):
    """Which elements a worker gets."""

    STRIDED = "strided"
    """Every n-th one: samples, in whatever order they lie."""

    CONTIGUOUS = "contiguous"
    """One run of neighbors: a text, a recording, a time series."""


def shard_dataset(data: Data, *, order: ShardOrder | str | None = None) -> Data | torch.utils.data.Subset[object]:
    """Return this worker's part of the data; equally many elements on all workers (up to n − 1 are left out).

    Tensors, arrays, lists and other sequences are sliced; a torch Dataset becomes a Subset. In a script that runs alone
    the data comes back as it is. A `str` or `bytes` is a text and always gets one run of neighbors.

    Args:
        data: samples, or one long sequence.
        order: `strided` (default): every n-th element from this worker's rank on; shuffle first if neighbors are
            similar. `contiguous`: one run of neighbors, for sequences whose order means something. A one-dimensional
            integer array without `order` may be either, and is warned of unless as many samples were dealt before.

    Returns:
        The same type as `data` where that can be sliced, else a Subset.

    Raises:
        InputError: data that has no length and no order, or fewer elements than workers.
    """
    rank, num_workers = place()
    try:
        chosen = None if order is None else ShardOrder(order)
    except ValueError:
        raise InputError(f"order: {order!r} is not one of {', '.join(ShardOrder)}") from None
    if num_workers == 1:
        return data
    _check_countable(data)
    sized: Sequence[object] = data  # type: ignore[assignment]
    each = len(sized) // num_workers
    if each == 0:
        raise InputError(f"shard_dataset: {len(sized)} elements are fewer than the {num_workers} workers")
    if chosen is None:
        chosen = ShardOrder.CONTIGUOUS if isinstance(data, (str, bytes, bytearray)) else ShardOrder.STRIDED
        _warn_of_sequence(data)
    record_fingerprint(data)
    if chosen is ShardOrder.STRIDED:
        places = slice(rank, each * num_workers, num_workers)
    else:
        places = slice(rank * each, (rank + 1) * each, 1)
    if isinstance(data, torch.utils.data.Dataset):
        return torch.utils.data.Subset(data, range(len(sized))[places])
    part: Data = sized[places]  # type: ignore[assignment]
    if type(part) is not type(data):
        raise InputError(
            f"shard_dataset: a slice of a {type(data).__name__} is a {type(part).__name__}; give tensors, arrays, "
            "lists or a torch Dataset"
        )
    return part


def _check_countable(data: object) -> None:
    """Raise InputError for what has no length, or whose length does not count samples."""
    kind = type(data).__name__
    if isinstance(data, torch.utils.data.DataLoader):
        raise InputError("shard_dataset: is given a DataLoader; shard the data set, then make a loader of the part")
    if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
        raise InputError(
            f"shard_dataset: a {kind} has no length; let each worker read every n-th element of it, for example with "
            "itertools.islice(data, rank, None, num_workers)"
        )
    if isinstance(data, dict) or not hasattr(data, "__getitem__"):
        raise InputError(f"shard_dataset: a {kind} has no order of samples; shard its values one by one")
    if getattr(data, "shape", None) == ():
        raise InputError(f"shard_dataset: the {kind} is a single number; give an array with one sample a row")


_dealt: set[int] = set()
"""Lengths of the samples that this process has dealt: integers of one of these lengths are their labels."""


def _warn_of_sequence(data: Any) -> None:  # noqa: ANN401 - anything with a length
    """Warn of integers that may be a text: every n-th token of it makes no sense, and nothing else would tell."""
    if len(getattr(data, "shape", (0, 0))) != 1 or not _holds_integers(data):
        _dealt.add(len(data))
    elif len(data) not in _dealt:
        warnings.warn(
            f"partreduce.shard_dataset: takes every n-th of {len(data)} integers, which is right for labels and wrong "
            "for a text or another sequence; say order='strided' or order='contiguous'",
            stacklevel=3,
        )


def _holds_integers(data: Any) -> bool:  # noqa: ANN401 - a tensor or array
    kind = getattr(data, "dtype", None)
    if isinstance(kind, torch.dtype):
        return not kind.is_floating_point and not kind.is_complex and kind is not torch.bool
    return getattr(kind, "kind", "") in ("i", "u")
