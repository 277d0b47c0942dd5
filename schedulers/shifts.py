"""EquiStatic graphs: a few random cyclic shifts at once, directed or not."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil, gcd, log

import numpy as np

from topo.strategies.neighbor import Round


def shifts(num_workers: int, count: int, seed: int) -> list[int]:
    """`count` shifts drawn uniformly from 1..n−1, drawn again until together they connect everybody.

    One of 1000 draws connects unless all have a factor in common with n; then the last is replaced by 1.
    """
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        drawn: list[int] = rng.integers(1, num_workers, size=count).tolist()
        if gcd(num_workers, *drawn) == 1:
            return drawn
    return [*drawn[:-1], 1]


def default_shifts(num_workers: int) -> int:
    """⌈ln n⌉, at least 1."""
    return max(1, ceil(log(num_workers)))


def round_of(num_workers: int, drawn: list[int], *, undirected: bool) -> Round:
    """W = mean of A^(a) with A^(a) = (n−1)/n·S^a + I/n; undirected: (W + Wᵀ)/2."""
    share = Fraction(num_workers - 1, num_workers * len(drawn))
    total: Counter[int] = Counter()
    for a in drawn:
        total[a] += 2
    if undirected:
        total = Counter({a: 0 for a in total})
        for a in drawn:
            total[a] += 1
            total[num_workers - a] += 1
    i = np.arange(num_workers, dtype=np.int64)
    hops = sorted(total)
    return Round.from_arrays(
        num_workers,
        np.tile(i, len(hops)),
        np.concatenate([(i + hop) % num_workers for hop in hops]),
        [share * total[hop] / 2 for hop in hops],
        np.repeat(np.arange(len(hops)), num_workers),
    )
