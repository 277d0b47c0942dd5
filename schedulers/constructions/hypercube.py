"""Hypercube."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed, nearest_powers
from preduce.schedulers.entry import Entry
from preduce.topo.arithmetic.whole_numbers import ceil_log
from preduce.topo.graphs.hypercube import hypercube

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, weights: str) -> Schedule:
    """Workers whose ranks differ in one bit are neighbours."""
    return fixed(ENTRY.label(weights=weights), cluster, hypercube(ceil_log(cluster.num_workers)), weights)


def refuse(cluster: Cluster, weights: str) -> str | None:
    """The number of workers is a power of two."""
    del weights
    count = cluster.num_workers
    return None if count & (count - 1) == 0 else f"{count} is not a power of 2; the nearest are {nearest_powers(count)}"


ENTRY = Entry(
    name="hypercube",
    summary="Neighbours differ in one bit: logarithmic degree and gap, all edges at once.",
    source="folklore; figures as in Ying et al., NeurIPS 2021",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(WEIGHTS,),
    condition="n = 2^d",
    degree="log₂ n",
    period="1",
    figures="slem gap 2/(1 + log₂ n)",
)
