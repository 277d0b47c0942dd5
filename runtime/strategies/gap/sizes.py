"""Gap sizes: the protocol of a schedule, and what its gaps say about the messages between two workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.runtime.transport.credit import MESSAGES
from preduce.schedulers.protocols.digraph import Digraph
from preduce.schedulers.protocols.hop import Hop
from preduce.topo.strategies.gap import Gap

if TYPE_CHECKING:
    from preduce.runtime.transport.credit import Bound
    from preduce.runtime.transport.updates import Layout
    from preduce.topo.strategies.neighbor import Neighbor


def hop_of(strategy: Neighbor) -> Hop:
    """The protocol of a neighbor schedule with a gap, in the events of a run."""
    assert isinstance(strategy.when, Gap), "others have rounds"
    graph = strategy.rounds[0]
    edges = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    return Hop(Digraph.of(graph.num_workers, edges), strategy.when, fine=True)


def message_bound(machine: Hop, layout: Layout) -> Bound:
    """What may be on the way to each neighbour: equal on all workers, and never what a worker waits for.

    The protocol lets at most a queue's capacity of updates be on the way. Where token queues bound the gap of every
    edge, it is no larger than `max_ig`; otherwise no path is longer than all workers.
    """
    setting = machine.setting
    longest = (setting.staleness + 1) * max(1, machine.num_processes - 1)
    capacity = 1 + (longest if setting.max_ig is None else setting.max_ig)
    # Of each update at most one token message and one acknowledgement besides, and the mark of a pause.
    return layout.bound([capacity], MESSAGES + 2 * capacity)
