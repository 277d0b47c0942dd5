"""Base-(k+1): exact consensus for any number of workers, with at most k partners a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.base_graph import as_phase, as_round, base
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import GroupPhases
from preduce.topo.strategies.neighbor import Neighbor
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from preduce.schedulers.base_graph import Exchange
    from preduce.topo.cluster import Cluster


def schedule(name: str, cluster: Cluster, exchanges: list[Exchange]) -> Schedule:
    """Groups with relaxed pairs where every round allows it (always for k = 1), weighted edges otherwise."""
    phases = [as_phase(exchange) for exchange in exchanges]
    if all(phase is not None for phase in phases):
        return Schedule(
            name, cluster, Static(phases=GroupPhases(tuple(phase for phase in phases if phase is not None)))
        )
    return Schedule(name, cluster, Neighbor(rounds=tuple(as_round(exchange) for exchange in exchanges)))


def make(cluster: Cluster, k: int) -> Schedule:
    """The shorter of Simple Base-(k+1) and its product with a hyper-cuboid."""
    return schedule(ENTRY.label(k=k), cluster, base(cluster.num_workers, k))


def refuse(cluster: Cluster, k: int) -> str | None:
    """A worker has at most n − 1 partners."""
    count = cluster.num_workers
    return None if k < count else f"k {k} partners need more than {k} workers; the largest k here is {count - 1}"


K = Parameter(name="k", default=1, minimum=1, maximum=64, help="most partners of a worker in a round")

ENTRY = Entry(
    name="base-k-plus-1",
    summary="Exact consensus for any n with at most k partners a round; the shortest published for one vector.",
    source="Takezawa et al., Beyond exponential graph, NeurIPS 2023",
    kind="rounds",
    make=make,
    refuse=refuse,
    parameters=(K,),
    degree="≤ k",
    period="≤ 2 log_{k+1} n + 2",
    figures="exact (contraction 0); k = 1: 5 rounds for n = 5 and 7, 11 for 100",
)
