"""Pairs-pairs-all: rounds of neighbouring pairs inside each node, then one round over everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry, Parameter
from preduce.schedulers.rules.algebra import Rule, all_digits, local_ranks, schedule
from preduce.topo.rule import Block

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def pairs(size: int, shift: int) -> tuple[Block, ...]:
    """Neighbouring local ranks in pairs, starting at `shift` (0 or 1) and closing the ring when `size` is even."""
    listed = [(first, first + 1) for first in range(shift, size - 1, 2)]
    if shift and size % 2 == 0:
        listed.append((0, size - 1))
    return tuple(Block(pair) for pair in listed)


def make(cluster: Cluster, pair_rounds: int) -> Schedule:
    """`pair_rounds` rounds of pairs, even and odd ones in turn, then one over all workers."""
    ranks = local_ranks(cluster)
    radices = all_digits(cluster.num_nodes)
    phases = [pairs(len(ranks), t % 2) for t in range(pair_rounds)]
    phases.append((Block(ranks, tuple(range(len(radices)))),))
    return schedule(ENTRY.label(pair_rounds=pair_rounds), cluster, Rule(radices, tuple(phases)))


def refuse(cluster: Cluster, pair_rounds: int) -> str | None:
    """It needs workers that share a node."""
    if len(local_ranks(cluster)) < 2:
        return (
            f"every node has 1 worker, so there are no pairs inside nodes; use allreduce with every={pair_rounds + 1}"
        )
    return None


ENTRY = Entry(
    name="pairs-pairs-all",
    summary="Pairs inside each node (the cheapest groups there are), then one global average.",
    source="this project; pairs as in Shi et al., Finite-time convergent gossiping, IEEE/ACM ToN 2016",
    kind="rule",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(name="pair_rounds", default=2, minimum=1, maximum=10**5, help="rounds of pairs before a global one"),
    ),
    condition="2 or more workers on the largest node",
    degree="n − 1 in global rounds",
    period="pair_rounds + 1",
    figures="contraction 0; 4x4: drift 23/48 (worker), 5/4 (node)",
)
