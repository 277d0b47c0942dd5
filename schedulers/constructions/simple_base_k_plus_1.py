"""Simple Base-(k+1): exact consensus for any number of workers from the digits of n alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.base_graph import simple_base
from preduce.schedulers.constructions.base_k_plus_1 import K, refuse, schedule
from preduce.schedulers.entry import Entry

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, k: int) -> Schedule:
    """Parts of n by its digits in base k + 1."""
    return schedule(ENTRY.label(k=k), cluster, simple_base(cluster.num_workers, k))


ENTRY = Entry(
    name="simple-base-k-plus-1",
    summary="As base-k-plus-1 without its use of small prime factors; never shorter.",
    source="Takezawa et al., Beyond exponential graph, NeurIPS 2023",
    kind="rounds",
    make=make,
    refuse=refuse,
    parameters=(K,),
    degree="≤ k",
    period="≤ 2 log_{k+1} n + 2",
    figures="exact (contraction 0)",
)
