"""The capacities that one worker needs, from the distances around it alone: what a run asks for, on any size of graph.

The same numbers as `exact_bounds` and `capacity` give for all pairs. A distance from a worker's enter to a neighbour's
rests on events nearby only, so the search settles nearest events first and ends with the last neighbour; the needs are
read off the graph as the search reaches them (they are those of `event_graph`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.errors import ScheduleError
from partreduce.topo.strategies.gap import Gap
from partreduce.verify.gaps.exact import Length

ENTER, SEND, REDUCE = range(3)
Event = tuple[int, int]
"""A kind of event, and the worker."""


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


def distances_near(graph: Digraph, gap: Gap, start: int, ends: Iterable[int]) -> dict[int, Length]:
    """For each end the most that Step(end) − Step(start) can be, None without a limit."""
    near = events_near(graph, gap, start, ends)
    return {end: near.get((ENTER, end)) for end in {start, *ends}}


def events_near(
    graph: Digraph, gap: Gap, start: int, ends: Iterable[int], spare: Sequence[int] | None = None
) -> dict[Event, int]:
    """The distances from a worker's enter of all events up to the furthest end, and of some beyond.

    `spare` are the workers' backups, for who asks of many workers.
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
            for u in graph.sources[worker]:
                yield gap.max_ig, (ENTER, u)
    elif kind == SEND:
        yield 0, (REDUCE, worker)
    else:
        yield 0, (ENTER, worker)
        if gap.notify_ack:
            for u in graph.sources[worker]:
                yield 1, (SEND, u)
