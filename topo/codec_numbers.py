"""Numbers of the codecs that need no torch: bytes on the wire, and how far a sum may be from the exact one.

A codec writes x as d(x) with |d(x) - x| <= e·m + t, where m is |x| for 16 bits and the largest of its block for int8
and int4:

* float16 and bfloat16 keep 11 and 8 digits, so e = 2^-11 and 2^-8; below the normal numbers the digits end at 2^-24 and
  2^-133, so t is half of that. (Beyond 65504, or 3.39e38, there is no bound: the run-time refuses such a sum.)
* int8 writes q·s with s = m/127 and q = round(x·127/m), each product and quotient rounded to float32, u = 2^-24. Scaled
  by 127/m, x is off by at most 127(2u + u²) before it is rounded to the nearest whole number, by 1/2 after that, and d
  adds another 127(2u + u²). Times m/127 that is at most m(1/254 + 2^-21). A block whose m is below 2^-119 becomes
  zeros, so that s is never a subnormal number: t = 2^-119. It holds for m <= 2^127. int4 is the same with 7 for 127.
"""

from __future__ import annotations

from fractions import Fraction

SCALE_BYTES = 4
"""A block's scale is a float32."""
LEVELS = {"int8": 127, "int4": 7}
"""A codec of blocks has the whole numbers from minus this to this."""
LEAST_PEAK_EXPONENT = -119
"""Blocks whose largest number is below two to this power become zeros."""
NUMBER_BYTES = {"float16": 2, "bfloat16": 2, "int8": 1, "int4": 0.5}
UNIT_ROUNDOFF = {"float16": Fraction(1, 2**11), "bfloat16": Fraction(1, 2**8), "float32": Fraction(1, 2**24)}
"""Largest relative error of one rounding to nearest."""
UNDERFLOW = {
    "float16": Fraction(1, 2**25),
    "bfloat16": Fraction(1, 2**134),
    "int8": Fraction(1, 2**119),
    "int4": Fraction(1, 2**119),
}
"""t: the largest error that a number near zero may have besides."""
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "int8": 2.0**127, "int4": 2.0**127}
"""What a codec can write without doubt."""


def block_bytes(codec: str, count: int, block: int) -> int:
    """Bytes of `count` numbers: one or a half each, filled up to a multiple of 4, and a scale for each block."""
    return -(-count // (8 if codec == "int4" else 4)) * 4 + SCALE_BYTES * -(-count // block)


def row_bytes(codec: str, columns: int, *, element_bytes: int = 4) -> int:
    """Bytes of a table's row: int8 has one scale for the row, and nothing is filled up."""
    if codec == "none":
        return element_bytes * columns
    return int(NUMBER_BYTES[codec]) * columns + (SCALE_BYTES if codec == "int8" else 0)


def rounding_error(codec: str) -> Fraction:
    """e: the error of one rounding, as a part of |x| (16 bits) or of the block's largest number (int8, int4)."""
    if codec not in LEVELS:
        return UNIT_ROUNDOFF[codec]
    return Fraction(1, 2 * LEVELS[codec]) + Fraction(1, 2**21)
