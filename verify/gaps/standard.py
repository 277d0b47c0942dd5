"""Standard setting (Hop, Theorem 1): a worker reduces the updates of its own step from all in-neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.verify.gaps.need import Need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.verify.gaps.lengths import Length


def needs(graph: Digraph, staleness: int, backups: Sequence[int]) -> list[Need]:
    """Reduce k waits for the updates of step k − staleness or later, from all in-neighbours but the backups.

    A worker's own update is always there, so leaving the self-loop out of the sources changes nothing.
    """
    n = graph.num_workers
    listed = []
    for v in range(n):
        sources = tuple((n + u, staleness) for u in graph.sources[v])
        if backups[v] < len(sources):
            listed.append(Need(2 * n + v, sources, backups[v]))
    return listed


def paper_bound(forward: Length, backward: Length) -> Length:  # noqa: ARG001 - one signature for all settings
    """Step(i) − Step(j) ≤ length of the shortest path j → i."""
    return forward
