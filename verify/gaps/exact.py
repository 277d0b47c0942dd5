"""The exact bounds: how often every event can happen while one worker stands still, and the queues that this takes.

For marked graphs this is the classical shortest path over all arcs together, forward and backward. Backup workers turn
the minimum over sources into "the (spare+1)-th smallest", and Dijkstra's algorithm still finds the answer: an event is
settled when spare+1 sources of one of its needs are.

Why it is a bound: let D(x) be the distance from worker j's enter. Whenever j is in step c, N(x) ≤ c + D(x) for every
event: of the spare+1 sources that settled x, a run has waited for at least one. Why it is attained: hold j in step 0
and let everything else run until nothing moves. The counts then satisfy the same equations as D, and these have one
solution only, because every cycle carries a token: take the event with the smallest count X(x) < D(x); its need is
exhausted by sources with smaller counts, which are equal to their D, so D(x) ≤ X(x).

Both queues of an edge j → i stand at worker i. Its update queue holds j's updates of steps Step(i) … Step(j), at most
bound[j][i] + 1 (older ones are thrown away, and under staleness a newer one replaces them). Its token queue for j holds
max_ig + Step(i) − Step(j) tokens, at most bound[i][j] + max_ig.
"""

from __future__ import annotations

import heapq

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.strategies.gap import Gap
from partreduce.verify.gaps.event_graph import EventGraph, event_graph

Length = int | None
"""A number of steps; None stands for unbounded."""

Matrix = tuple[tuple[Length, ...], ...]


class Distances:
    """Distances in one event graph, from any event; built once, O(arcs log arcs) a query."""

    def __init__(self, events: EventGraph) -> None:
        self.events = events
        self._uses: list[list[tuple[int, int]]] = [[] for _ in range(events.num_events)]
        for index, need in enumerate(events.needs):
            for source, tokens in need.sources:
                self._uses[source].append((index, tokens))

    def from_event(self, start: int) -> list[Length]:
        """D(x) for every event x: the most that N(x) can exceed N(start), None if there is no limit."""
        result: list[Length] = [None] * self.events.num_events
        left = [need.spare + 1 for need in self.events.needs]
        heap = [(0, start)]
        while heap:
            distance, event = heapq.heappop(heap)
            if result[event] is not None:
                continue
            result[event] = distance
            for index, tokens in self._uses[event]:
                # All sources of one need carry the same tokens, so they count down in the order of their values.
                left[index] -= 1
                target = self.events.needs[index].event
                if left[index] == 0 and result[target] is None:
                    heapq.heappush(heap, (distance + tokens, target))
        return result


def exact_bounds(graph: Digraph, setting: Gap) -> Matrix:
    """Entry [i][j] is the largest Step(i) − Step(j) that can ever be, None without a largest. O(n·edges·log)."""
    n = graph.num_workers
    distances = Distances(event_graph(graph, setting))
    columns = [distances.from_event(j)[:n] for j in range(n)]
    return tuple(tuple(columns[j][i] for j in range(n)) for i in range(n))
