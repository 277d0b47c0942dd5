"""Complete graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed
from preduce.schedulers.entry import Entry
from preduce.topo.graphs.complete import complete

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, weights: str) -> Schedule:
    """The graph over all workers in rank order."""
    return fixed(ENTRY.label(weights=weights), cluster, complete(cluster.num_workers), weights)


def refuse(cluster: Cluster, weights: str) -> str | None:
    """Say which numbers of workers have this graph."""
    del weights
    count = cluster.num_workers
    if count <= 5000:
        return None
    return f"{count} workers have {count * (count - 1) // 2} edges; use allreduce, the same mean with less traffic"


ENTRY = Entry(
    name="complete",
    summary="Everybody talks to everybody: the mean in one round, at n − 1 messages a worker.",
    source="folklore",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(WEIGHTS,),
    condition="n ≤ 5000",
    degree="n − 1",
    period="1",
    figures="exact (contraction 0)",
)
