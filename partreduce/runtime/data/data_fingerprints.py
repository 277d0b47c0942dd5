"""Compare a few elements of the dealt data, which all workers should have in the same order.

Where each worker shuffles by its own seed before `shard_dataset()`, some elements come to several workers and
others to none, and no loss would show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from torch.utils.data import Dataset, Subset, TensorDataset

SKETCHED, SKETCHED_NUMBERS = 64, 8
"""How many elements are looked at, and how many numbers of each."""
_sketches: dict[str, str] = {}
"""Of what this process has dealt and has not compared yet, by kind, length and turn."""


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
