"""Exact balance: weights that are doubly stochastic up to rounding become exactly so."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

TOLERANCE = Fraction(1, 10**7)


def balanced(
    num_workers: int, sources: Sequence[int], targets: Sequence[int], weights: Sequence[Fraction]
) -> list[Fraction]:
    """The weights, corrected along a spanning tree so that every worker sends exactly as much weight as it hears.

    Done only if every worker's imbalance is below 1e-7: larger ones are real, and are left for `verify` to refute.
    """
    excess = [Fraction(0)] * num_workers  # sent minus heard
    arcs: list[list[tuple[int, int]]] = [[] for _ in range(num_workers)]
    for e, (a, b) in enumerate(zip(sources, targets, strict=True)):
        excess[a] += weights[e]
        excess[b] -= weights[e]
        arcs[a].append((e, b))
        arcs[b].append((e, a))
    result = list(weights)
    if not any(excess) or max(map(abs, excess)) > TOLERANCE:
        return result
    parent: dict[int, tuple[int, int]] = {}
    order, seen = [0], {0}
    for worker in order:
        for e, other in arcs[worker]:
            if other not in seen:
                seen.add(other)
                order.append(other)
                parent[other] = (e, worker)
    for worker in reversed(order[1:]):  # leaves first: each hands its excess to its parent's edge
        e, above = parent[worker]
        result[e] += -excess[worker] if sources[e] == worker else excess[worker]
        excess[above] += excess[worker]
        excess[worker] = Fraction(0)
    return result
