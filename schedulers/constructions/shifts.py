"""Cyclic shifts: rounds in which everybody sends a fixed distance further on, in a fixed order or drawn at random.

One-peer exponential graph, stochastic gradient push, GossipGraD, EquiStatic, OD- and OU-EquiDyn. S is the cyclic shift
by one worker, so S^a x has at place i what worker i − a held.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil, gcd, log

import numpy as np

from partreduce.schedulers.constructions.sizes import MAX_PERIOD_EDGES
from partreduce.topo.arithmetic.whole_numbers import ceil_log
from partreduce.topo.cluster import Cluster
from partreduce.topo.round import Round
from partreduce.topo.strategies.neighbor import Neighbor

HALF = Fraction(1, 2)
ETA = Fraction(1, 2)
"""How far OD- and OU-EquiDyn go towards the shifted model; the paper's η."""


def shift(num_workers: int, hop: int, weight: Fraction) -> Round:
    """Everybody sends to the worker `hop` further on: x_{i+hop} ← (1 − weight)·x_{i+hop} + weight·x_i. O(n)."""
    i = np.arange(num_workers, dtype=np.int64)
    return Round.from_arrays(num_workers, i, (i + hop) % num_workers, [weight], np.zeros(num_workers, np.int32))


def one_peer_exponential(cluster: Cluster) -> Neighbor:
    """Rounds (I + S^{2^k})/2 for k < ⌈log₂ n⌉."""
    count = cluster.num_workers
    return Neighbor(rounds=tuple(shift(count, 2**k, HALF) for k in range(ceil_log(count))))


def sgp(cluster: Cluster, variant: str) -> Neighbor:
    """Push-sum on permutations keeps its weights at 1, so that the rounds are plain averages (I + S^hop)/2."""
    count = cluster.num_workers
    return Neighbor(rounds=tuple(shift(count, hop, HALF) for hop in _sgp_hops(count, variant)))


def _sgp_hops(num_workers: int, variant: str) -> list[int]:
    """`alternating`: +1, −1, +2, −2, +4, …; `bipartite`: ±1, ±(1+2^k), so that even ranks meet odd ranks only."""
    powers = [2**k for k in range(ceil_log(num_workers))]
    if variant == "bipartite":
        powers = sorted({1, *(1 + power for power in powers[1:])})
    signed = [sign * hop for hop in powers if hop < num_workers for sign in (1, -1)]
    return list(dict.fromkeys(hop % num_workers for hop in signed))


def sgp_refusal(cluster: Cluster, variant: str) -> str | None:
    """Even ranks meet odd ranks only if there are as many of each."""
    if variant == "bipartite" and cluster.num_workers % 2:
        return f"{cluster.num_workers} workers are not even and the bipartite graph needs that; use variant=alternating"
    return None


def gossipgrad(cluster: Cluster, sweeps: int, seed: int) -> Neighbor:
    """A sweep sends to virtual rank + 2^r for r < ⌈log₂ n⌉; the first keeps the ranks, later ones shuffle them."""
    count = cluster.num_workers
    rng = np.random.default_rng(seed)
    rounds = []
    for sweep in range(sweeps):
        ranks = np.arange(count) if sweep == 0 else rng.permutation(count)
        for r in range(ceil_log(count)):
            targets = np.roll(ranks, -(2**r))
            rounds.append(Round.from_arrays(count, ranks, targets, [HALF], np.zeros(count, np.int32)))
    return Neighbor(rounds=tuple(rounds))


def gossipgrad_refusal(cluster: Cluster, sweeps: int, seed: int) -> str | None:
    """Any cluster, but a period that stays a sensible length."""
    del seed
    edges = sweeps * cluster.num_workers * ceil_log(cluster.num_workers)
    return None if edges <= MAX_PERIOD_EDGES else f"{sweeps} sweeps have {edges} edges in a period; use fewer"


def equistatic(cluster: Cluster, num_shifts: int | None, seed: int, *, undirected: bool) -> Neighbor:
    """One fixed round of a few random shifts."""
    count = cluster.num_workers
    distances = draw_shifts(count, max(1, ceil(log(count))) if num_shifts is None else num_shifts, seed)
    return Neighbor(rounds=(mean_of_shifts(count, distances, undirected=undirected),))


def equistatic_refusal(cluster: Cluster, num_shifts: int | None, seed: int) -> str | None:
    """More shifts than other workers are of no use."""
    del seed
    count = cluster.num_workers
    if num_shifts is not None and num_shifts > 8 * count:
        return f"{num_shifts} shifts of {count} workers; there are {count - 1} different ones, use at most {8 * count}"
    return None


def draw_shifts(num_workers: int, count: int, seed: int) -> list[int]:
    """`count` shifts drawn uniformly from 1..n−1, drawn again until together they connect everybody.

    One of 1000 draws connects unless all have a factor in common with n; then the last is replaced by 1.
    """
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        distances: list[int] = rng.integers(1, num_workers, size=count).tolist()
        if gcd(num_workers, *distances) == 1:
            return distances
    return [*distances[:-1], 1]


def mean_of_shifts(num_workers: int, distances: list[int], *, undirected: bool) -> Round:
    """W = mean of A^(a) with A^(a) = (n−1)/n·S^a + I/n; undirected: (W + Wᵀ)/2."""
    share = Fraction(num_workers - 1, num_workers * len(distances))
    halves: Counter[int] = Counter()  # of a share, for each distance
    for a in distances:
        for hop in (a, num_workers - a) if undirected else (a, a):
            halves[hop] += 1
    i = np.arange(num_workers, dtype=np.int64)
    hops = sorted(halves)
    return Round.from_arrays(
        num_workers,
        np.tile(i, len(hops)),
        np.concatenate([(i + hop) % num_workers for hop in hops]),
        [share * halves[hop] / 2 for hop in hops],
        np.repeat(np.arange(len(hops)), num_workers),
    )


def od_equidyn(cluster: Cluster, rounds: int, seed: int) -> Neighbor:
    """Rounds (1−η)I + η·A^(a) with A^(a) = (n−1)/n·S^a + I/n and η = 1/2, one random a a round."""
    count = cluster.num_workers
    weight = ETA * Fraction(count - 1, count)
    distances = _draw_one_a_round(count, rounds, np.random.default_rng(seed))
    return Neighbor(rounds=tuple(shift(count, distance, weight) for distance in distances))


def ou_equidyn(cluster: Cluster, rounds: int, seed: int) -> Neighbor:
    """Lazy matchings of random distance: partners keep 1 − η(n−1)/n of themselves, η = 1/2."""
    count = cluster.num_workers
    rng = np.random.default_rng(seed)
    distances = _draw_one_a_round(count, rounds, rng)
    starts = rng.integers(0, count, size=rounds).tolist()
    return Neighbor(rounds=tuple(matching(count, a, start) for a, start in zip(distances, starts, strict=True)))


def equidyn_refusal(cluster: Cluster, rounds: int, seed: int) -> str | None:
    """Any cluster, but a period that stays a sensible size."""
    del seed
    edges = rounds * cluster.num_workers
    return None if edges <= MAX_PERIOD_EDGES else f"{rounds} rounds have {edges} edges in a period; use fewer"


def _draw_one_a_round(num_workers: int, count: int, rng: np.random.Generator) -> list[int]:
    """Shifts uniform in 1..n−1; the last is drawn again, in the end set to 1, until together they connect all."""
    distances: list[int] = rng.integers(1, num_workers, size=count).tolist()
    for _ in range(100):
        if gcd(num_workers, *distances) == 1:
            return distances
        distances[-1] = int(rng.integers(1, num_workers))
    return [*distances[:-1], 1]


def matching(num_workers: int, distance: int, start: int) -> Round:
    """Walk from `start` through all workers; pair i with i + distance where both are still free.

    Each cycle of the shift is paired along its own direction from the first of its workers that the walk meets, so the
    walk needs no loop over workers: worker number k of its cycle pairs with number k + 1 for even k. O(n log n).
    """
    cycles = gcd(num_workers, distance)
    length = num_workers // cycles
    walk = (start + np.arange(cycles, dtype=np.int64)) % num_workers  # (cycles,): a first worker for each
    steps = np.arange(0, length - 1, 2, dtype=np.int64)  # (pairs in a cycle,)
    first = ((walk[:, None] + steps[None, :] * distance) % num_workers).reshape(-1)
    second = (first + distance) % num_workers
    weight = ETA * Fraction(num_workers - 1, num_workers)
    both = (np.concatenate([first, second]), np.concatenate([second, first]))
    return Round.from_arrays(num_workers, *both, [weight], np.zeros(2 * len(first), np.int64))
