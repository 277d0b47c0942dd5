"""Node-then-all: k rounds inside each node, then one round over everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry, Parameter
from preduce.schedulers.rules.algebra import Rule, all_digits, compose, local_ranks, repeat, schedule
from preduce.topo.rule import Block

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, node_rounds: int) -> Schedule:
    """`node_rounds` averages inside each node, then one over all workers."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    inside = Rule(radices, ((Block(ranks),),))
    everyone = Rule(radices, ((Block(ranks, tuple(range(len(radices)))),),))
    return schedule(ENTRY.label(node_rounds=node_rounds), cluster, compose(repeat(inside, node_rounds), everyone))


def refuse(cluster: Cluster, node_rounds: int) -> str | None:
    """It needs workers that share a node."""
    if len(local_ranks(cluster)) < 2:
        return f"every node has 1 worker, so node rounds do nothing; use allreduce with every={node_rounds + 1}"
    return None


ENTRY = Entry(
    name="node-then-all",
    summary="Cheap averages inside each node, a global one now and then: little traffic, nearly free on shuffled data.",
    source="hierarchical local SGD: Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020, section 5",
    kind="rule",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="node_rounds", default=3, minimum=1, maximum=10**5, help="rounds inside the nodes before a global one"
        ),
    ),
    condition="2 or more workers on the largest node",
    degree="n − 1 in global rounds",
    period="node_rounds + 1",
    figures="contraction 0; 4x4 with 3 node rounds: disagreement 9/32",
)
