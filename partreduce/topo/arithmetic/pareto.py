"""The Pareto front of a set of options: those that no other option dominates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Costs that differ by at most RELATIVE · cost + ABSOLUTE count as equal: the difference is rounding."""


def dominates(better: Sequence[float], worse: Sequence[float]) -> bool:
    """Whether every cost in `better` is at most the one at the same index in `worse`, up to rounding."""
    return all(a <= b + RELATIVE * abs(b) + ABSOLUTE for a, b in zip(better, worse, strict=True))


def non_dominated(
    options: Iterable[T],
    costs: Callable[[T], tuple[float, ...]],
    ties: Callable[[T], tuple[object, ...]] = lambda _: (),
) -> list[T]:
    """Return the Pareto front of the options, in ascending order of the first cost.

    `costs` returns the costs of an option, to be minimized. Of options with equal costs only the first is kept, in the
    order of `ties`, then of position. O(k log k) for k options of two costs, O(k · size of the front) for more.
    """
    ordered = sorted(((costs(option), option) for option in options), key=lambda pair: (pair[0], ties(pair[1])))
    front: list[tuple[tuple[float, ...], T]] = []
    for cost, option in ordered:
        # With two costs, the last option kept has the least second cost, so only it can dominate a new one.
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


def scatter(front: list[T], at: Callable[[T], tuple[float, float]]) -> list[T]:
    """Reorder a Pareto front so that, for every k, its first k entries are spread over the whole front.

    The lower convex hull comes first. `at` returns two costs of an entry, such as seconds per step and steps to a
    target loss. Their product, the time to that loss, is smallest on the hull in any units. O(k log k).
    """
    hull: list[T] = []
    for entry in sorted(front, key=at):
        x, y = at(entry)
        while len(hull) > 1:
            (x0, y0), (x1, y1) = at(hull[-2]), at(hull[-1])
            if (x1 - x0) * (y - y0) > (x - x0) * (y1 - y0):
                break
            hull.pop()
        hull.append(entry)
    on_hull = set(map(id, hull))
    return _spread(hull) + _spread([entry for entry in front if id(entry) not in on_hull])


def _spread(front: list[T]) -> list[T]:
    """Reorder a list so that every prefix is spread over it: multiples of falling powers of two, as indices."""
    powers = range(len(front).bit_length(), -1, -1)
    return [front[i] for i in dict.fromkeys(i for power in powers for i in range(0, len(front), 1 << power))]
