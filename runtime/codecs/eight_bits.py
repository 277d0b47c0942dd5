"""The codec int8: blocks of whole numbers from -127 to 127 that share one float32 scale, in one array of bytes.

A block with a number that is not finite decodes to NaN throughout, and one that is almost zero to zeros. How far a
number may be from its code, and why: `topo.codec_numbers`. Five passes over the numbers encode them (two for the
largest of a block, scale, round, narrow) and two decode them; they go in pieces that stay in a core's cache.
"""

from __future__ import annotations

import math

import torch

from partreduce.topo.codec_numbers import LEAST_PEAK_EXPONENT, LEVELS, int8_bytes

PIECE = 2**17
"""Numbers that are worked on together, about."""
LEAST_PEAK = 2.0**LEAST_PEAK_EXPONENT


class EightBits:
    """The codec with one size of blocks. It has working memory, so each thread has one of its own.

    Args:
        block: numbers that share a scale.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self._rows = max(1, PIECE // block)
        self._work = torch.empty(0, dtype=torch.float32)

    def encode(self, values: torch.Tensor, encoded: torch.Tensor) -> None:
        """Write the code of `values`.

        Args:
            values: one-dimensional; taken as float32, so what is beyond that counts as infinite.
            encoded: int8_bytes(len(values), block) bytes at an address that is a multiple of 4.
        """
        if not len(values):
            return
        values = values.to(torch.float32)
        levels, scales = self._parts(encoded, len(values))
        for rows, first in self._pieces(len(values)):
            end = first + rows.numel()
            at = first // self.block
            quantise(
                values[first:end].view_as(rows),
                levels[first:end].view_as(rows),
                scales[at : at + len(rows)],
                rows,
            )

    def decode(self, encoded: torch.Tensor, values: torch.Tensor) -> None:
        """Write the numbers that were encoded into `values`, of any floating-point dtype."""
        if not len(values):
            return
        levels, scales = self._parts(encoded, len(values))
        for work, first in self._pieces(len(values)):
            end, at = first + work.numel(), first // self.block
            rows = values[first:end].view_as(work) if values.dtype is torch.float32 else work
            rows.copy_(levels[first:end].view_as(rows))
            rows.mul_(scales[at : at + len(rows), None])
            if rows is work:
                values[first:end].copy_(work.view(-1))

    def _parts(self, encoded: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(the whole numbers [count], the scales [blocks]) as views of the bytes."""
        assert len(encoded) == int8_bytes(count, self.block), "the array has the size of the code"
        num_scales = -(-count // self.block)
        return encoded[:count].view(torch.int8), encoded[len(encoded) - 4 * num_scales :].view(torch.float32)

    def _pieces(self, count: int) -> list[tuple[torch.Tensor, int]]:
        """(working memory [rows, block], where its numbers begin) of all pieces; a shorter last block is a row."""
        most = self._rows * self.block
        if len(self._work) < min(most, count):
            self._work = torch.empty(min(most, count), dtype=torch.float32)
        full = count // self.block * self.block
        pieces = []
        for first in range(0, full, most):
            length = min(most, full - first)
            pieces.append((self._work[:length].view(-1, self.block), first))
        if full < count:
            pieces.append((self._work[: count - full].view(1, -1), full))
        return pieces


def quantise(values: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor, work: torch.Tensor) -> None:
    """Write blocks of numbers as whole numbers and scales, rounded to nearest (ties to even).

    Args:
        values: [blocks, block], float32.
        levels: [blocks, block], int8; written. What stands in a block that is not finite has no meaning.
        scales: [blocks], float32; written.
        work: [blocks, block], float32; overwritten.
    """
    peaks = torch.maximum(values.amax(1), values.amin(1).neg_())  # [blocks]; NaN wins
    plain = (peaks >= LEAST_PEAK) & (peaks < math.inf)
    torch.div(peaks, LEVELS, out=scales)
    scales.masked_fill_(peaks < LEAST_PEAK, 0.0).masked_fill_(peaks == math.inf, math.nan)
    factors = torch.div(LEVELS, peaks).masked_fill_(~plain, 0.0)
    torch.mul(values, factors[:, None], out=work)
    levels.copy_(work.round_())
