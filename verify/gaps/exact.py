"""The exact bounds: how often every event can happen while one worker stands still, and the queues that this takes.

A worker is in step k from the instant it enters k; it enters step 0 at the start, so after e further entries it is in
step e. Three events repeat at every worker: it *enters* a step, *sends* its update, *reduces*. Write N(x) for how often
event x has happened. A need of x says

    N(x) ≤ the (spare+1)-th smallest of N(y) + w over the sources (y, w),

that is: all sources but `spare` of them must have happened often enough. With spare = 0 throughout this is a marked
graph (an arc y → x with w tokens), and the bounds are the classical shortest paths over all arcs together, forward and
backward. Backup workers are the needs with spare > 0, and Dijkstra's algorithm still finds the answer: an event is
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
from collections.abc import Iterable, Iterator, Sequence

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.strategies.gap import Gap

ENTER, SEND, REDUCE = range(3)
Event = tuple[int, int]
"""A kind of event, and the worker."""

Length = int | None
"""A number of steps; None stands for unbounded."""

Matrix = tuple[tuple[Length, ...], ...]


def exact_bounds(graph: Digraph, setting: Gap) -> Matrix:
    """Entry [i][j] is the largest Step(i) − Step(j) that can ever be, None without a largest. O(n·edges·log)."""
    everybody = range(graph.num_workers)
    columns = [distances_near(graph, setting, j, everybody) for j in everybody]
    return tuple(tuple(columns[j][i] for j in everybody) for i in everybody)


def distances_near(graph: Digraph, gap: Gap, start: int, ends: Iterable[int]) -> dict[int, Length]:
    """For each end the most that Step(end) − Step(start) can be, None without a limit."""
    near = events_near(graph, gap, start, ends)
    return {end: near.get((ENTER, end)) for end in ends} | {start: 0}


def events_near(
    graph: Digraph, gap: Gap, start: int, ends: Iterable[int], spare: Sequence[int] | None = None
) -> dict[Event, int]:
    """The distances from a worker's enter of all events up to the furthest end, and of some beyond.

    A distance to a neighbour rests on events nearby only, so the search settles nearest events first and ends with the
    last of the ends; needs are read off the graph as it reaches them. `spare` are the workers' backups, for who asks of
    many workers.
    """
    spare = spare or gap.backups(graph.num_workers)
    missing = set(ends) - {start}
    settled: dict[Event, int] = {}
    left: dict[int, int] = {}  # for a reducing worker, the sources that must still settle before it does
    heap = [(0, (ENTER, start))]
    while heap and missing:
        distance, event = heapq.heappop(heap)
        if event in settled:
            continue
        settled[event] = distance
        kind, worker = event
        if kind == ENTER:
            missing.discard(worker)
        if kind == SEND:
            # Reduce k waits for the updates of step k − staleness or later, from all in-neighbours but the backups
            # (Hop, Theorem 1 and section 4). A worker's own update is always there, so leaving the self-loop out
            # changes nothing.
            for v in graph.targets[worker]:
                left[v] = left.get(v, spare[v] + 1) - 1
                if left[v] == 0:
                    heapq.heappush(heap, (distance + gap.staleness, (REDUCE, v)))
        for tokens, after in _single(graph, gap, kind, worker):
            if after not in settled:
                heapq.heappush(heap, (distance + tokens, after))
    return settled


def _single(graph: Digraph, gap: Gap, kind: int, worker: int) -> Iterator[tuple[int, Event]]:
    """The events that wait for this one alone, each with its tokens."""
    if kind == ENTER:
        yield 1, (SEND, worker)
        if gap.max_ig is not None:
            # Enter k takes a token from every out-neighbour's queue, which starts with max_ig of them (Theorem 2).
            for u in graph.sources[worker]:
                yield gap.max_ig, (ENTER, u)
    elif kind == SEND:
        yield 0, (REDUCE, worker)
    else:
        yield 0, (ENTER, worker)
        if gap.notify_ack:
            # Send k waits for reduce k − 1 at every out-neighbour, which acknowledges when it has reduced (section 3).
            for u in graph.sources[worker]:
                yield 1, (SEND, u)
