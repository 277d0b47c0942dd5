"""Compute tags: four small numbers added to every all-reduce that show whether all members ran the same operation.

`torch.distributed` returns success with wrong numbers if two members swap the order of two operations, or mix dtypes or
reduce ops. A tag is a CRC-32 of what must be equal on all members, as four numbers in 1..256: summed over k members it
is k times each member's own tag only if the tags are equal (or collide, once in 2³²). The sums are exact in float32 up
to 65,536 members; half-precision payloads therefore have their tag in a separate float32 tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

TAG_LENGTH = 4
Tail: TypeAlias = npt.NDArray[np.floating[Any]]
"""The end of an array in host memory, tag last, as a NumPy view: NumPy accesses a few numbers 5× as fast as torch."""
EXACT_DTYPES = (torch.float32, torch.float64)
"""Dtypes in which sums of tags are exact, so that the tag can be part of the payload."""


def tag_of(*fields: object) -> tuple[int, ...]:
    """Return the tag of an operation, four numbers from 1 to 256: the CRC-32 of `fields`, its description, as text."""
    crc = zlib.crc32("\x1f".join(map(str, fields)).encode())
    return tuple([byte + 1 for byte in crc.to_bytes(TAG_LENGTH, "big")])


def sums_agree(sums: torch.Tensor | Tail, tag: Sequence[int], num_members: int) -> bool:
    """Return whether `sums`, the all-reduced tags, equal `num_members` times `tag`: all ran the same operation."""
    agree: bool = sums.tolist() == [number * num_members for number in tag]
    return agree


def agreement(
    sums: torch.Tensor,
    tag: Sequence[int],
    num_members: int,
    upload: Callable[[Sequence[float], torch.dtype], torch.Tensor],
) -> torch.Tensor:
    """Return as a 0-d bool tensor, for `sums` on a device, what `sums_agree` returns, without waiting for the device.

    `upload` copies a few numbers in a given dtype to that device.
    """
    return (sums == upload([number * num_members for number in tag], sums.dtype)).all()
