"""Small exact schedules of relaxed pairs that the searches found; every one is checked exactly by a test.

`FREE`: each line is a round, each item a pair `i-j:a`: both workers move by the weight a towards each other (relax
t = 2a). Found by `exact_search.search_pairs` (number of workers, rounds, seed): (5, 4, 1), (9, 5, 1), (11, 6, 1).

`CYCLIC`: n = 2m workers, each item `shift:a` is a round in which worker 2u meets worker 2(u + shift mod m) + 1, all
with weight a. Found by `exact_cyclic.search_cyclic(n, rounds, m)` in 0.1 to 90 seconds.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedulers.synthesis.exact_pairs import WeightedRound

FREE: dict[int, tuple[str, ...]] = {
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

CYCLIC: dict[int, str] = {
    6: "0:1/2 2:1/3 1:1/2",
    10: "0:1/2 4:1/3 1:3/5 4:1/2",
    14: "0:1/2 2:4/7 0:1/4 3:2/3 0:1/2",
    18: "0:1/2 6:2/3 0:1/2 2:1/3 7:1/2",
    22: "0:1/2 10:2/3 0:1/4 8:3/7 1:4/11 5:1/2",
    26: "0:1/2 10:8/13 0:5/8 7:3/5 3:1/3 5:1/2",
    30: "0:1/2 12:2/3 6:3/5 12:1/2 13:2/3 6:1/2",
    34: "0:1/2 6:1/3 12:3/4 13:4/7 12:3/10 3:10/17 12:1/2",
    38: "0:1/2 18:2/3 16:3/5 13:3/8 10:3/11 18:11/19 10:1/2",
    42: "0:1/2 14:2/3 0:1/2 6:10/21 19:6/11 17:2/5 0:1/2",
    50: "0:1/2 22:3/5 5:2/3 14:1/2 4:2/3 9:2/5 14:1/2",
    54: "0:1/2 26:2/3 3:1/2 15:1/3 0:1/2 18:2/3 0:1/2",
}


@cache
def found_rounds(num_workers: int) -> tuple[WeightedRound, ...] | None:
    """The tabulated rounds for `num_workers`, None if there are none."""
    if num_workers in CYCLIC:
        return tuple(_turned(item, num_workers // 2) for item in CYCLIC[num_workers].split())
    if num_workers in FREE:
        return tuple(tuple(_pair(item) for item in line.split()) for line in FREE[num_workers])
    return None


def _pair(item: str) -> tuple[int, int, Fraction]:
    pair, weight = item.split(":")
    i, j = pair.split("-")
    return int(i), int(j), Fraction(weight)


def _turned(item: str, turn: int) -> WeightedRound:
    shift, weight = item.split(":")
    return tuple((2 * u, 2 * ((u + int(shift)) % turn) + 1, Fraction(weight)) for u in range(turn))
