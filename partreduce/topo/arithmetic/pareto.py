"""The Pareto front: what nothing else beats, or equals up to rounding, in every cost at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Differences up to RELATIVE · cost + ABSOLUTE are rounding, and count as equal."""


def dominates(better: Sequence[float], worse: Sequence[float]) -> bool:
    """Whether every cost of `better` is at most that of `worse`, up to rounding."""
    return all(a <= b + RELATIVE * abs(b) + ABSOLUTE for a, b in zip(better, worse, strict=True))


def non_dominated(
    options: Iterable[T],
    costs: Callable[[T], tuple[float, ...]],
    ties: Callable[[T], tuple[object, ...]] = lambda _: (),
) -> list[T]:
    """The options that no other dominates, by rising first cost; of equals the first by `ties`, then by place.

    O(k log k) for k options of two costs, O(k · front) for more. An infinite cost is as bad as any other infinite one.
    """
    ordered = sorted(((costs(option), option) for option in options), key=lambda pair: (pair[0], ties(pair[1])))
    front: list[tuple[tuple[float, ...], T]] = []
    for cost, option in ordered:
        # With two costs the last one kept has the least second cost, and only it can stand in a new one's way.
        if any(dominates(kept, cost) for kept, _ in (front[-1:] if len(cost) == 2 else front)):
            continue
        # First costs that differ by rounding are sorted by accident: a later option may still beat earlier ones.
        if len(cost) == 2:
            while front and dominates(cost, front[-1][0]):
                front.pop()
        else:
            front = [pair for pair in front if not dominates(cost, pair[0])]
        front.append((cost, option))
    return [option for _, option in front]
