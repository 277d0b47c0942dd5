"""Exact consensus for every even n by Euclid's algorithm: two rows of workers that slide along each other.

n = 2m. In each round worker u of the left row meets worker u + shift (mod m) of the right row, all with one weight.
Subtractive Euclid, read backwards, leads from the pieces (1, 1) to coprime pieces of m: a step takes the sum x + y as
the new large piece and keeps the small one (S) or the large one (L). A word in S and L so gives kept pieces c₀ = 1,
c₁, … and sums d₀ = 2, d₁, …, d_k = m. The rounds are:

- shift 0, weight 1/2;
- weights c_k/d_k, …, c₁/d₁, the largest sum first;
- a last round of weight 1/2;
- the shifts after the first are c′₀, c′₀ + c′₁, …, the kept pieces of the reversed word added up.

That is k + 2 rounds, the sum of the partial quotients of m/a for the coprime a that gave the word; the best a is taken.
For Fibonacci numbers m this is about 1.44·log₂ n. The rule was read off from what `cyclic_search` found and holds
for every even n from 6 to 4096, by exact multiplication; there is no proof here, so whoever uses rounds multiplies them
out first, by `is_exact_slide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd

from partreduce.schedulers.exact_rounds.known_rounds import WeightedRound

Slide = tuple[int, Fraction]
"""Shift and weight of one round."""

HALF = Fraction(1, 2)


def word_of(large: int, small: int) -> str:
    """The steps that lead from (1, 1) to coprime pieces large > small, after the first, which has no choice."""
    steps = []
    while large > 2:
        rest = large - small
        steps.append("L" if small > rest else "S")
        large, small = max(rest, small), min(rest, small)
    return "".join(reversed(steps))


def pieces(word: str) -> list[tuple[int, int]]:
    """Kept piece and sum after the start and after every step: (1, 2), (1, 3), … along the word."""
    large, small = 2, 1
    result = [(1, 2), (1, 3)]
    for step in word:
        kept = large if step == "L" else small
        large, small = large + small, kept
        result.append((small, large + small))
    return result


def slides(half: int) -> tuple[Slide, ...]:
    """The shortest rounds of this kind for m = `half` ≥ 3 workers in each row. O(m log m)."""
    coprime = [a for a in range(1, half // 2 + 1) if gcd(a, half) == 1]
    word = min((word_of(half - a, a) for a in coprime), key=len)
    weights = [Fraction(kept, total) for kept, total in reversed(pieces(word)[1:])]
    shifts = [0]
    for kept, _ in pieces(word[::-1]):
        shifts.append(shifts[-1] + kept)
    return tuple(zip(shifts, [HALF, *weights, HALF], strict=True))


def is_exact_slide(half: int, rounds: Sequence[Slide]) -> bool:
    """Whether the product is exactly the mean of all 2m workers: worker 0 of each row decides for its row. O(T·m)."""
    # What the left worker 0 and the right worker 0 hold, as shares of the left and of the right row, times `scale`.
    left = [1] + [0] * (2 * half - 1)
    right = [0] * half + [1] + [0] * (half - 1)
    scale = 1
    for shift, weight in rounds:
        move, keep = weight.numerator, weight.denominator - weight.numerator
        there = _turned(right, shift, half)
        met = [keep * y + move * x for x, y in zip(left, there, strict=True)]
        left = [keep * x + move * y for x, y in zip(left, there, strict=True)]
        right = _turned(met, -shift, half)
        scale *= weight.denominator
    return all(2 * half * share == scale for share in (*left, *right))


def _turned(row: list[int], shift: int, half: int) -> list[int]:
    """What the worker `shift` places on holds, if worker 0 holds `row`."""
    k = shift % half
    return [*row[half - k : half], *row[: half - k], *row[2 * half - k :], *row[half : 2 * half - k]]


def slide_rounds(half: int) -> tuple[WeightedRound, ...]:
    """The rounds for 2m workers, the left row 0 … m−1, the right row m … 2m−1."""
    return tuple(tuple((u, half + (u + shift) % half, weight) for u in range(half)) for shift, weight in slides(half))
