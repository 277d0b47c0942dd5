"""NOTIFY-ACK (Hop, section 3): update k leaves only after every out-neighbour acknowledged update k − 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.verify.gaps.lengths import scaled, smaller
from partreduce.verify.gaps.need import Need

if TYPE_CHECKING:
    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.verify.gaps.lengths import Length


def needs(graph: Digraph) -> list[Need]:
    """Send k waits for reduce k − 1 at every out-neighbour, which acknowledges when it has reduced."""
    n = graph.num_workers
    return [Need(n + u, ((2 * n + v, 1),)) for u, v in graph.edges]


def paper_bound(forward: Length, backward: Length) -> Length:
    """Step(i) − Step(j) ≤ min(length of j → i, 2 · length of i → j)."""
    return smaller(forward, scaled(backward, 2))
