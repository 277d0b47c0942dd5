"""Queue capacities from the gap on each edge.

Both queues of an edge j → i stand at worker i. Its update queue holds j's updates of steps Step(i) … Step(j), at most
bound[j][i] + 1 (older ones are thrown away, and under staleness a newer one replaces them). Its token queue for j holds
max_ig + Step(i) − Step(j) tokens, at most bound[i][j] + max_ig.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.verify.gaps.lengths import Length
    from partreduce.verify.gaps.paper import Matrix


def update_queue_capacity(graph: Digraph, bounds: Matrix) -> Matrix:
    """Entry [i][j] is the capacity at i for updates of its in-neighbour j; None without an edge j → i or a bound."""
    return _per_edge(graph, lambda i, j: _plus(bounds[j][i], 1))


def token_queue_capacity(graph: Digraph, bounds: Matrix, max_ig: int | None) -> Matrix:
    """Entry [i][j] is the capacity of the token queue at i for its in-neighbour j; None where there is no queue."""
    return _per_edge(graph, lambda i, j: None if max_ig is None else _plus(bounds[i][j], max_ig))


def _plus(bound: Length, amount: int) -> Length:
    return None if bound is None else bound + amount


def _per_edge(graph: Digraph, entry: Callable[[int, int], Length]) -> Matrix:
    n = graph.num_workers
    edges = set(graph.edges)
    return tuple(tuple(entry(i, j) if (j, i) in edges else None for j in range(n)) for i in range(n))
