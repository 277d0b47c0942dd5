"""The event graph of a Hop setting: what every event of every worker has to wait for.

A worker is in step k from the instant it enters k; it enters step 0 at the start, so after e further entries it is in
step e. Three events repeat at every worker: it *enters* a step, *sends* its update, *reduces*. Write N(x) for how often
event x has happened, and n for the number of workers; event v is worker v's enter, n + v its send, 2n + v its reduce. A
need of x says

    N(x) ≤ the (spare+1)-th smallest of N(y) + w over the sources (y, w),

that is: all sources but `spare` of them must have happened often enough. With spare = 0 throughout this is a marked
graph (an arc y → x with w tokens); backup workers are the needs with spare > 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.strategies.gap import Gap


@dataclass(frozen=True, slots=True)
class Need:
    """Event `event` waits for all but `spare` of `sources`, pairs of an event and its number of tokens."""

    event: int
    sources: tuple[tuple[int, int], ...]
    spare: int = 0


@dataclass(frozen=True, slots=True)
class EventGraph:
    """The needs of all events."""

    num_workers: int
    needs: tuple[Need, ...]

    @property
    def num_events(self) -> int:
        return 3 * self.num_workers


def event_graph(graph: Digraph, setting: Gap) -> EventGraph:
    """The event graph of a setting on a graph. Linear in edges."""
    n, backups = graph.num_workers, setting.backups(graph.num_workers)
    # Every setting: a step is entered, then its update is sent, then it is reduced, then the next is entered.
    needs = [Need(n + v, ((v, 1),)) for v in range(n)]
    needs += [Need(2 * n + v, ((n + v, 0),)) for v in range(n)]
    needs += [Need(v, ((2 * n + v, 0),)) for v in range(n)]
    # Reduce k waits for the updates of step k − staleness or later, from all in-neighbours but the backups (Hop,
    # Theorem 1 and section 4). A worker's own update is always there, so leaving the self-loop out changes nothing.
    for v in range(n):
        sources = tuple((n + u, setting.staleness) for u in graph.sources[v])
        if backups[v] < len(sources):
            needs.append(Need(2 * n + v, sources, backups[v]))
    if setting.notify_ack:
        # Send k waits for reduce k − 1 at every out-neighbour, which acknowledges when it has reduced (section 3).
        needs += [Need(n + u, ((2 * n + v, 1),)) for u, v in graph.edges]
    if setting.max_ig is not None:
        # Enter k takes a token from every out-neighbour's queue, which starts with max_ig of them (Theorem 2).
        needs += [Need(u, ((v, setting.max_ig),)) for u, v in graph.edges]
    return EventGraph(n, tuple(needs))
