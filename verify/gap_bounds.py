"""Exact bounds on iteration gaps: how far the workers of Hop can drift apart in steps, and the queues that this takes.

A worker always has its own update, so a self-loop changes no bound; graphs here are kept without them.

A worker is in step k from the instant it enters k; it enters step 0 at the start, so after e further entries it is in
step e. Three events repeat at every worker: it *enters* a step, *sends* its update, *reduces*. Write N(x) for how often
event x has happened. A need of x says

    N(x) ≤ the (spare+1)-th smallest of N(y) + w over the sources (y, w),

that is: all sources but `spare` of them must have happened often enough. With spare = 0 throughout this is a marked
graph (an arc y → x with w tokens), and the bounds are the classical shortest paths over all arcs together, forward and
backward. Backup workers are the needs with spare > 0, and Dijkstra's algorithm still finds the answer: an event is
settled when spare+1 sources of one of its needs are.

Why it is a bound, and why it is attained, stands in `verify/checker/events.py`, which computes the same apart.

Both queues of an edge j → i stand at worker i. Its update queue holds j's updates of steps Step(i) … Step(j), at most
bound[j][i] + 1 (older ones are thrown away, and under staleness a newer one replaces them). Its token queue for j holds
max_ig + Step(i) − Step(j) tokens, at most bound[i][j] + max_ig.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.errors import ScheduleError, UnknownError
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


@dataclass(frozen=True, slots=True)
class Capacities:
    """What waits at one worker at most, and what it has out at most.

    `updates[u]`: updates of in-neighbour u from this worker's step on, in its queue or on their way. `slots[u]`: places
    that their payloads need; under staleness 1, because a newer update replaces an older one. `tokens[v]`: tokens of
    out-neighbour v, in hand or on their way; None if they have no bound (no path leads back from v to this worker).
    `sent[v]`: this worker's updates that out-neighbour v may still have to reduce.
    """

    updates: Mapping[int, int]
    slots: Mapping[int, int]
    tokens: Mapping[int, Length]
    sent: Mapping[int, int]


def capacities_of(graph: Digraph, gap: Gap, worker: int) -> Capacities:
    """The proved capacities at `worker`, and those of its updates at its out-neighbours.

    O(edges · log) at worst for each neighbour; in practice the edges near the worker.

    Raises:
        ScheduleError: an update queue has no bound under this setting, with the edge and the way out.
    """
    sources, targets = graph.sources[worker], graph.targets[worker]
    ahead = distances_near(graph, gap, worker, {*sources, *targets})
    updates = {u: _bounded(ahead[u], u, worker) + 1 for u in sources}
    sent = {v: _bounded(distances_near(graph, gap, v, {worker})[worker], worker, v) + 1 for v in targets}
    tokens: dict[int, Length] = {}
    if gap.max_ig is not None:
        for v in targets:
            leads = ahead[v]
            tokens[v] = None if leads is None else leads + gap.max_ig
    return Capacities(updates, {u: 1 if gap.staleness else updates[u] for u in sources}, tokens, sent)


def _bounded(length: Length, source: int, target: int) -> int:
    if length is None:
        raise ScheduleError(
            f"edge {source}→{target}: worker {source} can run ahead of worker {target} without limit, and no queue is "
            "long enough; give when.gap.max_ig"
        )
    return length
