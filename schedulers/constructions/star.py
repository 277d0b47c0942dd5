"""Star."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed
from preduce.schedulers.entry import Entry, always
from preduce.topo.graphs.star import star

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, weights: str) -> Schedule:
    """The graph over all workers in rank order."""
    return fixed(ENTRY.label(weights=weights), cluster, star(cluster.num_workers), weights)


ENTRY = Entry(
    name="star",
    summary="Everybody talks to worker 0 only; what a parameter server looks like as a graph.",
    source="folklore",
    kind="graph",
    make=make,
    refuse=always,
    parameters=(WEIGHTS,),
    condition="any n",
    degree="n − 1 at the hub, 1 elsewhere",
    period="1",
    figures="Metropolis weights: contraction 1 − 1/n",
)
