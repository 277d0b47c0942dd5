"""Fact `codec-error`: a bound on the error of a group's coded average, compared with the exact mean of its inputs.

*Statement.* Let x_i be the input of member i of a group: a gradient, or the difference of its parameters to a reference
that all share; with error feedback plus the rounding errors kept from earlier messages. Let A be the mean over the
members of |x_i| for the codecs of 16 bits, and for int8, or int4, the mean of each member's largest |x_i| in the block
of numbers that share a scale. Then each decoded number differs from the exact mean of the x_i by at most

    `relative` · A + `absolute`     (two numbers of the certificate's entry)

in every group of the schedule, or it is infinite or not a number: an overflow at any stage shows in the result. A is at
most the largest |x_i|. Where gradients are summed and not averaged, read "sum" for "mean" everywhere.

*One rounding.* A codec changes a number x by at most e·m + t, where m is |x|, or for int8 the largest magnitude of its
block: e = 2⁻¹¹, t = 2⁻²⁵ (float16); 2⁻⁸, 2⁻¹³⁴ (bfloat16). e is half a unit in the last place, t half the smallest
subnormal number. int8 sends q·s with s = m/127 and q the whole number nearest to x·127/m, so it is off by at most s/2.
Scale, product and decoding are float32, u = 2⁻²⁴, which adds at most 127·(4u + 2u²)·s, so e = 1/254 + 2⁻²¹; and blocks
with m < 2⁻¹¹⁹ become zeros: t = 2⁻¹¹⁹. int4 is the same with 7 in place of 127: e = 1/14 + 2⁻²¹. In the list below,
"int8" means int8 or int4.

*One sum.* Let n numbers of a format be added in any order, partial sums to partial sums included, each addition rounded
to the nearest; u is the format's e. *Lemma (Rump 2012):* the result is off by at most (n − 1)·u·Σ|x_i|. *Proof* by
induction over the last addition, of results r₁ and r₂ that stand for n₁ and n₂ numbers with absolute sums S₁ ≥ S₂. What
it rounds off is at most u·|r₁ + r₂|, and at most |r₂|, because r₁ is a number of the format too. Where S₂ ≤ u·S₁, that
is |r₂| ≤ S₂ + (n₂ − 1)·u·S₂ ≤ u·S₁ + (n₂ − 1)·u·S₁, and with the errors of r₁ and r₂ it comes to at most
(n₁ − 1 + n₂)·u·S₁ + (n₂ − 1)·u·S₂. Else u·S₁ < S₂ and u·S₂ ≤ S₁, so it is at most
u·(S₁ + S₂ + (n₁ − 1)·u·S₁ + (n₂ − 1)·u·S₂) ≤ u·(S₁ + S₂ + (n₁ − 1)·S₂ + (n₂ − 1)·S₁), and with the errors of r₁ and r₂
it comes to (n₁ + n₂ − 1)·u·(S₁ + S₂). (Additions do not underflow: below the normal numbers they are exact.)

*All stages.* Follow a bound E = p·A + q of the error so far. The absolute values of the terms of a stage (for int8
their m) sum up to A + E at most. So rounding n terms adds e·(A + E) + n·t to E, and adding them up, n at a time, adds
(n − 1)·u·(A + E). Members first round three times in float32 (a difference to the reference, the division by k, the
conversion of double precision), then:

* ring of k members, 16 bits: round k terms; add k in 16 bits.  Ring, int8: round k; add k in float32; round 1.
* hierarchical, l members on each of h nodes (k = l·h), `where` all: round k; add l in float32; round h; add h in
  float32; round 1.
* hierarchical, `where` across-nodes: add l in float32; round h; add h in float32; round 1.
* A group that does not have the same number l ≥ 2 on each of h ≥ 2 nodes goes as a ring, and with `where` across-nodes
  a group inside one node as it is: add k in float32.

The largest p and q over all groups, also of rounds before the first period, are rounded up: `relative` is a multiple of
2⁻³², `absolute` a power of 2. `roundings` is how often codecs round one number at most, 16-bit additions counted.

*Assumed of the arithmetic:* parameters are float32 or float64, a backend's ring rounds each 16-bit addition once and to
the nearest, and float32 keeps subnormal numbers. Where parameters are averaged, adding the reference to the decoded
mean rounds once more in float32, which the bound does not include.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import chain, count
from math import ceil
from typing import Any

from .refusal import Work
from .schedule import BLOCKS, Numbers, Schedule

SINGLE, SMALLEST_SINGLE = Fraction(1, 2**24), Fraction(1, 2**150)
"""The errors e (relative) and t (absolute) of rounding to float32."""

FIRST_ROUNDINGS = 3
"""Float32 roundings of a member's input: the difference to the reference, the division, the conversion."""

ROUNDING = {
    "float16": (Fraction(1, 2**11), Fraction(1, 2**25)),
    "bfloat16": (Fraction(1, 2**8), Fraction(1, 2**134)),
    "int8": (Fraction(1, 254) + Fraction(1, 2**21), Fraction(1, 2**119)),
    "int4": (Fraction(1, 14) + Fraction(1, 2**21), Fraction(1, 2**119)),
}
"""The errors e (relative) and t (absolute) of every codec."""


def codec_error(schedule: Schedule, _: Work) -> Numbers | None:
    """Fact `codec-error`: return the bounds `relative` and `absolute` and the most `roundings`; None without codec."""
    if schedule.transport["codec"] == "none":
        return None
    sums = [coded_sum(schedule.transport, *shape) for shape in set(_shapes(schedule))]
    relative, absolute = rounded_up(*sums)
    return {"relative": relative, "absolute": absolute, "roundings": max(one.roundings for one in sums)}


class FollowedSum:
    """The error bound `relative`·A + `absolute` of a sum after some stages (A: the inputs' mean magnitude)."""

    def __init__(self) -> None:
        self.relative = self.absolute = Fraction(0)
        self.roundings = 0

    def round(self, count: int, relative: Fraction, absolute: Fraction) -> None:
        """Update the bound for one rounding of each of `count` terms, which has these relative and absolute errors."""
        self.relative += relative * (1 + self.relative)
        self.absolute += relative * self.absolute + count * absolute

    def add(self, count: int, relative: Fraction) -> None:
        """Update the bound for an addition of `count` terms, in a format with this relative error."""
        self.round(0, (count - 1) * relative, Fraction(0))


def rounded_up(*sums: FollowedSum) -> tuple[str, str]:
    """Return the largest `relative`, rounded up to a multiple of 2⁻³², and the largest `absolute`, to a power of 2."""
    relative = Fraction(ceil(max(one.relative for one in sums) * 2**32), 2**32)
    largest = max(one.absolute for one in sums)
    absolute = next(power for power in (Fraction(2) ** j for j in count(-160)) if power >= largest)
    return str(relative), str(absolute)


def coded_sum(transport: Mapping[str, Any], inside: int, nodes: int) -> FollowedSum:
    """Return the error bound of a sum of `inside` members on each of `nodes` nodes; (1, k): ring, (k, 1): not coded."""
    codec, size = transport["codec"], inside * nodes
    relative, absolute = ROUNDING[codec]
    result = FollowedSum()
    for _ in range(FIRST_ROUNDINGS):
        result.round(size, SINGLE, SMALLEST_SINGLE)
    if nodes == 1:
        result.add(size, SINGLE)
        return result
    if inside == 1 and codec not in BLOCKS:
        result.round(size, relative, absolute)
        result.add(size, relative)
        result.roundings = size
        return result
    stages = [inside, nodes] if inside > 1 else [nodes]
    if transport["where"] == "across-nodes" and inside > 1:
        result.add(inside, SINGLE)
        stages, size = [nodes], nodes
    for added in stages:
        result.round(size, relative, absolute)
        result.add(added, SINGLE)
        size //= added
    result.round(1, relative, absolute)
    result.roundings = len(stages) + 1
    return result


def _shapes(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Yield (members per node, nodes) of every group: (1, k) if a ring sums it, (k, 1) if it is not coded."""
    for average in chain.from_iterable(schedule.phases):  # one is of all, as where a prologue ends
        inside, nodes = schedule.on_nodes(average)
        if schedule.transport["where"] == "across-nodes" and nodes == 1:
            yield inside, 1
        elif schedule.transport["algorithm"] == "hierarchical" and nodes > 1:
            yield inside, nodes
        else:
            yield 1, inside * max(nodes, 1)
