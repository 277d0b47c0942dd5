"""Path lengths in a digraph, the stuff that Hop's published bounds are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partreduce.schedulers.protocols.digraph import Digraph

Length = int | None
"""A number of edges or steps; None stands for unbounded (no path)."""


def path_lengths(graph: Digraph) -> list[list[Length]]:
    """Entry [a][b] is the number of edges on a shortest path a → b, None without one. O(n·edges)."""
    result = []
    for start in range(graph.num_workers):
        row: list[Length] = [None] * graph.num_workers
        row[start] = 0
        layer, length = [start], 0
        while layer:
            length += 1
            following = []
            for u in layer:
                for v in graph.targets[u]:
                    if row[v] is None:
                        row[v] = length
                        following.append(v)
            layer = following
        result.append(row)
    return result


def scaled(length: Length, factor: int) -> Length:
    """The length times a factor."""
    return None if length is None else length * factor


def smaller(one: Length, other: Length) -> Length:
    """The smaller of two bounds, None being the largest."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
