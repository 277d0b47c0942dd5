"""Encoded sizes and value ranges of the gradient codecs, for code that runs without torch."""

from __future__ import annotations

SCALE_BYTES = 4
"""Bytes of the float32 scale that every block stores."""
LEVELS = {"int8": 127, "int4": 7}
"""For int8 and int4, the largest absolute value of the integers to which they round."""
LEAST_PEAK_EXPONENT = -119
"""A block whose largest absolute value is below 2 to this power is encoded as zeros."""
NUMBER_BYTES = {"float16": 2, "bfloat16": 2, "int8": 1, "int4": 0.5}
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "int8": 2.0**127, "int4": 2.0**127}
"""For each codec, the largest absolute value that it encodes without overflow."""


def block_bytes(codec: str, count: int, block: int) -> int:
    """Return the bytes on the wire of `count` numbers under int8 or int4, with one float32 scale per `block` numbers.

    A number takes 1 or 1/2 byte; the numbers together are padded to a multiple of 4 bytes.
    """
    return -(-count // (8 if codec == "int4" else 4)) * 4 + SCALE_BYTES * -(-count // block)


def row_bytes(codec: str, columns: int, *, element_bytes: int = 4) -> int:
    """Return the bytes on the wire of an embedding table's row of `columns` numbers; int8 adds one float32 scale.

    Under the codec "none" a number takes `element_bytes`.
    """
    if codec == "none":
        return element_bytes * columns
    return int(NUMBER_BYTES[codec] * columns) + (SCALE_BYTES if codec == "int8" else 0)
