"""Exact bounds on iteration gaps: how far the workers of Hop can drift apart in steps, and the queues that this takes.

A worker is in step k from the instant it enters k; it enters step 0 at the start, so after e further entries it is in
step e. Who waits for whom, why the distances between events bound how far one gets ahead of another, and why each bound
is attained, stands in `verify/checker/events.py`, which computes them. A worker always has its own update, so a
self-loop changes no bound; graphs here are kept without them.

Both queues of an edge j → i stand at worker i. Its update queue holds j's updates of steps Step(i) … Step(j), at most
bound[j][i] + 1 (older ones are thrown away, and under staleness a newer one replaces them). Its token queue for j holds
max_ig + Step(i) − Step(j) tokens, at most bound[i][j] + max_ig.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.errors import ScheduleError
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.verify.checker.events import EventGraph
from partreduce.verify.checker.refusal import Work

Length = int | None
"""A number of steps; None stands for unbounded."""

Matrix = tuple[tuple[Length, ...], ...]


def events_of(graph: Digraph, gap: IterationGap) -> EventGraph:
    """What happens at all workers, and what it waits for. O(edges)."""
    spare = gap.backups(graph.num_workers)
    return EventGraph(graph.edges, spare, staleness=gap.staleness, max_ig=gap.max_ig, notify_ack=gap.notify_ack)


def distances_near(events: EventGraph, start: int, ends: AbstractSet[int]) -> dict[int, Length]:
    """For each end the most that Step(end) − Step(start) can be, None without a limit.

    A distance to a neighbor rests on events nearby only, so the search settles nearest events first and ends with the
    last of the ends.
    """
    near = events.leads(start, ends, Work("gap", sys.maxsize))
    return {end: near.get(end) for end in ends}


def exact_bounds(graph: Digraph, setting: IterationGap) -> Matrix:
    """Entry [i][j] is the largest Step(i) − Step(j) that can ever be, None without a largest. O(n·edges·log)."""
    events, everybody = events_of(graph, setting), range(graph.num_workers)
    columns = [distances_near(events, j, {*everybody}) for j in everybody]
    return tuple(tuple(columns[j][i] for j in everybody) for i in everybody)


@dataclass(frozen=True, slots=True)
class Capacities:
    """What waits at one worker at most, and what it has out at most.

    `updates[u]`: updates of in-neighbor u from this worker's step on, in its queue or on their way. `slots[u]`: places
    that their payloads need; under staleness 1, because a newer update replaces an older one. `tokens[v]`: tokens of
    out-neighbor v, in hand or on their way; None if they have no bound (no path leads back from v to this worker).
    `sent[v]`: this worker's updates that out-neighbor v may still have to reduce.
    """

    updates: Mapping[int, int]
    slots: Mapping[int, int]
    tokens: Mapping[int, Length]
    sent: Mapping[int, int]


def capacities_of(graph: Digraph, gap: IterationGap, worker: int, events: EventGraph | None = None) -> Capacities:
    """The proved capacities at `worker`, and those of its updates at its out-neighbors.

    O(edges · log) at worst for each neighbor; with the `events` of the graph, in practice the edges near the worker.

    Raises:
        ScheduleError: an update queue has no bound under this setting, with the edge and the way out.
    """
    sources, targets = graph.sources[worker], graph.targets[worker]
    events = events or events_of(graph, gap)
    ahead = distances_near(events, worker, {*sources, *targets})
    updates = {u: _bounded(ahead[u], u, worker) + 1 for u in sources}
    sent = {v: _bounded(distances_near(events, v, {worker})[worker], worker, v) + 1 for v in targets}
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
            "long enough; give sync.iteration_gap.max_ig"
        )
    return length
