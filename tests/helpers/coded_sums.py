"""A model in NumPy of what codecs make of numbers and sums, written from docs/codecs.md; it shares no code with them.

Arrays of members are [members, numbers], float32. Bytes are not modelled, numbers are: levels and scales of int8, and
every addition with its rounding.
"""

from __future__ import annotations

import itertools

import numpy as np

ZERO_BELOW = np.float32(2.0**-119)


def in_bfloat16(values):
    """float32 rounded to the nearest bfloat16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values).astype(np.float32)


def in_float16(values):
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


SHORT = {"float16": in_float16, "bfloat16": in_bfloat16}


def peaks_of(values, block):
    """The largest absolute value of each number's block."""
    values = np.abs(np.asarray(values))
    starts = np.arange(0, len(values), block)
    return np.repeat(np.maximum.reduceat(values, starts), np.diff([*starts, len(values)])) if len(values) else values


def quantised(values, block):
    """(levels, the scale of each number) of int8."""
    values = np.asarray(values, np.float32)
    peaks = peaks_of(values, block).astype(np.float32)
    plain = (peaks >= ZERO_BELOW) & np.isfinite(peaks)
    with np.errstate(all="ignore"):
        factors = np.where(plain, np.float32(127) / peaks, np.float32(0)).astype(np.float32)
        scales = np.where(plain, peaks / np.float32(127), np.where(peaks < ZERO_BELOW, 0, np.nan)).astype(np.float32)
        scaled = values * factors
        levels = np.rint(scaled)
    return np.where(plain, levels + 0.0, 0).astype(np.float32), scales  # whole numbers have one zero


def in_eight_bits(values, block):
    """The numbers that come out of int8's code."""
    levels, scales = quantised(values, block)
    with np.errstate(invalid="ignore"):
        return levels * scales


def cut(length, parts, unit):
    """Bounds of nearly equal parts of whole units."""
    units = -(-length // unit)
    cuts = [min(length, units * part // parts * unit) for part in range(parts + 1)]
    return list(itertools.pairwise(cuts))


def added(rows):
    """In order of places, each addition rounded to float32."""
    total = rows[0].copy()
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            total = total + row
    return total


def flat_sum(given, block):
    """Quantise, add each shard in order of places, quantise: what all members have."""
    members, length = given.shape
    coded = np.empty_like(given)
    bounds = cut(length, members, block)
    result = np.empty(length, np.float32)
    for member in range(members):
        for start, end in bounds:
            coded[member, start:end] = in_eight_bits(given[member, start:end], block)
    for start, end in bounds:
        result[start:end] = in_eight_bits(added(coded[:, start:end]), block)
    return result


def hierarchical_sum(given, block, *, on_each, across_only, parts=1):
    """The same in three stages, for members that lie on their nodes one after another."""
    length = given.shape[1]
    result = np.empty(length, np.float32)
    for start, end in cut(length, parts, block):
        if end > start:
            result[start:end] = _part(given[:, start:end], block, on_each, across_only=across_only)
    return result


def _part(given, block, on_each, *, across_only):
    members, length = given.shape
    nodes = members // on_each
    shards = cut(length, on_each, block)
    coded = given.copy()
    if not across_only:
        for member in range(members):
            for start, end in shards:
                coded[member, start:end] = in_eight_bits(given[member, start:end], block)
    result = np.empty(length, np.float32)
    for start, end in shards:
        finer = cut(end - start, nodes, block)
        sent = np.empty((nodes, end - start), np.float32)
        for node in range(nodes):
            own = added(coded[node * on_each : (node + 1) * on_each, start:end])
            for first, last in finer:
                sent[node, first:last] = in_eight_bits(own[first:last], block)
        for first, last in finer:
            result[start + first : start + last] = in_eight_bits(added(sent[:, first:last]), block)
    return result


def short_sums(given, codec, *, on_each=1, across_only=False):
    """Every sum that a ring of 16-bit numbers can come to: [candidates, numbers].

    The backend begins each piece of the ring at another member and goes around in one direction; each addition is
    rounded. Inside nodes numbers are added in order of places.
    """
    short = SHORT[codec]
    rows = given if across_only else short(given)
    if on_each > 1:
        nodes = []
        for first in range(0, len(rows), on_each):
            total = rows[first]
            for row in rows[first + 1 : first + on_each]:
                total = (total + row).astype(np.float32) if across_only else short(total + row)
            nodes.append(total)
        rows = short(np.stack(nodes))
    candidates = []
    with np.errstate(all="ignore"):
        for first in range(len(rows)):
            for direction in (1, -1):
                total = rows[first]
                for hop in range(1, len(rows)):
                    total = short(total + rows[(first + direction * hop) % len(rows)])
                candidates.append(total)
    return np.stack(candidates)
