"""Hop's double ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed
from preduce.schedulers.entry import Entry
from preduce.topo.graphs.double_ring import double_ring

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, weights: str) -> Schedule:
    """The graph over all workers in rank order."""
    return fixed(ENTRY.label(weights=weights), cluster, double_ring(cluster.num_workers), weights)


def refuse(cluster: Cluster, weights: str) -> str | None:
    """Say which numbers of workers have this graph."""
    del weights
    count = cluster.num_workers
    if count >= 8 and count % 4 == 0:
        return None
    return f"{count} workers are not a multiple of 4 from 8 on; the nearest is {max(8, (count + 3) // 4 * 4)}"


ENTRY = Entry(
    name="double-ring",
    summary="Two ring-based graphs joined worker to worker.",
    source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(WEIGHTS,),
    condition="n divisible by 4, ≥ 8",
    degree="4",
    period="1",
    figures="",
)
