"""The largest of the exact bounds, over the edges and over all pairs: two numbers that a run can be held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.verify.gaps.exact import exact_bounds
from preduce.verify.gaps.one_worker import distances_near

if TYPE_CHECKING:
    from preduce.schedulers.protocols.digraph import Digraph
    from preduce.topo.strategies.gap import Gap
    from preduce.verify.gaps.lengths import Length


def largest_over_edges(graph: Digraph, gap: Gap) -> Length:
    """The most steps that one end of an edge can be ahead of the other, None without a limit.

    O(num_workers · the edges near a worker).
    """
    largest = 0
    for worker in range(graph.num_workers):
        near = distances_near(graph, gap, worker, {*graph.sources[worker], *graph.targets[worker]})
        for ahead in near.values():
            if ahead is None:
                return None
            largest = max(largest, ahead)
    return largest


def largest_over_pairs(graph: Digraph, gap: Gap) -> Length:
    """The most steps that a worker can be ahead of another one, None without a limit. O(num_workers · edges · log)."""
    largest = 0
    for row in exact_bounds(graph, gap):
        for ahead in row:
            if ahead is None:
                return None
            largest = max(largest, ahead)
    return largest
