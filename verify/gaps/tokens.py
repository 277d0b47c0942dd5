"""Token queues (Hop, Theorem 2): to enter a step a worker takes one token from every out-neighbour's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.verify.gaps.lengths import scaled, smaller
from partreduce.verify.gaps.need import Need

if TYPE_CHECKING:
    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.verify.gaps.lengths import Length


def needs(graph: Digraph, max_ig: int) -> list[Need]:
    """Enter k waits until every out-neighbour has entered k − max_ig; queues start with max_ig tokens."""
    return [Need(u, ((v, max_ig),)) for u, v in graph.edges]


def paper_bound(base: Length, backward: Length, max_ig: int) -> Length:
    """Step(i) − Step(j) ≤ min(the bound without tokens, max_ig · length of i → j)."""
    return smaller(base, scaled(backward, max_ig))
