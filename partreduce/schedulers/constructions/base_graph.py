"""Simple Base-(k+1) and Base-(k+1): exact consensus for any number of workers, with at most k partners a round.

The n workers are split into parts of a_l·(k+1)^{p_l} workers, with a_l the digits of n in base k+1; a part has a_l
blocks of equal size. First every part averages along the axes of a grid (a hyper-cuboid). Then each part, the largest
first, exchanges with all smaller ones: each worker of those averages with one worker of each block, with the weight
that moves the right share of their mean into the block. Then the blocks average once more.
Source: Takezawa, Sato, Bao, Niwa, Yamada, Beyond exponential graph, NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.whole_numbers import ceil_log, fewest_factors, prime_factors
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.static import GroupPhases, StaticGroups

Ints = npt.NDArray[np.int64]


def base_k_plus_1(cluster: Cluster, k: int) -> StaticGroups | NeighborAveraging:
    """Return Base-(k+1) for a cluster: exact consensus with at most k partners of a worker in a round.

    The schedule has groups if every round can be groups (`as_phase`), else weighted graphs.
    """
    exchanges = base(cluster.num_workers, k)
    phases = tuple(phase for exchange in exchanges if (phase := as_phase(exchange)) is not None)
    if len(phases) == len(exchanges):
        return StaticGroups(phases=GroupPhases(phases))
    return NeighborAveraging(rounds=tuple(as_round(exchange) for exchange in exchanges))


def base_unsupported_reason(cluster: Cluster, k: int) -> str | None:
    """Return why Base-(k+1) does not exist for this cluster of n workers (k exceeds n − 1); None if it exists."""
    count = cluster.num_workers
    return None if k < count else f"k {k} partners need more than {k} workers; the largest k here is {count - 1}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round of Base-(k+1): plain means of the workers with equal `labels`, and weighted averages over some edges.

    `labels` (n,) is −1 for workers in no mean. Edge e joins `ends[e]` and `others[e]` with weight
    `weights[weight_of[e]]`.
    """

    labels: Ints
    ends: Ints
    others: Ints
    weight_of: Ints
    weights: tuple[Fraction, ...]


def simple_base(num_workers: int, k: int) -> list[Exchange]:
    """Return the rounds of Simple Base-(k+1). O(n) per round.

    If n = a₁(k+1)^{p₁}, a single part, these are p₁ + [a₁ > 1] rounds, else 2p₁ + [a₁ > 1] + 1, for a₁, p₁ of the
    largest.
    """
    parts = _parts(num_workers, k)
    (first_size, first_count), *rest = parts
    power = ceil_log(first_size // first_count, k + 1)
    opening = power + (first_count > 1)
    rounds = [_averages(num_workers, parts, k, t) for t in range(opening)]
    if rest:
        rounds.extend(_exchange(num_workers, parts, k, t) for t in range(1 + power))
    return rounds


def base(num_workers: int, k: int) -> list[Exchange]:
    """Return the rounds of Base-(k+1): Simple Base-(k+1) on n/s workers, then a hyper-cuboid over the factors of s.

    s is the product of the prime factors of n that are at most k + 1. If Simple Base-(k+1) on all n workers needs no
    more rounds, its rounds are returned.
    """
    smooth = 1
    for prime in prime_factors(num_workers):
        smooth *= prime if prime <= k + 1 else 1
    direct = simple_base(num_workers, k)
    factors = fewest_factors(smooth, k + 1)
    assert factors is not None
    rough = num_workers // smooth
    first = simple_base(rough, k) if rough > 1 else []
    if len(first) + len(factors) >= len(direct):
        return direct
    workers = np.arange(num_workers, dtype=np.int64)
    rounds = [_copies(round_, rough, smooth) for round_ in first]
    stride = rough
    for factor in factors:
        rounds.append(_means(_line(workers, stride, factor)))
        stride *= factor
    return rounds


def as_phase(exchange: Exchange) -> Phase | None:
    """Return the round as groups; None if a worker has several weighted edges.

    The two workers of a weighted edge form a group whose relaxation (how far they move to its mean) is twice the
    weight.
    """
    ends = np.concatenate([exchange.ends, exchange.others])
    if len(np.unique(ends)) != len(ends):
        return None
    count = len(exchange.labels)
    labels = exchange.labels.copy()
    names = count + np.arange(len(exchange.ends), dtype=np.int64)
    labels[exchange.ends] = labels[exchange.others] = names
    factors = (2 * exchange.weights[w] for w in exchange.weight_of.tolist())
    relaxation = {count + e: factor for e, factor in enumerate(factors) if factor != 1}
    return Phase.from_labels(labels, relaxation)


def as_round(exchange: Exchange) -> Round:
    """Return the round as a graph with weighted edges."""
    phase = Phase.from_labels(exchange.labels)
    weights = list(exchange.weights)
    sources, targets = [exchange.ends, exchange.others], [exchange.others, exchange.ends]
    index = [exchange.weight_of] * 2
    for size in np.unique(phase.sizes).tolist():
        members = phase.members[phase.offsets[:-1][phase.sizes == size][:, None] + np.arange(size)].astype(np.int64)
        for hop in range(1, size):
            sources.append(members.reshape(-1))
            targets.append(np.roll(members, -hop, axis=1).reshape(-1))
            index.append(np.full(members.size, len(weights), dtype=np.int64))
        weights.append(Fraction(1, size))
    return Round.from_arrays(
        len(exchange.labels), np.concatenate(sources), np.concatenate(targets), weights, np.concatenate(index)
    )


def _parts(number: int, k: int) -> list[tuple[int, int]]:
    """Return (size, number of blocks) of the parts into which `number` workers are split, the largest first.

    The blocks of a part have equal sizes, a power of k + 1; a part has as many as the digit of `number` in base k + 1.
    """
    parts, power = [], 1
    while number:
        number, digit = divmod(number, k + 1)
        if digit:
            parts.append((digit * power, digit))
        power *= k + 1
    return parts[::-1]


def _averages(count: int, parts: list[tuple[int, int]], k: int, t: int) -> Exchange:
    """Return round t of those before the exchanges: every part averages along axis t of its grid.

    Parts with fewer axes begin again with the first one, which no longer changes anything. `count` is the number of all
    workers, `parts` are those of `_parts`.
    """
    labels = np.full(count, -1, dtype=np.int64)
    start = 0
    for size, digit in parts:
        sides = [k + 1] * ceil_log(size // digit, k + 1) + ([digit] if digit > 1 else [])
        if sides:
            axis = t % len(sides)
            labels[start : start + size] = start + _line(np.arange(size), (k + 1) ** axis, sides[axis])
        start += size
    return _means(labels)


def _exchange(count: int, parts: list[tuple[int, int]], k: int, t: int) -> Exchange:
    """Return round t after those of `_averages`, in which part t exchanges with all smaller parts.

    Larger parts average inside their blocks. `count` is the number of all workers, `parts` are those of `_parts`.
    """
    labels = np.full(count, -1, dtype=np.int64)
    empty = np.zeros(0, dtype=np.int64)
    ends, others, weights = empty, empty, (Fraction(0),)
    start = 0
    for index, (size, digit) in enumerate(parts):
        block = size // digit
        if index < t and t - 1 - index < ceil_log(block, k + 1):
            stride = (k + 1) ** (t - 1 - index)
            labels[start : start + size] = start + _line(np.arange(size), stride, k + 1)
        elif index == t and t < len(parts) - 1:
            smaller = np.arange(start + size, count, dtype=np.int64)
            ends = np.repeat(smaller, digit)
            taken = start + np.arange(digit)[None, :] * block + np.arange(len(smaller))[:, None]
            others = taken.reshape(-1).astype(np.int64)
            weights = (Fraction(size, digit * (count - start)),)
            free = np.setdiff1d(np.arange(start, start + size), others)
            labels[free] = start + np.arange(len(free)) // (k + 1)
        start += size
    return Exchange(labels, ends, others, np.zeros(len(ends), dtype=np.int64), weights)


def _line(workers: Ints, stride: int, side: int) -> Ints:
    return workers - workers // stride % side * stride


def _means(labels: Ints) -> Exchange:
    empty = np.zeros(0, dtype=np.int64)
    return Exchange(labels, empty, empty, empty, ())


def _copies(exchange: Exchange, size: int, copies: int) -> Exchange:
    """Return the same round in `copies` disjoint sets of `size` workers."""
    bases = np.arange(copies, dtype=np.int64)[:, None] * size
    labels = np.where(exchange.labels >= 0, exchange.labels + bases, -1).reshape(-1)
    ends, others = ((part + bases).reshape(-1) for part in (exchange.ends, exchange.others))
    return Exchange(labels, ends, others, np.tile(exchange.weight_of, copies), exchange.weights)
