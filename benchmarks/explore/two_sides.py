"""AD-PSGD's deadlock: a bipartite graph has a certificate, any other an odd cycle and the deadlock that it causes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partreduce.schedulers.protocols.adpsgd import Ask, Choose, all_both
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.verify.explore import NoDeadlock, explore, replay

if TYPE_CHECKING:
    from partreduce.verify.explore import Trace


@dataclass(frozen=True, slots=True)
class Sides:
    """The answer for one graph: the active side if the graph is bipartite, else a shortest odd cycle and its deadlock.

    `active` lists one end of every edge (the certificate: every edge must have exactly one end in it); `odd_cycle`
    lists workers around a cycle of odd length; `deadlock` is the run in which each of them waits for the next.
    """

    active: frozenset[int] | None
    odd_cycle: tuple[int, ...] = ()
    deadlock: Trace | None = None


def two_sides_of(graph: Digraph) -> Sides:
    """Split a graph into an active and a passive side, or show why that fails. O(edges), O(n·edges) if it fails."""
    active: set[int] = set()
    colour: dict[int, int] = {}
    for root in range(graph.num_workers):
        queue = deque([root] if root not in colour else [])
        colour.setdefault(root, 0)
        while queue:
            u = queue.popleft()
            for v in graph.targets[u]:
                if v not in colour:
                    colour[v] = 1 - colour[u]
                    queue.append(v)
                elif colour[v] == colour[u]:
                    cycle = shortest_odd_cycle(graph)
                    return Sides(None, cycle, circular_wait(graph, cycle))
    active = {v for v, side in colour.items() if side == 0 and graph.targets[v]}
    return Sides(frozenset(active))


def shortest_odd_cycle(graph: Digraph) -> tuple[int, ...]:
    """The workers around a shortest odd cycle of an undirected graph that has one. O(n·edges).

    From every worker a breadth-first tree; an edge between two workers of one layer closes an odd closed walk through
    the root, and the shortest of all such walks repeats no worker.
    """
    best: tuple[int, ...] = ()
    for root in range(graph.num_workers):
        parent, depth = {root: -1}, {root: 0}
        queue = deque([root])
        while queue:
            u = queue.popleft()
            for v in graph.targets[u]:
                if v not in depth:
                    parent[v], depth[v] = u, depth[u] + 1
                    queue.append(v)
                elif depth[v] == depth[u] and (not best or 2 * depth[u] + 1 < len(best)):
                    best = _around(parent, u, v)
    assert best, "the caller found the graph not bipartite"
    return best


def _around(parent: dict[int, int], u: int, v: int) -> tuple[int, ...]:
    left, right = [u], [v]
    while left[-1] != right[-1]:
        left.append(parent[left[-1]])
        right.append(parent[right[-1]])
    return tuple(left[::-1] + right[:-1])


def circular_wait(graph: Digraph, cycle: tuple[int, ...]) -> Trace:
    """The run in which every worker of a cycle picks the next one: nobody on the cycle moves again (Figure 2a)."""
    following = [*cycle[1:], cycle[0]]
    pairs = list(zip(cycle, following, strict=True))
    picks: list[tuple[int, object]] = [(u, Choose(v)) for u, v in pairs]
    return replay(all_both(graph), picks + [(v, Received(u, Ask())) for u, v in pairs])


def shortest_deadlock(cycle_length: int) -> Trace | None:
    """The shortest run into a deadlock on a cycle of workers who all ask and answer, found by visiting every state."""
    graph = Digraph.undirected(cycle_length, [(i, (i + 1) % cycle_length) for i in range(cycle_length)])
    return explore(all_both(graph), properties=(NoDeadlock(),)).finding("no deadlock").trace
