"""The largest of the exact bounds, over the edges and over all pairs: two numbers that a run can be held against."""

from __future__ import annotations

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.errors import UnknownError
from partreduce.topo.strategies.gap import Gap
from partreduce.verify.gaps.exact import Length, distances_near, exact_bounds

MAX_FAR = 1024
"""Workers up to which distances are found that lead through the whole graph."""


def largest_over_edges(graph: Digraph, gap: Gap) -> Length:
    """The most steps that one end of an edge can be ahead of the other, None without a limit.

    O(num_workers · the edges near a worker) where tokens or edges both ways bound a gap from nearby, else O(n · edges).

    Raises:
        UnknownError: neither holds, and there are more than 1,024 workers.
    """
    if not (gap.max_ig is not None or graph.is_symmetric) and graph.num_workers > MAX_FAR:
        raise UnknownError(
            f"gap over an edge: without token queues on a graph with one-way edges it takes a path through the graph; "
            f"worked out for up to {MAX_FAR} workers, there are {graph.num_workers}"
        )
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
