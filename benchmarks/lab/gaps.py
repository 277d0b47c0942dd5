"""Contestants that keep a gap: Hop's settings over the graphs of its paper, 16 workers on 4 machines.

All are in Hop's parallel order but for one, as its evaluation is. Backup workers average what they take evenly
(equation 1), staleness by the age of updates (equation 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.lab.late_and_small import one_host
from partreduce.topo.graphs.classic import ring
from partreduce.topo.graphs.clustered import clustered
from partreduce.topo.graphs.hop import double_ring, ring_based
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import How
from partreduce.topo.strategies.gap import Gap, Order, Skip, Weights
from partreduce.topo.strategies.neighbor import Neighbor

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.lab.setting import Setting
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.graphs.base import Graph

PARALLEL: dict[str, Any] = {"order": Order.PARALLEL}
BACKUP: dict[str, Any] = {"backup": 1, "weights": Weights.UNIFORM, **PARALLEL}
STALE: dict[str, Any] = {"staleness": 5, "weights": Weights.ITERATION, **PARALLEL}
BOTH: dict[str, Any] = {"backup": 1, **STALE}

SERVER = "BSP server"
STANDARD = "standard"
GAPS = {
    STANDARD: Gap(**PARALLEL),
    "serial": Gap(),
    "tokens": Gap(max_ig=4, **PARALLEL),
    "NOTIFY-ACK": Gap(notify_ack=True, **PARALLEL),
    "backup 1": Gap(max_ig=10, **BACKUP),
    "s 5": Gap(**STALE),
    "backup 1, s 5": Gap(max_ig=10, **BOTH),
    "backup 1, skip 2": Gap(max_ig=4, skip=Skip(limit=2), **BACKUP),
    "backup 1, skip 10": Gap(max_ig=10, skip=Skip(limit=10), **BACKUP),
    "s 5, skip 10": Gap(max_ig=10, skip=Skip(limit=10), **STALE),
    "backup 1, s 5, skip 10": Gap(max_ig=10, skip=Skip(limit=10), **BOTH),
}
"""Settings by name. One backup worker is in virtual time, where workers are slow at random, 1.43 times as fast as
standard over the ring-based graph if tokens let workers be 10 steps apart, and 1.34 times if 5. With 4, neighbours wait
for a worker that skips by 2 at most after few steps, so that a short run shows it."""


GRAPHS: dict[str, Callable[[Cluster], Graph]] = {
    "ring": lambda cluster: ring(cluster.num_workers),
    "ring-based": lambda cluster: ring_based(cluster.num_workers),
    "double-ring": lambda cluster: double_ring(cluster.num_workers),
    "machines b": lambda cluster: clustered(_nodes(cluster), ends="gateway"),
    "machines c": lambda cluster: clustered(_nodes(cluster), ends="spread"),
}
"""The last two are Figure 21's settings b and c for our machines: in b one worker of a machine has both its links."""

USED = {
    "ring": (STANDARD, "backup 1", "s 5", "backup 1, s 5"),
    "ring-based": tuple(GAPS),
    "double-ring": (STANDARD, "backup 1", "s 5", "backup 1, s 5"),
    "machines b": (STANDARD,),
    "machines c": (STANDARD,),
}
"""Which settings are run over which graph."""


def name_of(graph: str, gap: str) -> str:
    """A contestant's name."""
    return f"Hop {graph}, {gap}"


def gap_schedule(cluster: Cluster, graph: str, gap: str) -> Schedule:
    """One of the graphs with Metropolis weights and one of the settings."""
    name = name_of(graph, gap).lower().replace(", ", "-").replace(" ", "-")
    return Schedule(name, cluster, Neighbor(rounds=(weigh(GRAPHS[graph](cluster)),), when=GAPS[gap]))


def entries() -> list[dict[str, Any]]:
    """Fields of the contestants, in the order of the table; they run where they are named.

    The server is that of Figure 13: bulk-synchronous, all its parameters on one host.
    """
    hop = [
        {"name": name_of(graph, gap), "make": _make(graph, gap), "family": "Hop"}
        for graph, gaps in USED.items()
        for gap in gaps
    ]
    server = {"name": SERVER, "make": one_host("bsp-server", How()), "family": "server"}
    return [{**fields, "named_only": True} for fields in (*hop, server)]


def _make(graph: str, gap: str) -> Callable[[Cluster, Setting], Schedule]:
    return lambda cluster, _: gap_schedule(cluster, graph, gap)


def _nodes(cluster: Cluster) -> list[tuple[int, ...]]:
    return [cluster.workers_of(node) for node in range(cluster.num_nodes)]
