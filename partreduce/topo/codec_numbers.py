"""Numbers of the codecs that need no torch: bytes on the wire, and what a codec can write."""

from __future__ import annotations

SCALE_BYTES = 4
"""A block's scale is a float32."""
LEVELS = {"int8": 127, "int4": 7}
"""A codec of blocks has the whole numbers from minus this to this."""
LEAST_PEAK_EXPONENT = -119
"""Blocks whose largest number is below two to this power become zeros."""
NUMBER_BYTES = {"float16": 2, "bfloat16": 2, "int8": 1, "int4": 0.5}
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "int8": 2.0**127, "int4": 2.0**127}
"""What a codec can write without doubt."""


def block_bytes(codec: str, count: int, block: int) -> int:
    """Bytes of `count` numbers: one or a half each, filled up to a multiple of 4, and a scale for each block."""
    return -(-count // (8 if codec == "int4" else 4)) * 4 + SCALE_BYTES * -(-count // block)


def row_bytes(codec: str, columns: int, *, element_bytes: int = 4) -> int:
    """Bytes of a table's row: int8 has one scale for the row, and nothing is filled up."""
    if codec == "none":
        return element_bytes * columns
    return int(NUMBER_BYTES[codec] * columns) + (SCALE_BYTES if codec == "int8" else 0)
