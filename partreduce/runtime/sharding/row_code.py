"""Row code: rows of a table, or gradients of them, as they are written on the wire; each row by itself.

So a row has the same code for all that ask for it, whatever else is in the message, and everybody who decodes it has
the same bits. Rounding is to nearest. int8 has one scale for each row, behind its whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from partreduce.runtime.codecs import DTYPES, quantize
from partreduce.topo.codec_numbers import LARGEST
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.payload import TablePlacement

COARSER = {Codec.FLOAT16: "bfloat16 or int8"}
"""Codecs that have a wider range than one."""


@dataclass(frozen=True, slots=True)
class RowCode:
    """How rows of one table are coded; they are decoded to the table's own `dtype`."""

    codec: Codec
    columns: int
    dtype: torch.dtype

    @classmethod
    def of(cls, route: TablePlacement, dtype: torch.dtype) -> RowCode | None:
        """What a route says; None where rows travel as they are."""
        return cls(route.codec, route.columns, dtype) if route.codec.rounds else None

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """The code of rows [rows, columns], uint8 [rows, bytes of a row's code]. O(numbers)."""
        if self.codec is not Codec.INT8:
            return rows.to(DTYPES[self.codec]).contiguous().view(torch.uint8)
        values = rows.to(torch.float32).contiguous()
        levels, scales = torch.empty(values.shape, dtype=torch.int8), torch.empty(len(values))
        quantize(values, levels, scales, torch.empty_like(values))
        return torch.cat([levels.view(torch.uint8), scales[:, None].view(torch.uint8)], dim=1)

    def decode(self, code: torch.Tensor) -> torch.Tensor:
        """The rows of a code, [rows, columns]. O(numbers)."""
        if self.codec is not Codec.INT8:
            return code.contiguous().view(DTYPES[self.codec]).to(self.dtype)
        levels, scales = code[:, : self.columns].view(torch.int8), code[:, self.columns :]
        # A copy, since a float32 has to begin at a multiple of four bytes.
        scales = scales.clone(memory_format=torch.contiguous_format).view(torch.float32)  # [rows, 1]
        return (levels.to(torch.float32) * scales).to(self.dtype)

    def lost(self, rows: torch.Tensor, code: torch.Tensor) -> float | None:
        """The largest finite number that the code has made infinite; None where there is none.

        What is infinite, or none, travels as such; with int8 all of its row is NaN then. O(numbers).
        """
        if not rows.numel():
            return None
        least, most = (float(end) for end in torch.aminmax(rows))
        if -least <= LARGEST[self.codec.value] >= most:  # not so of NaN
            return None
        finite = torch.isfinite(rows)
        if self.codec is Codec.INT8:
            finite &= finite.all(1, keepdim=True)
        beyond = rows[finite & ~torch.isfinite(self.decode(code))]
        return float(beyond.abs().max()) if len(beyond) else None

    def problem(self, name: str, what: str, rows: torch.Tensor, code: torch.Tensor) -> str:
        """What is wrong with rows that do not fit, as the end of "worker 2: "; empty where they fit.

        Args:
            name: the parameter's.
            what: what the rows are, as in "a row that it hands out".
            rows: as they are.
            code: theirs.
        """
        if (number := self.lost(rows, code)) is None:
            return ""
        others = COARSER.get(self.codec, "none")
        return (
            f"parameter {name!r}: {what} has {number:g}, beyond the largest number {LARGEST[self.codec.value]:g} of "
            f"its route's codec {self.codec}; use the codec {others}, or keep its numbers smaller"
        )
