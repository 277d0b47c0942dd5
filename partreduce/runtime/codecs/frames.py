"""Frames: coded numbers as one array of bytes, for transports that carry bytes and add nothing up themselves."""

from __future__ import annotations

import torch

from partreduce.runtime.codecs.blocks import PIECE, BlockCodec
from partreduce.runtime.codecs.coding import DTYPES, Coding
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.strategies.axes import Codec

CPU = torch.device("cpu")


class HalfPrecisionCodec:
    """float16 or bfloat16 with the face of `BlockCodec`: each number is rounded to the nearest, by itself."""

    block = 1

    def __init__(self, codec: Codec) -> None:
        self.dtype = DTYPES[codec]

    def encode(self, values: torch.Tensor, encoded: torch.Tensor) -> None:
        encoded.view(self.dtype).copy_(values)

    def decode(self, encoded: torch.Tensor, values: torch.Tensor) -> None:
        values.copy_(encoded.view(self.dtype))


def codec_of(codec: Codec, block: int, device: torch.device = CPU) -> BlockCodec | HalfPrecisionCodec:
    """What writes numbers as bytes, for one thread, or one stream of a device."""
    if not codec.has_blocks:
        return HalfPrecisionCodec(codec)
    return BlockCodec(codec, block, PIECE if device.type == "cpu" else 0)


def unit_of(coding: Coding) -> int:
    """How many neighboring numbers are coded together."""
    return coding.transport.block if coding.in_blocks else HalfPrecisionCodec.block


def code_bytes(count: int, coding: Coding) -> int:
    """Bytes of the code of so many numbers."""
    return block_bytes(coding.transport.codec, count, coding.transport.block) if coding.in_blocks else 2 * count


def encoded(values: torch.Tensor, coding: Coding, place: str) -> torch.Tensor:
    """The code of some numbers, uint8; with error feedback `values` change, and what is left over is kept.

    Args:
        values: one-dimensional, in host memory.
        coding: how they are coded.
        place: where this worker rounds (see `Leftovers`).
    """
    if coding.leftovers is not None:
        coding.leftovers.add_to(place, values)
    code = torch.zeros(code_bytes(len(values), coding), dtype=torch.uint8)
    codec_of(coding.transport.codec, coding.transport.block).encode(values, code)
    if coding.leftovers is not None:
        coding.leftovers.keep(place, values, decoded(code, len(values), coding.transport.codec, coding.transport.block))
    return code


def decoded(code: torch.Tensor, count: int, codec: Codec, block: int) -> torch.Tensor:
    """The numbers of a code, in float32."""
    values = torch.empty(count)
    codec_of(codec, block).decode(code, values)
    return values
