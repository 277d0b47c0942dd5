"""Numbers of the codecs that need no torch: bytes on the wire, and how far a sum may be from the exact one.

A codec writes x as d(x) with |d(x) - x| <= e·m + t, where m is |x| for 16 bits and the largest of its block for int8:

* float16 and bfloat16 keep 11 and 8 digits, so e = 2^-11 and 2^-8; below the normal numbers the digits end at 2^-24 and
  2^-133, so t is half of that. (Beyond 65504, or 3.39e38, there is no bound: the run-time refuses such a sum.)
* int8 writes q·s with s = m/127 and q = round(x·127/m), each product and quotient rounded to float32, u = 2^-24. Scaled
  by 127/m, x is off by at most 127(2u + u²) before it is rounded to the nearest whole number, by 1/2 after that, and d
  adds another 127(2u + u²). Times m/127 that is at most m(1/254 + 2^-21). A block whose m is below 2^-119 becomes
  zeros, so that s is never a subnormal number: t = 2^-119. It holds for m <= 2^127.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

SCALE_BYTES = 4
"""A block's scale is a float32."""
LEVELS = 127
"""The codec int8 has the whole numbers from minus this to this."""
LEAST_PEAK_EXPONENT = -119
"""Blocks whose largest number is below two to this power become zeros."""
NUMBER_BYTES = {"float16": 2, "bfloat16": 2, "int8": 1}
UNIT_ROUNDOFF = {"float16": Fraction(1, 2**11), "bfloat16": Fraction(1, 2**8), "float32": Fraction(1, 2**24)}
"""Largest relative error of one rounding to nearest."""
UNDERFLOW = {"float16": Fraction(1, 2**25), "bfloat16": Fraction(1, 2**134), "int8": Fraction(1, 2**119)}
"""t: the largest error that a number near zero may have besides."""
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "int8": 2.0**127}
"""What a codec can write without doubt."""


def int8_bytes(count: int, block: int) -> int:
    """Bytes of `count` numbers: one each, filled up to a multiple of 4, and a scale for each block."""
    return -(-count // 4) * 4 + SCALE_BYTES * -(-count // block)


def encoded_bytes(codec: str, count: int, block: int) -> int:
    """Bytes of `count` numbers in a codec."""
    return int8_bytes(count, block) if codec == "int8" else NUMBER_BYTES[codec] * count


def row_bytes(codec: str, columns: int, *, element_bytes: int = 4) -> int:
    """Bytes of a table's row: int8 has one scale for the row, and nothing is filled up."""
    if codec == "none":
        return element_bytes * columns
    return NUMBER_BYTES[codec] * columns + (SCALE_BYTES if codec == "int8" else 0)


def rounding_error(codec: str) -> Fraction:
    """e: the error of one rounding, as a part of |x| (16 bits) or of the block's largest number (int8)."""
    if codec != "int8":
        return UNIT_ROUNDOFF[codec]
    return Fraction(1, 2 * LEVELS) + Fraction(1, 2**21)


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """|result - exact sum| <= relative · M + absolute, with M the sum over the members of their m (see above)."""

    relative: Fraction
    absolute: Fraction


class _Tracked:
    """What is known of a sum on its way: its error, and the size of its terms, each as (part of M, absolute)."""

    def __init__(self, error: Fraction, underflow: Fraction) -> None:
        self._codec_error, self._underflow = error, underflow
        self.error, self.size = (Fraction(0), Fraction(0)), (Fraction(1), Fraction(0))

    def encode(self, count: int) -> None:
        """Each of `count` terms is rounded once."""
        grown = tuple(part * self._codec_error for part in self.size)
        more = (grown[0], grown[1] + count * self._underflow)
        self.error = (self.error[0] + more[0], self.error[1] + more[1])
        self.size = (self.size[0] + more[0], self.size[1] + more[1])

    def add(self, count: int, unit: Fraction) -> None:
        """Numbers are added `count` at a time, one after another, each addition rounded."""
        factor = (1 + unit) ** (count - 1) - 1
        self.error = (self.error[0] + factor * self.size[0], self.error[1] + factor * self.size[1])
        self.size = (self.size[0] * (1 + factor), self.size[1] * (1 + factor))


def sum_error(
    codec: str,
    num_members: int,
    *,
    on_each_node: int = 1,
    across_only: bool = False,
    through_servers: bool = False,
) -> ErrorBound:
    """How far a coded sum may be from the exact sum of what the members gave.

    The rounding of every stage is followed in exact fractions: a term that is rounded is off by e·(its size) + t, and
    an addition by u·(its result), with u that of float32 where codes are decoded before they are added (int8, servers)
    and the codec's own where the backend adds 16-bit numbers.

    Args:
        codec: float16, bfloat16 or int8.
        num_members: of the group.
        on_each_node: l, for a hierarchical sum over num_members / l nodes; 1 for one stage over all.
        across_only: whether numbers are added inside the nodes before they are rounded.
        through_servers: whether a host adds the decoded numbers.
    """
    float32 = UNIT_ROUNDOFF["float32"]
    decoded = codec == "int8" or through_servers
    own = float32 if decoded else UNIT_ROUNDOFF[codec]
    tracked = _Tracked(rounding_error(codec), UNDERFLOW[codec])
    nodes = num_members // on_each_node
    if on_each_node > 1:
        if across_only:
            tracked.add(on_each_node, float32)
            tracked.encode(nodes)
        else:
            tracked.encode(num_members)
            tracked.add(on_each_node, own)
            if codec == "int8":
                tracked.encode(nodes)
    else:
        tracked.encode(num_members)
    tracked.add(nodes, own)
    if decoded:
        tracked.encode(1)
    return ErrorBound(*tracked.error)
