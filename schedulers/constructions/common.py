"""What constructions share: weights as a parameter, nearest possible sizes, schedules from graphs and rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.entry import Parameter
from preduce.topo.arithmetic.whole_numbers import divisors
from preduce.topo.graphs.weights import METHODS, weigh
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.neighbor import Neighbor, Round

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    import numpy.typing as npt

    from preduce.topo.cluster import Cluster
    from preduce.topo.graphs.base import Graph

WEIGHTS = Parameter(
    name="weights", kind="text", default="metropolis", choices=tuple(METHODS), help="how edges are weighed"
)
SEED = Parameter(name="seed", default=0, minimum=0, help="seed of the random draw")
ROUNDS = Parameter(
    name="rounds", default=16, minimum=1, maximum=10_000, help="rounds drawn; they repeat after the last"
)


def fixed(name: str, cluster: Cluster, graph: Graph, weights: str) -> Schedule:
    """A schedule of kind `neighbor` with one round: the graph, weighed."""
    return rounds(name, cluster, [weigh(graph, weights)])


def rounds(name: str, cluster: Cluster, listed: Iterable[Round]) -> Schedule:
    """A schedule of kind `neighbor` that repeats the rounds."""
    return Schedule(name, cluster, Neighbor(rounds=tuple(listed)))


def shift(num_workers: int, hop: int, weight: Fraction) -> Round:
    """Everybody sends to the worker `hop` further on: x_{i+hop} ← (1 − weight)·x_{i+hop} + weight·x_i. O(n)."""
    i = np.arange(num_workers, dtype=np.int64)
    return Round.from_arrays(num_workers, i, (i + hop) % num_workers, [weight], np.zeros(num_workers, np.int32))


def symmetric(
    num_workers: int, ends: npt.ArrayLike, others: npt.ArrayLike, weights: Sequence[Fraction], weight_of: npt.ArrayLike
) -> Round:
    """A round of undirected edges, each with the same weight in both directions."""
    a, b, w = (np.asarray(part, dtype=np.int64) for part in (ends, others, weight_of))
    both = (np.concatenate([a, b]), np.concatenate([b, a]))
    return Round.from_arrays(num_workers, *both, weights, np.concatenate([w, w]))


def nearest_powers(number: int, base: int = 2) -> str:
    """`8 or 16` for 13: the powers of `base` on both sides."""
    low = base
    while low * base <= number:
        low *= base
    return f"{low} or {low * base}" if low <= number else str(low)


def sides(number: int, least: int) -> tuple[int, int] | None:
    """Two factors ≥ `least` of the number, as equal as possible, the smaller first; None if there are none."""
    fitting = [d for d in divisors(number) if d * d <= number and d >= least]
    return (fitting[-1], number // fitting[-1]) if fitting else None


def why_not_sides(count: int, shape: tuple[int, ...] | None, least: int) -> str | None:
    """Why `count` workers do not stand on a rectangle of this shape (None: any) with both sides ≥ `least`, or None."""
    best = sides(count, least)
    if shape is None and best is None:
        larger = next(m for m in range(count + 1, 2 * count + 10) if sides(m, least))
        return f"{count} is not a product of two sides ≥ {least}; the next number that is: {larger}"
    if shape is not None and (len(shape) != 2 or min(shape) < least or shape[0] * shape[1] != count):
        near = f"{best[0]}x{best[1]} fits" if best else "no shape fits; use ring"
        return f"shape {'x'.join(map(str, shape))} is not two sides ≥ {least} with product {count}; {near}"
    return None
