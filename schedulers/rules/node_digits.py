"""Node digits: whole nodes average with the nodes that differ from them in one digit, one digit a phase."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry, Parameter
from preduce.schedulers.rules.algebra import Rule, local_ranks, schedule
from preduce.topo.arithmetic.whole_numbers import prime_factors
from preduce.topo.rule import Block

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, radices: tuple[int, ...] | None) -> Schedule:
    """Phase d averages all workers of the nodes that agree on every digit but d."""
    chosen = prime_factors(cluster.num_nodes) if radices is None else radices
    ranks = local_ranks(cluster)
    phases = tuple((Block(ranks, (d,)),) for d in range(len(chosen)))
    return schedule(ENTRY.label(radices=radices), cluster, Rule(chosen, phases))


def refuse(cluster: Cluster, radices: tuple[int, ...] | None) -> str | None:
    """Radices have to multiply to the number of nodes."""
    if cluster.num_nodes < 2:
        return "there is 1 node; use allreduce"
    if radices is not None and (any(radix < 2 for radix in radices) or prod(radices) != cluster.num_nodes):
        nearest = ",".join(map(str, prime_factors(cluster.num_nodes)))
        return (
            f"radices {list(radices)} do not multiply to {cluster.num_nodes} nodes; use factors ≥ 2 such as {nearest}"
        )
    return None


ENTRY = Entry(
    name="node-digits",
    summary="Exact consensus in one phase per digit of the node number, with groups of whole nodes.",
    source="hyper-cuboid over nodes; see hyper-cuboid",
    kind="rule",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(name="radices", kind="ints", help="factors of the number of nodes; auto: its prime factors"),
    ),
    condition="2 or more nodes",
    degree="workers on a node × radix − 1",
    period="number of radices",
    figures="exact (contraction 0) on equally sized nodes",
)
