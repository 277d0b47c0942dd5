"""Compute exact bounds for Hop's iteration gap: the largest distance in steps between workers, and queue sizes.

A worker is in step k from the instant it enters k; it enters step 0 at the start, so after e further entries it is in
step e. `verify/checker/events.py` computes the bounds; it describes which worker waits for which, and proves that
distances between events bound the lead of one worker over another and that each bound is attained. A worker always has
its own update, so a self-loop changes no bound; graphs here have none.

The update queue of an edge j → i holds j's updates of steps Step(i) … Step(j), at most one more than j can be ahead of
i (older ones are discarded, and under staleness a newer one replaces them).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.errors import ScheduleError
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.verify.checker.events import EventGraph
from partreduce.verify.checker.refusal import Work


def events_of(graph: Digraph, gap: IterationGap) -> EventGraph:
    """Return the event graph of an iteration gap: which event of a worker waits for which of another. O(edges)."""
    spare = gap.backups(graph.num_workers)
    return EventGraph(graph.edges, spare, staleness=gap.staleness, max_ig=gap.max_ig, notify_ack=gap.notify_ack)


@dataclass(frozen=True, slots=True)
class Capacities:
    """Queue sizes that one worker needs: the most updates that can wait for it or that it can have in flight.

    `updates[u]`: updates of in-neighbor u from this worker's step on, queued or in flight. `slots[u]`: buffers that
    their payloads need, one under staleness, where a newer update replaces an older one. `sent[v]`: this worker's
    updates that out-neighbor v may still have to reduce.
    """

    updates: Mapping[int, int]
    slots: Mapping[int, int]
    sent: Mapping[int, int]


def capacities_of(graph: Digraph, gap: IterationGap, worker: int, events: EventGraph | None = None) -> Capacities:
    """Return the sizes of the queues from the in-neighbors of `worker` to it, and from it to its out-neighbors.

    `events` is `events_of(graph, gap)`; a caller with many workers computes it once.

    Raises:
        ScheduleError: an update queue has no bound under these settings; the message names its edge and a remedy.
    """
    sources, targets = graph.sources[worker], graph.targets[worker]
    events = events or events_of(graph, gap)
    updates = {u: _room(events, u, worker) for u in sources}
    sent = {v: _room(events, worker, v) for v in targets}
    return Capacities(updates, {u: 1 if gap.staleness else updates[u] for u in sources}, sent)


def _room(events: EventGraph, source: int, target: int) -> int:
    """Return one more than the steps that `source` can be ahead of `target`; raise ScheduleError if unlimited."""
    lead = events.leads(target, (source,), Work("gap", sys.maxsize)).get(source)
    if lead is None:
        raise ScheduleError(
            f"edge {source}→{target}: worker {source} can run ahead of worker {target} without limit, and no queue is "
            "long enough; give sync.iteration_gap.max_ig"
        )
    return lead + 1
