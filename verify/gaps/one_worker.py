"""The capacities that one worker needs, from the distances around it alone: what a run asks for on any graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.errors import ScheduleError
from partreduce.topo.strategies.gap import Gap
from partreduce.verify.gaps.exact import Length, distances_near


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
