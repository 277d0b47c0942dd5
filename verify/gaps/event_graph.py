"""The event graph of a Hop setting: what each event of a worker has to wait for.

Three events repeat at every worker: it *enters* a step, *sends* its update, *reduces*. A worker is in step k from the
instant it enters k; it enters step 0 at the start, so after e further entries it is in step e. Write N(x) for how often
event x has happened. Every rule of every setting has one form:

    N(x) ≤ the (spare+1)-th smallest of N(y) + w over the sources (y, w) of a need,

that is: all sources but `spare` of them must have happened often enough. With spare = 0 throughout this is a marked
graph (an arc y → x with w tokens); backup workers are the needs with spare > 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preduce.schedulers.protocols.digraph import Digraph
    from preduce.schedulers.protocols.hop import HopSetting


@dataclass(frozen=True, slots=True)
class Need:
    """Event `event` waits for all but `spare` of `sources`, pairs of an event and its number of tokens."""

    event: int
    sources: tuple[tuple[int, int], ...]
    spare: int = 0


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


def event_graph(graph: Digraph, setting: HopSetting) -> EventGraph:
    """The event graph of a setting on a graph. Linear in edges.

    Every setting: a step is entered, then its update is sent, then it is reduced, then the next is entered. The rest is
    one rule a file: `standard` (with staleness and backup workers as its parameters), `notify_ack`, `tokens`.
    """
    from preduce.verify.gaps import notify_ack, standard, tokens

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


def least_count(need: Need, counts: Sequence[float]) -> float:
    """What a need allows when its sources have happened `counts` times."""
    values = sorted(counts[source] + tokens for source, tokens in need.sources)
    return values[need.spare]
