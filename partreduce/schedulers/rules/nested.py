"""Build nested averages: often inside nodes (or pairs of a node), sometimes inside racks, rarely over all workers.

Source: hierarchical local SGD of Lin, Stich, Patel, Jaggi, Don't use large mini-batches, use local SGD, ICLR 2020.
"""

from __future__ import annotations

from math import prod

from partreduce.schedulers.rules.algebra import all_digits, compose, local_ranks, repeat, static
from partreduce.topo.arithmetic.whole_numbers import divisors
from partreduce.topo.cluster import Cluster
from partreduce.topo.rule import Block
from partreduce.topo.strategies.static import RulePhases, StaticGroups
from partreduce.topo.switches import regular_levels

MAX_PERIOD = 100_000


def node_then_all(cluster: Cluster, node_rounds: int) -> StaticGroups:
    """`node_rounds` averages inside each node, then one over all workers."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    inside = RulePhases(radices, ((Block(ranks),),))
    everyone = RulePhases(radices, ((Block(ranks, tuple(range(len(radices)))),),))
    return static(cluster, compose(repeat(inside, node_rounds), everyone))


def lone_workers_unsupported_reason(so: str, cluster: Cluster, **rounds: int) -> str | None:
    """It needs workers that share a node, whose rounds before one of all it names; `so` says what is without them."""
    if len(local_ranks(cluster)) < 2:
        return f"every node has 1 worker, so {so}; use allreduce(every={sum(rounds.values()) + 1})"
    return None


def pairs_pairs_all(cluster: Cluster, pair_rounds: int) -> StaticGroups:
    """`pair_rounds` rounds of pairs inside nodes, even and odd ones in turn, then one over all workers."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    phases = [_pairs(len(ranks), t % 2) for t in range(pair_rounds)]
    phases.append((Block(ranks, tuple(range(len(radices)))),))
    return static(cluster, RulePhases(radices, tuple(phases)))


def _pairs(size: int, shift: int) -> tuple[Block, ...]:
    """Neighboring local ranks in pairs, starting at `shift` (0 or 1) and closing the ring when `size` is even."""
    pairs = [(first, first + 1) for first in range(shift, size - 1, 2)]
    if shift and size % 2 == 0:
        pairs.append((0, size - 1))
    return tuple(Block(pair) for pair in pairs)


def hierarchy(cluster: Cluster, levels: tuple[int, ...] | None, rounds: int) -> StaticGroups:
    """Each level runs `rounds` times before the next larger one runs once.

    Level 0 is the node, level 1 the nodes that share all digits but the last, and so on up to all nodes.
    """
    radices = default_levels(cluster) if levels is None else levels
    ranks = local_ranks(cluster)
    levels_up = [
        RulePhases(radices, ((Block(ranks, tuple(range(first, len(radices)))),),))
        for first in _firsts(cluster, radices)
    ]
    cycle = levels_up[0]
    for level in levels_up[1:]:
        cycle = compose(repeat(cycle, rounds), level)
    return static(cluster, cycle)


def default_levels(cluster: Cluster) -> tuple[int, ...]:
    """The levels of the cluster's switches if regular, else racks × nodes, as square as the number of nodes allows."""
    num_nodes = cluster.num_nodes
    if cluster.hardware is not None and cluster.hardware.switches:
        known = regular_levels(cluster.hardware.shared_switches(num_nodes), num_nodes)
        if known is not None and len(known) > 1:
            return known
    racks = max((d for d in divisors(num_nodes) if d * d <= num_nodes), default=1)
    return tuple(radix for radix in (racks, num_nodes // racks) if radix > 1)


def _firsts(cluster: Cluster, radices: tuple[int, ...]) -> range:
    """The first digit that each level spans, the smallest level first; nodes of one worker are no level."""
    return range(len(radices) - (len(local_ranks(cluster)) < 2), -1, -1)


def hierarchy_unsupported_reason(cluster: Cluster, levels: tuple[int, ...] | None, rounds: int) -> str | None:
    """Levels have to multiply to the number of nodes, and the period has to stay a sensible length."""
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
