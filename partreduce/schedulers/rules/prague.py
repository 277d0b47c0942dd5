"""Build Prague's fixed schedules: its Figure 10, and inter-intra synchronization with fixed or rotating heads.

Source: Luo, He, Zhuo, Qian, Prague: heterogeneity-aware asynchronous decentralized training, ASPLOS 2020.
"""

from __future__ import annotations

from partreduce.schedulers.rules.algebra import all_digits, interleave, local_ranks, static
from partreduce.topo.arithmetic.whole_numbers import smallest_prime_factor
from partreduce.topo.cluster import Cluster
from partreduce.topo.rule import Block
from partreduce.topo.strategies.static import RulePhases, StaticGroups

MAX_ROTATING = 256
"""Rotating heads need two phases a worker of the largest node."""


def figure_10_rule(num_nodes: int, workers_per_node: int) -> RulePhases:
    """Figure 10 for `num_nodes` nodes of `workers_per_node` workers.

    As published, for 4 workers on a node and an even number of nodes: phase 0 averages LW0 of all nodes and LW2+LW3
    inside each node (LW1 skips); phases 1 and 3 average every node; phase 2 averages LW0+LW3 inside each node and LW1
    with LW1 of the opposite node on the ring (LW2 skips).

    The generalization keeps the four roles:
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
    return RulePhases(radices, (tuple(first), node, tuple(third), node))


def figure_10(cluster: Cluster) -> StaticGroups:
    """Figure 10 on a cluster; explicit groups when the nodes are uneven."""
    return static(cluster, figure_10_rule(cluster.num_nodes, len(local_ranks(cluster))))


def inter_intra(cluster: Cluster) -> StaticGroups:
    """Inter phase: LW0 of all nodes, the others inside their node. Intra phase: everyone inside their node."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    inter = (Block((0,), tuple(range(len(radices)))), Block(ranks[1:]))
    return static(cluster, RulePhases(radices, (inter, (Block(ranks),))))


def rotating_heads(cluster: Cluster) -> StaticGroups:
    """For each local rank: it meets its like on all nodes while the rest average inside; then every node averages."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    digits = tuple(range(len(radices)))
    heads = tuple(
        (Block((head,), digits), *((Block(rest),) if (rest := ranks[:head] + ranks[head + 1 :]) else ()))
        for head in ranks
    )
    return static(cluster, interleave(RulePhases(radices, heads), RulePhases(radices, ((Block(ranks),),))))


def rotating_heads_unsupported_reason(cluster: Cluster) -> str | None:
    """It needs workers that share a node, and not so many that the period explodes."""
    size = len(local_ranks(cluster))
    if size < 2:
        return "every node has 1 worker, so there is no head to rotate; use allreduce"
    if size > MAX_ROTATING:
        return f"a node has {size} workers and the period would be {2 * size} phases; use prague-inter-intra"
    return None
