"""Ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed
from preduce.schedulers.entry import Entry
from preduce.topo.graphs.ring import ring

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, weights: str) -> Schedule:
    """The ring over all workers in rank order."""
    return fixed(ENTRY.label(weights=weights), cluster, ring(cluster.num_workers), weights)


def refuse(cluster: Cluster, weights: str) -> str | None:
    """A ring has 3 workers."""
    del weights
    return None if cluster.num_workers >= 3 else "a ring has at least 3 workers; use allreduce for 2"


ENTRY = Entry(
    name="ring",
    summary="Two neighbours a worker: the least traffic of all fixed graphs, and the slowest consensus.",
    source="Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(WEIGHTS,),
    condition="n ≥ 3",
    degree="2",
    period="1",
    figures="slem gap 1 − max_k |1 + 2cos(2πk/n)|/3 ≈ 4π²/(3n²)",
)
