"""What a codec makes of numbers, and of a mean over a group: a NumPy model, written from the definition.

A sum in 8 bits rounds twice: each member's numbers on their way to whoever adds them up, and the mean on its way back
(docs/codecs.md). In 16 bits the members' numbers and the mean are rounded, too; what a backend rounds between them is
left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.strategies import Codec

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce.topo.strategies import How

    Floats = npt.NDArray[np.float32]

LARGEST = 127


def coded(values: Floats, how: How) -> Floats:
    """The numbers (rows, count) as they are read on the other side."""
    if how.codec is Codec.NONE:
        return values
    if how.codec is Codec.FLOAT16:
        return values.astype(np.float16).astype(np.float32)
    if how.codec is Codec.BFLOAT16:
        return _bfloat16(values)
    rows, count = values.shape
    blocks = -(-count // how.block)
    padded = np.zeros((rows, blocks * how.block), dtype=np.float32)
    padded[:, :count] = values
    cut = padded.reshape(rows, blocks, how.block)
    scale = np.abs(cut).max(axis=2, keepdims=True) / np.float32(LARGEST)
    wanted = cut / np.where(scale > 0, scale, np.float32(1))
    whole = np.clip(np.rint(wanted), -LARGEST, LARGEST)
    return (whole * scale).reshape(rows, -1)[:, :count]


def _bfloat16(values: Floats) -> Floats:
    """To nearest, ties to even: the upper half of the bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def coded_mean(values: Floats, how: How) -> Floats:
    """The mean (count,) of the members' rows (members, count), as all of them receive it."""
    return coded(coded(values, how).mean(axis=0, keepdims=True), how)[0]
