"""The codecs int8 and int4: blocks of whole numbers that share one float32 scale, in one array of bytes.

int8 has the numbers from -127 to 127, int4 those from -7 to 7, two in a byte, the first one in its lower half. A block
with a number that is not finite decodes to NaN throughout, and one that is almost zero to zeros. How far a number may
be from its code, and why: `topo.codec_numbers`. Five passes over the numbers encode them (two for the largest of a
block, scale, round, narrow) and two decode them, int4 one more; they go in pieces that stay in a core's cache.
"""

from __future__ import annotations

import math

import torch

from partreduce.topo.codec_numbers import LEAST_PEAK_EXPONENT, LEVELS, block_bytes

PIECE = 2**17
"""Numbers that are worked on together on the CPU, about; a device takes all at once."""
LEAST_PEAK = 2.0**LEAST_PEAK_EXPONENT


class BlockCodec:
    """A codec with one size of blocks. It has working memory, so each thread, or stream of a device, has its own.

    Args:
        codec: int8 or int4.
        block: numbers that share a scale.
        piece: numbers that are worked on together, about; 0 for all.
    """

    def __init__(self, codec: str, block: int, piece: int = PIECE) -> None:
        self.codec, self.block, self._top = codec, block, LEVELS[codec]
        self._piece = piece
        self._work = torch.empty(0, dtype=torch.float32)

    def encode(self, values: torch.Tensor, encoded: torch.Tensor) -> None:
        """Write the code of `values`.

        Args:
            values: one-dimensional; taken as float32, so what is beyond that counts as infinite.
            encoded: block_bytes(codec, len(values), block) bytes at an address that is a multiple of 4.
        """
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
        """Write the numbers that were encoded into `values`, of any floating-point dtype."""
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
        """(the whole numbers [count], of int4 [count / 2, rounded up], the scales [blocks]) as views of the bytes."""
        assert len(encoded) == block_bytes(self.codec, count, self.block), "the array has the size of the code"
        num_scales = -(-count // self.block)
        codes = count if self.codec == "int8" else -(-count // 2)
        return encoded[:codes].view(torch.int8), encoded[len(encoded) - 4 * num_scales :].view(torch.float32)

    def _pieces(self, values: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        """(working memory [rows, block], where its numbers begin) of all pieces; a shorter last block is a row."""
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
    """Write whole numbers of four bits, int8 [count], two in a byte, int8 [count / 2, rounded up]."""
    codes.copy_(levels[::2]).bitwise_and_(15)
    codes[: len(levels) // 2].bitwise_or_(levels[1::2] << 4)


def unpack(codes: torch.Tensor) -> torch.Tensor:
    """The whole numbers that `pack` wrote, and a 0 at the end where their number was odd; int8 [2 · bytes]."""
    return torch.stack(((codes << 4) >> 4, codes >> 4), dim=1).view(-1)


def quantize(
    values: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor, work: torch.Tensor, *, top: int = LEVELS["int8"]
) -> None:
    """Write blocks of numbers as whole numbers and scales, rounded to nearest (ties to even).

    Args:
        values: [blocks, block], float32.
        levels: [blocks, block], int8; written. What stands in a block that is not finite has no meaning.
        scales: [blocks], float32; written.
        work: [blocks, block], float32; overwritten.
        top: the largest whole number.
    """
    peaks = torch.maximum(values.amax(1), values.amin(1).neg_())  # [blocks]; NaN wins
    plain = (peaks >= LEAST_PEAK) & (peaks < math.inf)
    torch.div(peaks, top, out=scales)
    scales.masked_fill_(peaks < LEAST_PEAK, 0.0).masked_fill_(peaks == math.inf, math.nan)
    factors = torch.div(top, peaks).masked_fill_(~plain, 0.0)
    torch.mul(values, factors[:, None], out=work)
    levels.copy_(work.round_())
