"""Small exact schedules of relaxed pairs that a search found; every one is checked exactly by a test.

Each line is a round, each item a pair `i-j:a`: both workers move by the weight a towards each other (relax t = 2a).
Found by least squares over the weights of random matchings, a script that stood in benchmarks/ up to a6821423.
For 5 and 9 workers the number of rounds meets the gossip bound.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

WeightedRound = tuple[tuple[int, int, Fraction], ...]
"""Pairs (i, j, a): both workers move by the weight a towards each other."""

KNOWN: dict[int, tuple[str, ...]] = {
    5: (
        "0-1:1/2 2-3:1/2",
        "0-4:2/3 1-2:2/3",
        "0-2:3/5 3-4:2/5",
        "0-3:1/2 1-2:1/2",
    ),
    9: (
        "0-1:1/2 2-3:1/2 4-5:1/2 6-7:1/2",
        "0-2:4/7 1-4:2/3 3-8:2/3 5-6:1/3",
        "2-7:2/9 3-5:1/3 4-8:1/2",
        "0-3:1/2 1-7:1/2 4-6:2/3",
        "0-7:1/2 1-3:1/2 2-5:1/2 4-8:1/2",
    ),
    11: (
        "0-1:1/2 2-3:1/2 4-5:1/2 6-7:1/2 8-9:1/2",
        "0-4:3/5 2-6:1/2 5-10:3/5 8-9:23/62",
        "0-1:1/3 3-7:1/2 4-6:5/11 5-8:6/11 9-10:1/2",
        "0-7:5/11 1-2:1/2 3-8:1/2 4-10:1/2 5-6:1/3",
        "0-9:1/2 1-8:1/2 2-3:1/2 4-10:29/63 5-7:19/36",
        "0-1:1/2 2-9:1/2 3-10:1/2 4-8:1/2 5-7:1/2",
    ),
}


@cache
def known_rounds(num_workers: int) -> tuple[WeightedRound, ...] | None:
    """The tabulated rounds for `num_workers`, None if there are none."""
    if num_workers not in KNOWN:
        return None
    return tuple(tuple(_pair(item) for item in line.split()) for line in KNOWN[num_workers])


def _pair(item: str) -> tuple[int, int, Fraction]:
    pair, weight = item.split(":")
    i, j = pair.split("-")
    return int(i), int(j), Fraction(weight)
