"""Frames: coded numbers as one array of bytes, for transports that carry bytes and add nothing up themselves."""

from __future__ import annotations

import torch

from partreduce.runtime.codecs.blocks import BlockCodec
from partreduce.runtime.codecs.coding import DTYPES, Coding
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.strategies.axes import Codec


def encoded(values: torch.Tensor, coding: Coding, place: str) -> torch.Tensor:
    """The code of some numbers, uint8; with error feedback `values` change, and what is left over is kept.

    Args:
        values: one-dimensional.
        coding: how they are coded.
        place: where this worker rounds (see `Leftovers`).
    """
    if coding.leftovers is not None:
        coding.leftovers.add_to(place, values)
    dtype = coding.dtype
    if dtype is not None:
        return values.to(dtype).view(torch.uint8)
    how = coding.how
    code = torch.zeros(block_bytes(how.codec, len(values), how.block), dtype=torch.uint8)
    BlockCodec(how.codec, how.block).encode(values, code)
    if coding.leftovers is not None:
        coding.leftovers.keep(place, values, decoded(code, len(values), how.codec, how.block))
    return code


def decoded(code: torch.Tensor, count: int, codec: Codec, block: int) -> torch.Tensor:
    """The numbers of a code, in float32."""
    if not codec.has_blocks:
        return code.view(DTYPES[codec]).to(torch.float32)
    values = torch.empty(count)
    BlockCodec(codec, block).decode(code, values)
    return values
