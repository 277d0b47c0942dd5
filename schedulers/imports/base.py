"""What all formats share: a graph with or without weights, exact fractions from floats, and the schedule made of it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.imports.balance import balanced
from preduce.topo.cluster import Cluster
from preduce.topo.errors import ScheduleError
from preduce.topo.graphs.base import Graph
from preduce.topo.graphs.weights import weigh
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.neighbor import Neighbor, Round

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

MAX_WORKERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph as read, and the weight of each edge in the graph's order if the file gives any."""

    graph: Graph
    weights: tuple[Fraction, ...] | None = None


def exact(value: float | str, place: str) -> Fraction:
    """The fraction that a decimal number stands for: 0.333333333 is 1/3.

    The simplest fraction with a denominator up to 10⁴ is taken when it lies within 1e-8, else one within 1e-12.

    Raises:
        ScheduleError: a number that is negative or not finite.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ScheduleError(f"{place}: weight {value!r} is not a number") from None
    if not isfinite(number):
        raise ScheduleError(f"{place}: weight {value} is not finite")
    if number < 0:
        raise ScheduleError(f"{place}: weight {value} is negative; weights are shares from 0 to 1")
    simple = Fraction(number).limit_denominator(10**4)
    return simple if abs(float(simple) - number) <= 1e-8 else Fraction(number).limit_denominator(10**12)


def from_edges(
    num_workers: int, edges: Iterable[tuple[int, int]], weights: Sequence[Fraction] | None, *, directed: bool
) -> Imported:
    """Edges as listed in a file; an undirected edge may stand once or twice.

    Raises:
        ScheduleError: too many workers, a rank out of range, or two different weights for one edge.
    """
    if not 2 <= num_workers <= MAX_WORKERS:
        raise ScheduleError(f"graph: has {num_workers} workers; graphs of 2 to {MAX_WORKERS} workers are read")
    pairs = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    make = Graph.directed if directed else Graph.undirected
    graph = make(num_workers, pairs[:, 0], pairs[:, 1])
    if weights is None:
        return Imported(graph)
    table: dict[tuple[int, int], Fraction] = {}
    for (a, b), weight in zip(pairs.tolist(), weights, strict=True):
        for edge in ((a, b),) if directed else ((a, b), (b, a)):
            if table.setdefault(edge, weight) != weight:
                raise ScheduleError(f"edge {a}→{b}: has the weights {table[edge]} and {weight}; give it one")
    _check_own_weights(num_workers, table)
    listed = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return Imported(graph, tuple(table[edge] for edge in listed))


def _check_own_weights(num_workers: int, table: dict[tuple[int, int], Fraction]) -> None:
    """Refuse a given own weight that is not what the others leave."""
    heard = [Fraction(0)] * num_workers
    for (source, target), weight in table.items():
        if source != target:
            heard[target] += weight
    for worker, total in enumerate(heard):
        own = table.get((worker, worker))
        if own is not None and abs(own + total - 1) > Fraction(1, 10**6):
            raise ScheduleError(
                f"worker {worker}: hears weights that sum to {float(own + total):g}, its own included; they sum to 1"
            )


def round_of(imported: Imported, method: str) -> Round:
    """The graph as a round: with its own weights if it has any, else weighed by `method`.

    Weights that balance at every worker up to rounding are balanced exactly (see `balanced`).

    Raises:
        ScheduleError: a graph that never reaches consensus, or that `method` cannot weigh.
    """
    graph = imported.graph
    graph.require_connected()
    if imported.weights is None:
        return weigh(graph, method)
    return edges_round(graph.num_workers, graph.sources, graph.targets, imported.weights)


def edges_round(num_workers: int, sources: npt.ArrayLike, targets: npt.ArrayLike, weights: Sequence[Fraction]) -> Round:
    """A round with a weight per edge; edges of weight 0 are dropped."""
    src, dst = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
    kept = [e for e, weight in enumerate(weights) if weight]
    exact_weights = balanced(num_workers, src[kept].tolist(), dst[kept].tolist(), [weights[e] for e in kept])
    return Round.from_arrays(num_workers, src[kept], dst[kept], exact_weights, np.arange(len(kept)))


def schedule(name: str, rounds: Sequence[Round], cluster: Cluster | None) -> Schedule:
    """A schedule of kind `neighbor`; without a cluster every worker has a node of its own.

    Raises:
        ScheduleError: the cluster has another number of workers.
    """
    count = rounds[0].num_workers
    chosen = Cluster.regular(count, 1) if cluster is None else cluster
    if chosen.num_workers != count:
        raise ScheduleError(f"{name}: is for {count} workers, cluster {chosen} has {chosen.num_workers}")
    return Schedule(name, chosen, Neighbor(rounds=tuple(rounds)))
