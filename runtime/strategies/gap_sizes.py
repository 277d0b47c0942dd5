"""Gap sizes: what the proved gaps say about the memory and the messages of one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.runtime.transport.credit import MESSAGES, Bound
from preduce.schedulers.protocols.digraph import Digraph
from preduce.schedulers.protocols.hop import Hop
from preduce.topo.strategies.gap import Gap
from preduce.verify.gaps.event_graph import event_graph
from preduce.verify.gaps.exact import Distances

if TYPE_CHECKING:
    from preduce.topo.strategies.neighbor import Neighbor


def hop_of(strategy: Neighbor) -> Hop:
    """The protocol of a neighbor schedule with a gap, in the events of a run."""
    assert isinstance(strategy.when, Gap), "others have rounds"
    graph = strategy.rounds[0]
    edges = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return Hop(Digraph.of(graph.num_workers, edges), strategy.when, fine=True)


def update_capacities(machine: Hop, worker: int) -> dict[int, int]:
    """The proved capacity of a worker's queue for each of its in-neighbours.

    As `verify.gaps.capacity` has it, of one worker's edges only: one search, O(edges log edges).
    """
    sources = machine.graph.sources[worker]
    if not sources:
        return {}
    gaps = Distances(event_graph(machine.graph, machine.setting)).from_event(worker)
    capacities = {}
    for source in sources:
        gap = gaps[source]
        assert gap is not None, "a schedule whose gaps are not bounded is refused when it is made"
        capacities[source] = gap + 1
    return capacities


def message_bound(machine: Hop, model_bytes: int) -> Bound:
    """What may be on the way to each neighbour: equal on all workers, and never what a worker waits for.

    The protocol lets at most a queue's capacity of updates be on the way; half of the bound may be dealt with and not
    granted yet. Where token queues bound the gap of every edge this is tight, otherwise the longest path bounds it.
    """
    setting, num_workers = machine.setting, machine.num_processes
    longest = (setting.staleness + 1) * max(1, num_workers - 1)
    gap = longest if setting.max_ig is None else setting.max_ig
    # Of each update at most one token message and one acknowledgement besides.
    return Bound(MESSAGES + 6 * (gap + 2), 2 * (gap + 2) * max(model_bytes, 1))
