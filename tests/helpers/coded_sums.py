"""A model of codecs and coded sums in NumPy, written from docs/codecs.md; it shares no code with the package.

Arrays over members have shape [members, numbers] and are float32. Not bytes are modeled but numbers: the levels and
scales of int8, and every addition with its rounding.
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

ZERO_BELOW = np.float32(2.0**-119)
UNIT_ROUNDOFF = {"float16": Fraction(1, 2**11), "bfloat16": Fraction(1, 2**8), "float32": Fraction(1, 2**24)}
"""Largest relative error of one rounding to nearest, with 11, 8 and 24 binary digits."""
LEVELS = {"int8": 127, "int4": 7}
UNDERFLOW = {
    "float16": Fraction(1, 2**25),
    "bfloat16": Fraction(1, 2**134),
    "int8": Fraction(1, 2**119),
    "int4": Fraction(1, 2**119),
}
"""Largest additional error of a number near zero: half of the last digit, or a block that is rounded to zero."""


def rounding_error(codec):
    """Return the largest error of one rounding, relative to |x| (16 bits) or to the block's largest number (int)."""
    return Fraction(1, 2 * LEVELS[codec]) + Fraction(1, 2**21) if codec in LEVELS else UNIT_ROUNDOFF[codec]


def in_bfloat16(values):
    """Round float32 values to the nearest bfloat16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values).astype(np.float32)


def in_float16(values):
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


SHORT = {"float16": in_float16, "bfloat16": in_bfloat16}


def peaks_of(values, block):
    """Return, for each number, the largest absolute value in its block."""
    values = np.abs(np.asarray(values))
    starts = np.arange(0, len(values), block)
    return np.repeat(np.maximum.reduceat(values, starts), np.diff([*starts, len(values)])) if len(values) else values


def quantize(values, block, top=127):
    """Return the int8 levels and the scale of each number; with `top` 7 those of int4."""
    values = np.asarray(values, np.float32)
    peaks = peaks_of(values, block).astype(np.float32)
    plain = (peaks >= ZERO_BELOW) & np.isfinite(peaks)
    with np.errstate(all="ignore"):
        factors = np.where(plain, np.float32(top) / peaks, np.float32(0)).astype(np.float32)
        scales = np.where(plain, peaks / np.float32(top), np.where(peaks < ZERO_BELOW, 0, np.nan)).astype(np.float32)
        scaled = values * factors
        levels = np.rint(scaled)
    return np.where(plain, levels + 0.0, 0).astype(np.float32), scales  # whole numbers have one zero


def in_blocks(values, block, top=127):
    """Return the numbers after encoding and decoding in int8 (with `top` 7: int4)."""
    levels, scales = quantize(values, block, top)
    with np.errstate(invalid="ignore"):
        return levels * scales


def cut(length, parts, unit):
    """Return (start, end) of `parts` nearly equal parts of `length` numbers, in multiples of `unit`."""
    units = -(-length // unit)
    cuts = [min(length, units * part // parts * unit) for part in range(parts + 1)]
    return list(itertools.pairwise(cuts))


def add_in_order(rows):
    """Add the rows in order, each addition rounded to float32."""
    total = rows[0].copy()
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            total = total + row
    return total


def flat_sum(given, block, top=127):
    """Return the coded sum that all members get: quantize, add each shard in order of members, quantize again."""
    members, length = given.shape
    coded = np.empty_like(given)
    bounds = cut(length, members, block)
    result = np.empty(length, np.float32)
    for member in range(members):
        for start, end in bounds:
            coded[member, start:end] = in_blocks(given[member, start:end], block, top)
    for start, end in bounds:
        result[start:end] = in_blocks(add_in_order(coded[:, start:end]), block, top)
    return result


def hierarchical_sum(given, codec, block, *, on_each, across_only, parts=1):
    """Return the coded sum in three stages, for members listed node by node; for 16 bits `block` is 1."""
    length = given.shape[1]
    result = np.empty(length, np.float32)
    for start, end in cut(length, parts, block):
        if end > start:
            result[start:end] = _part(given[:, start:end], codec, block, on_each, across_only=across_only)
    return result


def round_by_codec(values, codec, block):
    return in_blocks(values, block, LEVELS[codec]) if codec in LEVELS else SHORT[codec](values)


def _part(given, codec, block, on_each, *, across_only):
    members, length = given.shape
    nodes = members // on_each
    shards = cut(length, on_each, block)
    rounded = given.copy()
    if not across_only:
        for member in range(members):
            for start, end in shards:
                rounded[member, start:end] = round_by_codec(given[member, start:end], codec, block)
    result = np.empty(length, np.float32)
    for start, end in shards:
        finer = cut(end - start, nodes, block)
        sent = np.empty((nodes, end - start), np.float32)
        for node in range(nodes):
            own = add_in_order(rounded[node * on_each : (node + 1) * on_each, start:end])
            for first, last in finer:
                sent[node, first:last] = round_by_codec(own[first:last], codec, block)
        for first, last in finer:
            result[start + first : start + last] = round_by_codec(add_in_order(sent[:, first:last]), codec, block)
    return result


def short_sums(given, codec):
    """Return every possible result of a ring sum of 16-bit numbers, shape [candidates, numbers].

    The backend may start each piece of the ring at any member and goes around in one direction; each addition is
    rounded.
    """
    short = SHORT[codec]
    rows = short(given)
    candidates = []
    with np.errstate(all="ignore"):
        for first in range(len(rows)):
            for direction in (1, -1):
                total = rows[first]
                for hop in range(1, len(rows)):
                    total = short(total + rows[(first + direction * hop) % len(rows)])
                candidates.append(total)
    return np.stack(candidates)


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """|result - exact sum| <= relative · M + absolute, with M the sum of the members' m of `topo.codec_numbers`."""

    relative: Fraction
    absolute: Fraction


class _ErrorTracker:
    """The error of a sum in progress and the size of its terms, each as a pair (multiple of M, absolute part)."""

    def __init__(self, error, underflow):
        self._codec_error, self._underflow = error, underflow
        self.error, self.size = (Fraction(0), Fraction(0)), (Fraction(1), Fraction(0))

    def encode(self, count):
        """Add the error of rounding each of `count` terms once."""
        grown = tuple(part * self._codec_error for part in self.size)
        more = (grown[0], grown[1] + count * self._underflow)
        self.error = (self.error[0] + more[0], self.error[1] + more[1])
        self.size = (self.size[0] + more[0], self.size[1] + more[1])

    def add(self, count, unit):
        """Add the error of adding `count` numbers one after another, each time rounded with relative error `unit`."""
        factor = (1 + unit) ** (count - 1) - 1
        self.error = (self.error[0] + factor * self.size[0], self.error[1] + factor * self.size[1])
        self.size = (self.size[0] * (1 + factor), self.size[1] * (1 + factor))


def sum_error(codec, num_members, *, on_each_node=1, across_only=False, through_servers=False):
    """Return the largest possible error of a coded sum of the members' numbers.

    The rounding of every stage is followed in exact fractions: rounding a term adds an error of e·(its size) + t, an
    addition one of u·(its result). u is that of float32 if codes are decoded before they are added, which is always the
    case but in a ring of 16-bit numbers.
    """
    float32 = UNIT_ROUNDOFF["float32"]
    decoded = codec in LEVELS or through_servers or on_each_node > 1
    tracked = _ErrorTracker(rounding_error(codec), UNDERFLOW[codec])
    nodes = num_members // on_each_node
    if not across_only:
        tracked.encode(num_members)
    if on_each_node > 1:
        tracked.add(on_each_node, float32)
        tracked.encode(nodes)
    tracked.add(nodes, float32 if decoded else UNIT_ROUNDOFF[codec])
    if decoded:
        tracked.encode(1)
    return ErrorBound(*tracked.error)
