"""Static exponential graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed
from preduce.schedulers.entry import Entry, always
from preduce.topo.graphs.exponential import exponential

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, weights: str) -> Schedule:
    """The graph over all workers in rank order."""
    return fixed(ENTRY.label(weights=weights), cluster, exponential(cluster.num_workers), weights)


ENTRY = Entry(
    name="exponential",
    summary="Directed edges to the workers 1, 2, 4, … further on: logarithmic degree, large gap, any n.",
    source="Ying et al., Exponential graph is provably efficient, NeurIPS 2021",
    kind="graph",
    make=make,
    refuse=always,
    parameters=(WEIGHTS,),
    condition="any n",
    degree="⌈log₂ n⌉",
    period="1",
    figures="slem gap 2/(1 + ⌈log₂ n⌉) for even n, larger for odd n",
)
