"""Exact consensus built from smaller schedules: powers of two, the binary split, slides, products, the found table."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from partreduce.schedulers.exact_rounds.euclid_slides import is_exact_slide, slide_rounds, slides
from partreduce.schedulers.exact_rounds.known_rounds import WeightedRound, known_rounds
from partreduce.topo.arithmetic.whole_numbers import divisors

Rounds = tuple[WeightedRound, ...]
HALF = Fraction(1, 2)


def hypercube_rounds(exponent: int, start: int = 0) -> Rounds:
    """2^exponent workers from `start`: in round r, workers that differ in bit r average. `exponent` rounds."""
    return tuple(
        tuple((start + i, start + (i | 1 << r), HALF) for i in range(1 << exponent) if not i >> r & 1)
        for r in range(exponent)
    )


def split_rounds(num_workers: int) -> Rounds:
    """Any n, by the powers of two that make it up, in p₁ + max_l (l + p_l) rounds.

    Each part averages; then, part after part, every worker of the later parts meets one worker of this part with such
    a weight that the later parts get the overall mean of what is left; then the part averages again.

    Source: the Simple Base-(k+1) graph of Takezawa et al. (NeurIPS 2023) at k = 1, written as relaxed pairs.
    """
    exponents = [e for e in range(num_workers.bit_length() - 1, -1, -1) if num_workers >> e & 1]
    starts = [sum(1 << e for e in exponents[:place]) for place in range(len(exponents))]
    first = exponents[0]
    length = first + max((place + 1 + e for place, e in enumerate(exponents[:-1])), default=0)
    rounds: list[list[tuple[int, int, Fraction]]] = [[] for _ in range(length)]
    for start, exponent in zip(starts, exponents, strict=True):
        for r, pairs in enumerate(hypercube_rounds(exponent, start)):
            rounds[r] += pairs
    for place, (start, exponent) in enumerate(zip(starts[:-1], exponents[:-1], strict=True)):
        size, rest = 1 << exponent, num_workers - start
        later = rest - size
        rounds[first + place] += [(start + k, start + size + k, Fraction(size, rest)) for k in range(later)]
        for r, pairs in enumerate(hypercube_rounds(exponent, start)):
            rounds[first + place + 1 + r] += pairs
    return tuple(tuple(pairs) for pairs in rounds)


def product_rounds(outer: Rounds, num_outer: int, inner: Rounds, num_inner: int) -> Rounds:
    """N = a·b: worker x·b + y. Every column runs the schedule for a, then every row the one for b; rounds add up."""
    across = tuple(
        tuple((i * num_inner + y, j * num_inner + y, w) for i, j, w in pairs for y in range(num_inner))
        for pairs in outer
    )
    along = tuple(
        tuple((x * num_inner + i, x * num_inner + j, w) for i, j, w in pairs for x in range(num_outer))
        for pairs in inner
    )
    return across + along


def glued_rounds(inner: Rounds, num_inner: int, outer: Rounds, num_outer: int) -> Rounds:
    """N = a·b/2 for even a and b: the schedule for a in blocks also does what the first round of the one for b does.

    Each pair of that first round, which averages everybody, stands for a block of a workers, half of them in each of
    its places. One round less than the sum.
    """
    copies = num_inner // 2
    blocks = [
        [*(i * copies + k for k in range(copies)), *(j * copies + k for k in range(copies))] for i, j, _ in outer[0]
    ]
    inside = tuple(tuple((block[i], block[j], w) for i, j, w in pairs for block in blocks) for pairs in inner)
    across = tuple(
        tuple((i * copies + k, j * copies + k, w) for i, j, w in pairs for k in range(copies)) for pairs in outer[1:]
    )
    assert 2 * len(blocks) == num_outer
    return inside + across


@cache
def pair_rounds(num_workers: int) -> tuple[Rounds, str]:
    """The shortest exact schedule of relaxed pairs known here for n workers, and how it is made. Any n ≥ 1."""
    if num_workers == 1:
        return (), "nothing to do"
    best, how = split_rounds(num_workers), "hypercube" if num_workers & (num_workers - 1) == 0 else "binary split"
    if (known := known_rounds(num_workers)) is not None and len(known) < len(best):
        best, how = known, "found by search"
    half, odd = divmod(num_workers, 2)
    if not odd and half > 2:
        rounds = slides(half)
        if len(rounds) < len(best) and is_exact_slide(half, rounds):
            best, how = slide_rounds(half), "slide"
    for factor in (d for d in divisors(num_workers) if d > 1 and d * d <= num_workers):
        other = num_workers // factor
        left, right = pair_rounds(factor)[0], pair_rounds(other)[0]
        if len(left) + len(right) < len(best):
            best, how = product_rounds(left, factor, right, other), f"product {factor} x {other}"
    for factor in (d for d in divisors(half) if not odd and 1 < d < half and d * d <= half):
        left, right = pair_rounds(2 * factor)[0], pair_rounds(num_workers // factor)[0]
        if len(left) + len(right) - 1 < len(best) and _averages_everybody(right[0], num_workers // factor):
            best = glued_rounds(left, 2 * factor, right, num_workers // factor)
            how = f"{2 * factor} glued to {num_workers // factor}"
    return best, how


def _averages_everybody(pairs: WeightedRound, num_workers: int) -> bool:
    return 2 * len(pairs) == num_workers and all(weight == HALF for _, _, weight in pairs)
