"""The published bounds: Hop's Table 1, for any combination of its settings, in lengths of shortest paths."""

from __future__ import annotations

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.strategies.gap import Gap

Length = int | None
"""A number of edges or steps; None stands for unbounded (no path)."""

Matrix = tuple[tuple[Length, ...], ...]


def paper_bounds(graph: Digraph, setting: Gap) -> Matrix:
    """Entry [i][j] bounds Step(i) − Step(j) as the paper does, None where it gives no bound. O(n·edges)."""
    lengths = path_lengths(graph)
    n = graph.num_workers
    has_backup = any(setting.backups(n))

    def entry(i: int, j: int) -> Length:
        forward, backward = lengths[j][i], lengths[i][j]
        if i == j:
            return 0
        if has_backup:
            bound = None  # section 4: nothing is guaranteed without token queues
        elif setting.notify_ack:
            bound = _smaller(forward, _scaled(backward, 2))  # section 3
        else:
            bound = _scaled(forward, setting.staleness + 1)  # Theorem 1, and section 4 under staleness
        return bound if setting.max_ig is None else _smaller(bound, _scaled(backward, setting.max_ig))  # Theorem 2

    return tuple(tuple(entry(i, j) for j in range(n)) for i in range(n))


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


def _scaled(length: Length, factor: int) -> Length:
    return None if length is None else length * factor


def _smaller(one: Length, other: Length) -> Length:
    """The smaller of two bounds, None being the largest."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
