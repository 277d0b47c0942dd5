"""BlueFog's one-peer rule over a graph."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any

from partreduce.schedulers.imports.base import schedule
from partreduce.topo.errors import ScheduleError
from partreduce.topo.round import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    import networkx as nx

    from partreduce.topo.cluster import Cluster
    from partreduce.topo.graphs.base import Graph
    from partreduce.topo.schedule import Schedule

MAX_PERIOD = 10_000


def one_peer_rounds(graph: Graph) -> list[Round]:
    """BlueFog's one-peer rule over a graph: in round t every worker sends to one of its out-neighbours.

    A worker's out-neighbours are sorted clockwise, from itself upwards and around, and taken in turn, number
    t mod their count. Whoever hears from r workers gives each of them and itself the weight 1/(r + 1), as BlueFog's
    examples do. Where degrees differ (star, mesh) several workers send to one: such rounds are not doubly stochastic,
    and the workers agree on a biased average. `verify` says so.

    Raises:
        ScheduleError: a worker without out-neighbours, or a period above 10,000 rounds.
    """
    n = graph.num_workers
    targets: list[list[int]] = [[] for _ in range(n)]
    for source, target in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True):
        targets[source].append(target)
    for worker, heard_by in enumerate(targets):
        if not heard_by:
            raise ScheduleError(f"worker {worker}: sends to nobody; every worker of a one-peer schedule sends")
        heard_by.sort(key=lambda other, own=worker: (other - own) % n)  # type: ignore[misc]
    period = lcm(*(len(heard_by) for heard_by in targets))
    if period > MAX_PERIOD:
        raise ScheduleError(
            f"one-peer: the period is {period} rounds, the least common multiple of the degrees; "
            f"at most {MAX_PERIOD} are read"
        )
    return [_round(n, [(i, heard_by[t % len(heard_by)]) for i, heard_by in enumerate(targets)]) for t in range(period)]


def one_peer(
    graph: nx.DiGraph[Any] | nx.Graph[Any], *, name: str = "bluefog-one-peer", cluster: Cluster | None = None
) -> Schedule:
    """The one-peer schedule that BlueFog runs over a topology.

    Raises:
        ScheduleError: as `one_peer_rounds`, or a cluster of another size.
    """
    from partreduce.topo.graphs.base import Graph

    return schedule(name, one_peer_rounds(Graph.from_networkx(graph)), cluster)


def _round(count: int, arcs: Sequence[tuple[int, int]]) -> Round:
    heard = Counter(target for _, target in arcs)
    weights = [Fraction(1, 1 + r) for r in range(max(heard.values(), default=0) + 1)]
    return Round.from_arrays(
        count, [a for a, _ in arcs], [b for _, b in arcs], weights, [heard[target] for _, target in arcs]
    )
