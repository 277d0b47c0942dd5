"""EquiStatic graphs: a few random cyclic shifts at once, directed or not."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil, gcd, log
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.constructions.common import SEED, rounds
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.strategies.neighbor import Round

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def equistatic(*, name: str, summary: str, degree: str, undirected: bool) -> Entry:
    """The entry of one fixed round of a few random shifts."""

    def make(cluster: Cluster, num_shifts: int | None, seed: int) -> Schedule:
        count = cluster.num_workers
        drawn = shifts(count, default_shifts(count) if num_shifts is None else num_shifts, seed)
        only = round_of(count, drawn, undirected=undirected)
        return rounds(made.label(num_shifts=num_shifts, seed=seed), cluster, [only])

    made = Entry(
        name=name,
        summary=summary,
        source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
        kind="graph",
        make=make,
        refuse=refuse,
        parameters=(Parameter(name="num_shifts", minimum=1, help="M, shifts drawn; auto: ⌈ln n⌉"), SEED),
        degree=degree,
        period="1",
        figures="‖W − J‖₂ < ε with probability 1 − p for M = 8 ln(2n/p)/(3ε²)",
    )
    return made


def refuse(cluster: Cluster, num_shifts: int | None, seed: int) -> str | None:
    """More shifts than other workers are of no use."""
    del seed
    count = cluster.num_workers
    if num_shifts is not None and num_shifts > 8 * count:
        return f"{num_shifts} shifts of {count} workers; there are {count - 1} different ones, use at most {8 * count}"
    return None


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
