"""One-peer hypercube: one dimension of the hypercube a phase, in pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import nearest_powers
from preduce.schedulers.entry import Entry
from preduce.schedulers.factors import ceil_log2
from preduce.schedulers.rules.algebra import schedule
from preduce.schedulers.rules.hyper_cuboid import explicit_phases, rule
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import GroupPhases
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


def make(cluster: Cluster) -> Schedule:
    """Phase k pairs i with i xor 2^k; in rule form when nodes are equal."""
    if cluster.workers_per_node is not None and cluster.workers_per_node <= 4096:
        across, inside = ceil_log2(cluster.num_nodes), ceil_log2(cluster.workers_per_node)
        reversed_inside = rule((2,) * across, (2,) * inside)
        local, rest = reversed_inside.phases[:inside], reversed_inside.phases[inside:]
        return schedule(ENTRY.name, cluster, type(reversed_inside)(reversed_inside.radices, local[::-1] + rest))
    factors = (2,) * ceil_log2(cluster.num_workers)
    return Schedule(ENTRY.name, cluster, Static(phases=GroupPhases(explicit_phases(cluster.num_workers, factors))))


def refuse(cluster: Cluster) -> str | None:
    """The number of workers is a power of two."""
    count = cluster.num_workers
    if count & (count - 1):
        return f"{count} is not a power of 2; the nearest are {nearest_powers(count)}, or use base-k-plus-1"
    return None


ENTRY = Entry(
    name="one-peer-hypercube",
    summary="Pairs along one dimension a phase: exact consensus in log₂ n phases with one partner each.",
    source="Shi, Li, Johansson, Johansson, Finite-time convergent gossiping, IEEE/ACM ToN 2016",
    kind="groups",
    make=make,
    refuse=refuse,
    condition="n = 2^d",
    degree="1",
    period="log₂ n",
    figures="exact (contraction 0)",
)
