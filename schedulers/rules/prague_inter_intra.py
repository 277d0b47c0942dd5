"""Prague's inter-intra synchronisation as a fixed schedule: heads across nodes, then everyone inside the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry
from preduce.schedulers.rules.algebra import Rule, all_digits, local_ranks, schedule
from preduce.topo.rule import Block

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster) -> Schedule:
    """Inter phase: LW0 of all nodes, the others inside their node. Intra phase: everyone inside their node."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    inter = (Block((0,), tuple(range(len(radices)))), Block(ranks[1:]))
    return schedule(ENTRY.name, cluster, Rule(radices, (inter, (Block(ranks),))))


def refuse(cluster: Cluster) -> str | None:
    """It needs workers that share a node."""
    if len(local_ranks(cluster)) < 2:
        return "every node has 1 worker and the intra phase averages inside nodes; use allreduce or hyper-cuboid"
    return None


ENTRY = Entry(
    name="prague-inter-intra",
    summary="Head workers meet across nodes while the others average inside; then every node averages.",
    source="Luo et al., Prague, ASPLOS 2020: inter-intra synchronisation, here without randomness",
    kind="rule",
    make=make,
    refuse=refuse,
    condition="2 or more workers on the largest node",
    degree="up to the number of nodes − 1",
    period="2",
)
