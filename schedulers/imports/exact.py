"""Exact weights from decimal ones: the fraction that a number stands for, and weights balanced up to the last digit."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING

from preduce.topo.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOLERANCE = Fraction(1, 10**7)
"""Imbalances below this come from rounding; larger ones are real."""


def exact(value: object, place: str) -> Fraction:
    """The fraction that a decimal number stands for: 0.333333333 is 1/3.

    The simplest fraction with a denominator up to 10⁴ is taken when it lies within 1e-8, else one within 1e-12.

    Raises:
        ScheduleError: a number that is negative or not finite.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ScheduleError(f"{place}: weight {value!r} is not a number") from None
    if not isfinite(number):
        raise ScheduleError(f"{place}: weight {value} is not finite")
    if number < 0:
        raise ScheduleError(f"{place}: weight {value} is negative; weights are shares from 0 to 1")
    simple = Fraction(number).limit_denominator(10**4)
    return simple if abs(float(simple) - number) <= 1e-8 else Fraction(number).limit_denominator(10**12)


def check_own_weights(num_workers: int, weight_of: Mapping[tuple[int, int], Fraction]) -> None:
    """Refuse a given own weight that is not what the others leave.

    Raises:
        ScheduleError: names the worker and what it hears in all.
    """
    heard = [Fraction(0)] * num_workers
    for (source, target), weight in weight_of.items():
        if source != target:
            heard[target] += weight
    for worker, total in enumerate(heard):
        own = weight_of.get((worker, worker))
        if own is not None and abs(own + total - 1) > Fraction(1, 10**6):
            raise ScheduleError(
                f"worker {worker}: hears weights that sum to {float(own + total):g}, its own included; they sum to 1"
            )


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
