"""Hop's ring-based graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed
from preduce.schedulers.entry import Entry
from preduce.topo.graphs.ring_based import ring_based

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, weights: str) -> Schedule:
    """The graph over all workers in rank order."""
    return fixed(ENTRY.label(weights=weights), cluster, ring_based(cluster.num_workers), weights)


def refuse(cluster: Cluster, weights: str) -> str | None:
    """Say which numbers of workers have this graph."""
    del weights
    count = cluster.num_workers
    if count >= 4 and count % 2 == 0:
        return None
    return f"{count} workers are not an even number ≥ 4; the nearest is {max(4, count + count % 2)}"


ENTRY = Entry(
    name="ring-based",
    summary="A ring whose workers also hear from the most distant worker.",
    source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(WEIGHTS,),
    condition="n even, ≥ 4",
    degree="3",
    period="1",
    figures="n = 8: hop gap 2/3, with self-loops 1/2; n = 16: hop gap 0.1953",
)
