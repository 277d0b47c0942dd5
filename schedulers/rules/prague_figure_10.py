"""Prague's static schedule (its Figure 10), for any number of nodes and of workers on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry
from preduce.schedulers.rules.algebra import Rule, local_ranks, schedule
from preduce.topo.arithmetic.whole_numbers import smallest_prime_factor
from preduce.topo.rule import Block

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def rule(num_nodes: int, workers_per_node: int) -> Rule:
    """Figure 10 for `num_nodes` nodes of `workers_per_node` workers.

    As published, for 4 workers on a node and an even number of nodes: phase 0 averages LW0 of all nodes and LW2+LW3
    inside each node (LW1 skips); phases 1 and 3 average every node; phase 2 averages LW0+LW3 inside each node and LW1
    with LW1 of the opposite node on the ring (LW2 skips).

    The generalisation keeps the four roles:
    * LW0 is the head (across all nodes in phase 0), LW1 the bridge (across opposite nodes in phase 2);
    * the crew is everyone else: inside each node in phase 0; in phase 2 it joins the head without its first worker,
      which skips. With 3 workers on a node the crew is one worker, which skips phase 0 and joins the head in phase 2;
      with 2 there is no crew and the head skips phase 2.
    * An odd number of nodes has no opposite nodes. The bridge then averages over the p nodes that stand equally far
      from one another on the ring, p the smallest prime factor of the number of nodes (p = 2 is "opposite").

    Different local ranks play different roles in each phase, so no two groups meet, and phases 0 and 1 alone connect
    everyone, for every size.
    """
    prime = smallest_prime_factor(num_nodes)
    radices = tuple(radix for radix in (prime, num_nodes // prime) if radix > 1)
    crew = tuple(range(2, workers_per_node))
    node = (Block(tuple(range(workers_per_node))),)
    first = [Block((0,), tuple(range(len(radices))))]
    if len(crew) > 1:
        first.append(Block(crew))
    third = []
    if crew:
        third.append(Block((0, *(crew[1:] or crew))))
    third.append(Block((1,), (0,) if radices else ()))
    return Rule(radices, (tuple(first), node, tuple(third), node))


def make(cluster: Cluster) -> Schedule:
    """Figure 10 on a cluster; explicit groups when the nodes are uneven."""
    return schedule(ENTRY.name, cluster, rule(cluster.num_nodes, len(local_ranks(cluster))))


def refuse(cluster: Cluster) -> str | None:
    """Figure 10 needs workers that share a node."""
    if len(local_ranks(cluster)) < 2:
        return "every node has 1 worker and Figure 10 averages inside nodes; use allreduce or hyper-cuboid"
    return None


ENTRY = Entry(
    name="prague-figure-10",
    summary="The published static schedule: one head per node meets globally, the rest average inside their node.",
    source="Luo et al., Prague: heterogeneity-aware asynchronous decentralized training, ASPLOS 2020, Figure 10",
    kind="rule",
    make=make,
    refuse=refuse,
    condition="2 or more workers on the largest node",
    degree="up to the number of nodes − 1",
    period="4",
    figures="4 workers a node: contraction √3/2 for every even number of nodes ≥ 4, 3√3/8 for 2",
)
