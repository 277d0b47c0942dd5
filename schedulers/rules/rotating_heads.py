"""Rotating heads: each local rank in turn carries its node's model across the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry
from preduce.schedulers.rules.algebra import Rule, all_digits, interleave, local_ranks, schedule
from preduce.topo.rule import Block

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster) -> Schedule:
    """For each local rank: it meets its like on all nodes while the rest average inside; then every node averages."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    digits = tuple(range(len(radices)))
    heads = tuple(
        (Block((head,), digits), *((Block(rest),) if (rest := ranks[:head] + ranks[head + 1 :]) else ()))
        for head in ranks
    )
    return schedule(ENTRY.name, cluster, interleave(Rule(radices, heads), Rule(radices, ((Block(ranks),),))))


def refuse(cluster: Cluster) -> str | None:
    """It needs workers that share a node, and not so many that the period explodes."""
    size = len(local_ranks(cluster))
    if size < 2:
        return "every node has 1 worker, so there is no head to rotate; use allreduce"
    if size > 256:
        return f"a node has {size} workers and the period would be {2 * size} phases; use prague-inter-intra"
    return None


ENTRY = Entry(
    name="rotating-heads",
    summary="As prague-inter-intra, but the head changes, so that every worker's network card carries the same load.",
    source="this project, after Luo et al., Prague, ASPLOS 2020: inter-intra synchronisation",
    kind="rule",
    make=make,
    refuse=refuse,
    condition="2 to 256 workers on the largest node",
    degree="up to the number of nodes − 1",
    period="2 × workers on a node",
)
