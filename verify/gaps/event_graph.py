"""The event graph of a Hop setting: what every event of every worker has to wait for.

A worker is in step k from the instant it enters k; it enters step 0 at the start, so after e further entries it is in
step e. The events and the form of a need stand in `need`; each setting adds its needs in a file of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partreduce.verify.gaps import notify_ack, standard, tokens
from partreduce.verify.gaps.need import Need

if TYPE_CHECKING:
    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.topo.strategies.gap import Gap


@dataclass(frozen=True, slots=True)
class EventGraph:
    """The needs of all events. Event v is worker v's enter, n + v its send, 2n + v its reduce."""

    num_workers: int
    needs: tuple[Need, ...]

    @property
    def num_events(self) -> int:
        """Three a worker."""
        return 3 * self.num_workers

    def name(self, event: int) -> str:
        """As people say it: `enter 3`."""
        kind, worker = divmod(event, self.num_workers)
        return f"{('enter', 'send', 'reduce')[kind]} {worker}"


def event_graph(graph: Digraph, setting: Gap) -> EventGraph:
    """The event graph of a setting on a graph. Linear in edges.

    Every setting: a step is entered, then its update is sent, then it is reduced, then the next is entered. The rest is
    one rule a file: `standard` (with staleness and backup workers as its parameters), `notify_ack`, `tokens`.
    """
    n = graph.num_workers
    needs = [Need(n + v, ((v, 1),)) for v in range(n)]
    needs += [Need(2 * n + v, ((n + v, 0),)) for v in range(n)]
    needs += [Need(v, ((2 * n + v, 0),)) for v in range(n)]
    needs += standard.needs(graph, setting.staleness, setting.backups(n))
    if setting.notify_ack:
        needs += notify_ack.needs(graph)
    if setting.max_ig is not None:
        needs += tokens.needs(graph, setting.max_ig)
    return EventGraph(n, tuple(needs))
