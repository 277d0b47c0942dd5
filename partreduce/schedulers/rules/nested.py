"""Nested averages: often inside nodes (or pairs of a node), sometimes inside racks, rarely over all workers.

Among them are Prague's fixed schedules: its Figure 10, and inter-intra synchronization with fixed or rotating heads.
Sources: hierarchical local SGD of Lin, Stich, Patel, Jaggi, Don't use large mini-batches, use local SGD, ICLR 2020;
Luo, He, Zhuo, Qian, Prague: heterogeneity-aware asynchronous decentralized training, ASPLOS 2020.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from partreduce.schedulers.rules.algebra import all_digits, local_ranks, static
from partreduce.topo.arithmetic.whole_numbers import divisors, smallest_prime_factor
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import regular_levels
from partreduce.topo.rule import Block, RulePhase
from partreduce.topo.strategies.static import RulePhases, StaticGroups

MAX_PERIOD = 100_000
MAX_ROTATING = 256
"""The most workers of a node for rotating heads, which need two phases for each of them."""


def node_then_all(cluster: Cluster, node_rounds: int) -> StaticGroups:
    """Return `node_rounds` averages inside each node, followed by one over all workers."""
    ranks, radices = local_ranks(cluster), all_digits(cluster.num_nodes)
    everyone = Block(ranks, tuple(range(len(radices))))
    return static(cluster, RulePhases(radices, ((Block(ranks),),) * node_rounds + ((everyone,),)))


def lone_workers_unsupported_reason(so: str, cluster: Cluster, **rounds: int) -> str | None:
    """Return a sentence if every node has one worker, so that rounds inside nodes are useless; else None.

    `so` is the part of the sentence that says what follows; `rounds` are the numbers of rounds inside nodes.
    """
    if len(local_ranks(cluster)) < 2:
        return f"every node has 1 worker, so {so}; use allreduce(every={sum(rounds.values()) + 1})"
    return None


def pairs_pairs_all(cluster: Cluster, pair_rounds: int) -> StaticGroups:
    """Return `pair_rounds` rounds of pairs inside nodes, at even and odd local ranks in turn, then one round of all."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    phases = [_pairs(len(ranks), t % 2) for t in range(pair_rounds)]
    phases.append((Block(ranks, tuple(range(len(radices)))),))
    return static(cluster, RulePhases(radices, tuple(phases)))


@lru_cache(maxsize=4)  # a catalogue of many numbers of rounds has the same two phases
def _pairs(size: int, shift: int) -> tuple[Block, ...]:
    """Return neighboring local ranks in pairs, from `shift` (0 or 1) on; with 1 and an even `size` also (0, last)."""
    pairs = [(first, first + 1) for first in range(shift, size - 1, 2)]
    if shift and size % 2 == 0:
        pairs.append((0, size - 1))
    return tuple(Block(pair) for pair in pairs)


def hierarchy(cluster: Cluster, levels: tuple[int, ...] | None, rounds: int) -> StaticGroups:
    """Return nested averages: each level has `rounds` rounds before one round of the next larger level.

    Level 0 is the node, level 1 the nodes whose numbers share all digits except the last, and so on up to all nodes.
    `levels` are the radices of these digits.
    """
    radices = default_levels(cluster) if levels is None else levels
    cycle: tuple[RulePhase, ...] = ()
    for first in _firsts(cluster, radices):
        level = (Block(local_ranks(cluster), tuple(range(first, len(radices)))),)
        cycle = (*cycle * rounds, level)
    return static(cluster, RulePhases(radices, cycle))


def default_levels(cluster: Cluster) -> tuple[int, ...]:
    """Return the factors of the number of nodes by which `hierarchy` nests them: those of the switches, if regular.

    Otherwise they are two factors that are as equal as possible.
    """
    num_nodes = cluster.num_nodes
    if cluster.hardware is not None and cluster.hardware.switches:
        known = regular_levels(cluster.hardware.shared_switches(num_nodes), num_nodes)
        if known is not None and len(known) > 1:
            return known
    racks = max((d for d in divisors(num_nodes) if d * d <= num_nodes), default=1)
    return tuple(radix for radix in (racks, num_nodes // racks) if radix > 1)


def _firsts(cluster: Cluster, radices: tuple[int, ...]) -> range:
    """Return for each level, smallest first, the first digit of the node's number over which it averages.

    A level averages over all later digits, too. A node of one worker is no level.
    """
    return range(len(radices) - (len(local_ranks(cluster)) < 2), -1, -1)


def hierarchy_unsupported_reason(cluster: Cluster, levels: tuple[int, ...] | None, rounds: int) -> str | None:
    """Return why `hierarchy` is impossible (levels do not fit the nodes, the period is too long); None if it is not."""
    chosen = default_levels(cluster) if levels is None else levels
    if any(radix < 2 for radix in chosen) or prod(chosen) != cluster.num_nodes:
        nearest = "x".join(map(str, default_levels(cluster)))
        near = f"such as {nearest}" if nearest else "none for a single node"
        return (
            f"levels {'x'.join(map(str, chosen))} do not multiply to {cluster.num_nodes} nodes; use factors ≥ 2, {near}"
        )
    if len(local_ranks(cluster)) < 2 and len(chosen) < 2:
        return f"there is one level only; use allreduce(every={rounds + 1})"
    period = sum(rounds**level for level in range(len(_firsts(cluster, chosen))))
    if period > MAX_PERIOD:
        return f"{rounds} rounds on each level give a period of {period}, above {MAX_PERIOD}; use fewer rounds"
    return None


def figure_10_rule(num_nodes: int, workers_per_node: int) -> RulePhases:
    """Return Prague's Figure 10 for `num_nodes` nodes of `workers_per_node` workers; LW is the local rank.

    As published, for 4 workers on a node and an even number of nodes: phase 0 averages LW0 of all nodes and LW2+LW3
    inside each node (LW1 skips); phases 1 and 3 average every node; phase 2 averages LW0+LW3 inside each node and LW1
    with LW1 of the opposite node on the ring (LW2 skips).

    The generalization keeps the roles of the local ranks:

    * LW0 is the head (across all nodes in phase 0), LW1 the bridge (across opposite nodes in phase 2);
    * the crew are all others: they average inside each node in phase 0; in phase 2 they join the head without their
      first worker, which skips. With 3 workers on a node the crew is one worker, which skips phase 0 and joins the head
      in phase 2; with 2 there is no crew and the head skips phase 2.
    * An odd number of nodes has no opposite nodes. The bridge then averages over the p nodes at equal distances
      on the ring, p the smallest prime factor of the number of nodes (p = 2 is "opposite").

    Different local ranks have different roles in each phase, so groups are disjoint, and phases 0 and 1 alone connect
    all workers, for every size.
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
    """Return the static rule of Prague's Figure 10 (groups in and across nodes); explicit groups for unequal nodes."""
    return static(cluster, figure_10_rule(cluster.num_nodes, len(local_ranks(cluster))))


def inter_intra(cluster: Cluster) -> StaticGroups:
    """Return Prague's inter-intra schedule, of two phases.

    Workers with local rank 0 average across nodes while the others average inside nodes; then whole nodes average.
    """
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    inter = (Block((0,), tuple(range(len(radices)))), Block(ranks[1:]))
    return static(cluster, RulePhases(radices, (inter, (Block(ranks),))))


def rotating_heads(cluster: Cluster) -> StaticGroups:
    """Return Prague's inter-intra schedule (`inter_intra`) with rotating heads.

    Each local rank in turn averages across nodes while the others average inside nodes; then whole nodes average.
    """
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    digits = tuple(range(len(radices)))
    phases: list[RulePhase] = []
    for head in ranks:
        phases += [(Block((head,), digits), Block(ranks[:head] + ranks[head + 1 :])), (Block(ranks),)]
    return static(cluster, RulePhases(radices, tuple(phases)))


def rotating_heads_unsupported_reason(cluster: Cluster) -> str | None:
    """Return why heads cannot rotate (no node has two workers, or the period is too long); None if they can."""
    size = len(local_ranks(cluster))
    if size < 2:
        return "every node has 1 worker, so there is no head to rotate; use allreduce"
    if size > MAX_ROTATING:
        return f"a node has {size} workers and the period would be {2 * size} phases; use prague-inter-intra"
    return None
