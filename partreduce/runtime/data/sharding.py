"""Select the shard of a data set that this worker trains on, and sketch what was dealt.

Where each worker shuffles by its own seed before `shard_dataset()`, some elements come to several workers and others to
none, and no loss would show it: the first step compares a few elements, which all workers have in the same order.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from partreduce.runtime.arguments import checked_choice
from partreduce.runtime.transport.rendezvous import place
from partreduce.topo.errors import InputError

Data = TypeVar("Data")


class ShardOrder(StrEnum):
    """Which elements a worker gets."""

    STRIDED = "strided"  # every n-th one: samples, in whatever order they lie

    CONTIGUOUS = "contiguous"  # one run of neighbors: a text, a recording, a time series


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
    chosen = None if order is None else ShardOrder(checked_choice("order", order, ShardOrder))
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


_dealt: set[int] = set()  # lengths of dealt samples: integers of one of these lengths are their labels


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


SKETCHED, SKETCHED_NUMBERS = 64, 8  # how many elements are looked at, and how many numbers of each
_sketches: dict[str, str] = {}  # of what this process has dealt and has not compared yet, by kind, length and turn


def record_fingerprint(data: Any) -> None:  # noqa: ANN401 - anything with a length
    """Remember what is dealt, to be compared when the run begins."""
    if sketch := sketch_of(data):
        place, turn = f"{type(data).__name__} of {len(data)} elements", 1
        while f"{place}, {turn}" in _sketches:
            turn += 1
        _sketches[f"{place}, {turn}"] = sketch


def pop_fingerprint() -> dict[str, str]:
    """What was dealt since it was taken last."""
    taken = dict(_sketches)
    _sketches.clear()
    return taken


def sketch_of(data: Any) -> str:  # noqa: ANN401 - anything with a length
    """A digest of some elements in their order; empty where only the data set's own code could tell them."""
    if isinstance(data, Subset):
        return sketch_of(data.indices)
    if isinstance(data, TensorDataset):
        data = data.tensors[0]
    if isinstance(data, Dataset):
        return ""
    return sha256(repr(_plain(data, SKETCHED)).encode()).hexdigest()[:16]


def _plain(value: Any, most: int = SKETCHED_NUMBERS) -> object:  # noqa: ANN401 - an element of anything
    """A value as few plain ones: of numbers three digits, of a path the name, since folders may be a worker's own."""
    if isinstance(value, str | bytes):
        return value[-200:].rsplit("/", 1)[-1] if isinstance(value, str) else value[-200:]
    if isinstance(value, float):
        return f"{value:.3g}"
    if value is None or isinstance(value, int):
        return value
    if hasattr(value, "tolist"):  # a tensor or an array
        if not getattr(value, "shape", ()):
            return _plain(value.tolist())
        if most == SKETCHED_NUMBERS and hasattr(value, "reshape"):
            value = value.reshape(-1)
    elif not isinstance(value, Sequence):
        return type(value).__name__
    at = getattr(value, "iloc", value)  # a table of pandas takes labels otherwise
    return [_plain(at[place]) for place in range(0, len(value), max(1, len(value) // most))][:most]
