"""Hierarchy: averages inside nodes, now and then inside racks, rarely over everybody."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry, Parameter
from preduce.schedulers.rules.algebra import Rule, compose, local_ranks, repeat, schedule
from preduce.topo.arithmetic.whole_numbers import divisors
from preduce.topo.rule import Block
from preduce.topo.switches import regular_levels

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule

MAX_PERIOD = 100_000


def default_levels(cluster: Cluster) -> tuple[int, ...]:
    """The levels of the cluster's switches where these form a regular tree, else racks × nodes in a rack.

    Such racks are as square as the number of nodes allows; prime numbers stay one level.
    """
    num_nodes = cluster.num_nodes
    if cluster.hardware is not None and cluster.hardware.switches:
        known = regular_levels(cluster.hardware.shared_switches(num_nodes), num_nodes)
        if known is not None and len(known) > 1:
            return known
    racks = max((d for d in divisors(num_nodes) if d * d <= num_nodes), default=1)
    return tuple(radix for radix in (racks, num_nodes // racks) if radix > 1)


def make(cluster: Cluster, levels: tuple[int, ...] | None, rounds: int) -> Schedule:
    """Each level runs `rounds` times before the next larger one runs once.

    Level 0 is the node, level 1 the nodes that share all digits but the last, and so on up to all nodes.
    """
    radices = default_levels(cluster) if levels is None else levels
    ranks = local_ranks(cluster)
    levels_up = [
        Rule(radices, ((Block(ranks, tuple(range(first, len(radices)))),),)) for first in _firsts(cluster, radices)
    ]
    cycle = levels_up[0]
    for level in levels_up[1:]:
        cycle = compose(repeat(cycle, rounds), level)
    return schedule(ENTRY.label(levels=levels, rounds=rounds), cluster, cycle)


def _firsts(cluster: Cluster, radices: tuple[int, ...]) -> range:
    """The first digit that each level spans, the smallest level first; nodes of one worker are no level."""
    return range(len(radices) - (len(local_ranks(cluster)) < 2), -1, -1)


def refuse(cluster: Cluster, levels: tuple[int, ...] | None, rounds: int) -> str | None:
    """Levels have to multiply to the number of nodes, and the period has to stay a sensible length."""
    chosen = default_levels(cluster) if levels is None else levels
    if any(radix < 2 for radix in chosen) or prod(chosen) != cluster.num_nodes:
        nearest = "x".join(map(str, default_levels(cluster)))
        near = f"such as {nearest}" if nearest else "none for a single node"
        return (
            f"levels {'x'.join(map(str, chosen))} do not multiply to {cluster.num_nodes} nodes; use factors ≥ 2, {near}"
        )
    if len(local_ranks(cluster)) < 2 and len(chosen) < 2:
        return f"there is one level only; use allreduce with every={rounds + 1}"
    period = sum(rounds**level for level in range(len(_firsts(cluster, chosen))))
    if period > MAX_PERIOD:
        return f"{rounds} rounds on each level give a period of {period}, above {MAX_PERIOD}; use fewer rounds"
    return None


ENTRY = Entry(
    name="hierarchy",
    summary="Node, rack and cluster averages nested: each level runs several times before the next larger one.",
    source="hierarchical local SGD: Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020",
    kind="rule",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="levels",
            kind="ints",
            help="racks x nodes in a rack x …; auto: as the switches say, else as square as possible",
        ),
        Parameter(
            name="rounds", default=2, minimum=1, maximum=1000, help="rounds of a level before the next larger one"
        ),
    ),
    condition="2 or more levels (workers on a node, nodes in a rack, racks)",
    degree="n − 1 in global rounds",
    period="with L levels above the node and k rounds: k^L + k^(L−1) + … + 1",
    figures="contraction 0",
)
