"""Encode numbers in fewer bytes and decode them, by functions of tensors; this module does not communicate.

int8 uses the levels −127 to 127; int4 uses −7 to 7, two levels per byte. Each block of numbers shares one float32
scale. A block with an infinite or NaN value decodes to NaN, and a block whose values are all almost zero to zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from partreduce.topo.codec_numbers import LEAST_PEAK_EXPONENT, LEVELS, block_bytes
from partreduce.topo.strategies.axes import Codec, Transport

PIECE = 2**17  # elements coded at once on the CPU, about; a GPU codes all at once
CPU = torch.device("cpu")
LEAST_PEAK = 2.0**LEAST_PEAK_EXPONENT
DTYPES = {Codec.FLOAT16: torch.float16, Codec.BFLOAT16: torch.bfloat16}


class Leftovers:
    """Error feedback: stores the rounding errors of a repeated sum, and adds them to the values of the next sum.

    A `place` names what was rounded: this worker's contribution, or the sum of the shard that it adds up; each has its
    own error. Sources: Seide et al., Interspeech 2014; for both roundings, Tang et al., DoubleSqueeze, ICML 2019.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def add_to(self, place: str, values: torch.Tensor) -> None:
        """Add the last rounding error of `place` to `values`, in place; add nothing if the shape has changed."""
        kept = self._kept.get(place)
        if kept is not None and kept.shape == values.shape:
            values.add_(kept.to(values.device))  # loaded errors are in host memory

    def keep(self, place: str, values: torch.Tensor, decoded: torch.Tensor) -> None:
        """Store the rounding error `values - decoded` of `place`, with 0 for elements that are not finite."""
        kept = self._kept.get(place)
        if kept is None or kept.shape != values.shape or kept.device != values.device:
            kept = self._kept[place] = torch.empty_like(values)
        torch.sub(values, decoded, out=kept)
        kept.nan_to_num_(0.0, 0.0, 0.0)

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self._kept)

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._kept = {place: kept.clone() for place, kept in state.items()}


@dataclass(frozen=True, slots=True)
class Coding:
    """How the values of one all-reduce are encoded: codec, block size and, for error feedback, rounding errors."""

    transport: Transport
    leftovers: Leftovers | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype in which values are sent; None for codecs that send bytes (int8, int4)."""
        return DTYPES.get(self.transport.codec)

    @property
    def in_blocks(self) -> bool:
        return self.transport.codec.has_blocks


class Codings:
    """How one strategy's repeated all-reduces are encoded; `of_buckets` has a Coding for each bucket (flat array)."""

    def __init__(self, transport: Transport, num_buckets: int) -> None:
        self._transport, self._num_buckets = transport, num_buckets
        self.clear()

    @classmethod
    def of(cls, transport: Transport, num_buckets: int) -> Codings | None:
        return None if transport.codec is Codec.NONE else cls(transport, num_buckets)

    def clear(self) -> None:
        """Drop all rounding errors, because other parameters are loaded or the membership has changed."""
        transport, number = self._transport, self._num_buckets
        self._leftovers = [Leftovers() for _ in range(number if transport.error_feedback else 0)]
        self.of_buckets = [Coding(transport, left) for left in self._leftovers] or [Coding(transport)] * number

    def state(self) -> dict[str, torch.Tensor]:
        """Return the rounding errors by name, for a checkpoint; empty without error feedback."""
        if not self._leftovers:
            return {}
        named = {"feedback": torch.ones(())}
        for index, left in enumerate(self._leftovers):
            named |= {f"feedback/{index}/{place}": kept for place, kept in left.state().items()}
        return named

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        for index, left in enumerate(self._leftovers):
            prefix = f"feedback/{index}/"
            left.load({n.removeprefix(prefix): kept for n, kept in state.items() if n.startswith(prefix)})


class BlockCodec:
    """int8 or int4 codec with one float32 scale per block of `block` numbers; use one object per thread or CUDA stream.

    Numbers are coded in pieces of about `piece` elements (0: all at once), which fit into a core's cache.
    """

    def __init__(self, codec: str, block: int, piece: int = PIECE) -> None:
        self.codec, self.block, self._top = codec, block, LEVELS[codec]
        self._piece = piece
        self._work = torch.empty(0, dtype=torch.float32)

    def encode(self, values: torch.Tensor, encoded: torch.Tensor) -> None:
        """Write the code of `values` [count] to `encoded`, uint8 [`block_bytes(…)`], which is aligned to 4 bytes."""
        if not len(values):
            return
        values = values.to(torch.float32)
        codes, scales = self._parts(encoded, len(values))
        levels = codes if self.codec == "int8" else values.new_empty(len(values), dtype=torch.int8)
        for rows, first in self._pieces(values):
            end = first + rows.numel()
            at = first // self.block
            quantize(
                values[first:end].view_as(rows),
                levels[first:end].view_as(rows),
                scales[at : at + len(rows)],
                rows,
                top=self._top,
            )
        if levels is not codes:
            pack(levels, codes)

    def decode(self, encoded: torch.Tensor, values: torch.Tensor) -> None:
        if not len(values):
            return
        codes, scales = self._parts(encoded, len(values))
        levels = codes if self.codec == "int8" else unpack(codes)
        for work, first in self._pieces(values):
            end, at = first + work.numel(), first // self.block
            rows = values[first:end].view_as(work) if values.dtype is torch.float32 else work
            rows.copy_(levels[first:end].view_as(rows))
            rows.mul_(scales[at : at + len(rows), None])
            if rows is work:
                values[first:end].copy_(work.view(-1))

    def _parts(self, encoded: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the encoded bytes: integer levels (int8 [count], int4 [count / 2]) and scales [blocks]."""
        assert len(encoded) == block_bytes(self.codec, count, self.block), "the array has the size of the code"
        num_scales = -(-count // self.block)
        codes = count if self.codec == "int8" else -(-count // 2)
        return encoded[:codes].view(torch.int8), encoded[len(encoded) - 4 * num_scales :].view(torch.float32)

    def _pieces(self, values: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        """Divide `values` into pieces that fit into a cache; return (scratch, index of its first value) of each.

        Scratch is float32 memory [blocks, block] for one piece. It does not hold the values, is not initialized, and is
        the same memory in all pieces. The last piece may be one block with fewer numbers.
        """
        count = len(values)
        most = max(1, (self._piece or count) // self.block) * self.block
        if len(self._work) < min(most, count):
            self._work = values.new_empty(min(most, count), dtype=torch.float32)
        full = count // self.block * self.block
        pieces = []
        for first in range(0, full, most):
            length = min(most, full - first)
            pieces.append((self._work[:length].view(-1, self.block), first))
        if full < count:
            pieces.append((self._work[: count - full].view(1, -1), full))
        return pieces


def pack(levels: torch.Tensor, codes: torch.Tensor) -> None:
    """Pack int4 levels, given as int8 [count], two per byte into `codes`, int8 [count / 2, rounded up]."""
    codes.copy_(levels[::2]).bitwise_and_(15)
    codes[: len(levels) // 2].bitwise_or_(levels[1::2] << 4)


def unpack(codes: torch.Tensor) -> torch.Tensor:
    """Return the levels that `pack` wrote, as int8 [2 · bytes]; the last is 0 if their count was odd."""
    return torch.stack(((codes << 4) >> 4, codes >> 4), dim=1).view(-1)


def quantize(
    values: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor, work: torch.Tensor, *, top: int = LEVELS["int8"]
) -> None:
    """Quantize blocks of numbers to integer levels and one scale per block, rounding to nearest (ties to even).

    Args:
        values: [blocks, block], float32.
        levels: [blocks, block], int8; written. Meaningless in a block with an infinite or NaN value.
        scales: [blocks], float32; written.
        work: [blocks, block], float32; overwritten.
        top: the largest integer of the code: 127 for int8, 7 for int4.
    """
    peaks = torch.maximum(values.amax(1), values.amin(1).neg_())  # [blocks]; NaN wins
    plain = (peaks >= LEAST_PEAK) & (peaks < math.inf)
    torch.div(peaks, top, out=scales)
    scales.masked_fill_(peaks < LEAST_PEAK, 0.0).masked_fill_(peaks == math.inf, math.nan)
    factors = torch.div(top, peaks).masked_fill_(~plain, 0.0)
    torch.mul(values, factors[:, None], out=work)
    levels.copy_(work.round_())


class HalfPrecisionCodec:
    """float16 or bfloat16 codec with the methods of `BlockCodec`; rounds each number to nearest."""

    block = 1

    def __init__(self, codec: Codec) -> None:
        self.dtype = DTYPES[codec]

    def encode(self, values: torch.Tensor, encoded: torch.Tensor) -> None:
        encoded.view(self.dtype).copy_(values)

    def decode(self, encoded: torch.Tensor, values: torch.Tensor) -> None:
        values.copy_(encoded.view(self.dtype))


def codec_of(codec: Codec, block: int, device: torch.device = CPU) -> BlockCodec | HalfPrecisionCodec:
    """Return a codec object for one thread or CUDA stream; for int8 and int4, `block` numbers share a scale."""
    if not codec.has_blocks:
        return HalfPrecisionCodec(codec)
    return BlockCodec(codec, block, PIECE if device.type == "cpu" else 0)


def unit_of(coding: Coding) -> int:
    """Return how many adjacent numbers are coded together: the block size, or 1 for float16 and bfloat16."""
    return coding.transport.block if coding.in_blocks else HalfPrecisionCodec.block


def code_bytes(count: int, coding: Coding) -> int:
    """Return the number of bytes of `count` encoded numbers."""
    return block_bytes(coding.transport.codec, count, coding.transport.block) if coding.in_blocks else 2 * count


def encode_values(values: torch.Tensor, coding: Coding, place: str) -> torch.Tensor:
    """Return `values`, encoded by `coding`, as uint8 in host memory.

    With error feedback (`Leftovers`) the last rounding error is first added to `values`, in place, and the new one is
    stored; `place` names what is rounded.
    """
    if coding.leftovers is not None:
        coding.leftovers.add_to(place, values)
    code = torch.zeros(code_bytes(len(values), coding), dtype=torch.uint8)
    codec_of(coding.transport.codec, coding.transport.block).encode(values, code)
    if coding.leftovers is not None:
        coding.leftovers.keep(
            place, values, decode_values(code, len(values), coding.transport.codec, coding.transport.block)
        )
    return code


def decode_values(code: torch.Tensor, count: int, codec: Codec, block: int) -> torch.Tensor:
    """Return the `count` numbers that `code`, uint8 bytes, encodes, as float32 in host memory."""
    values = torch.empty(count)
    codec_of(codec, block).decode(code, values)
    return values
