"""Backup workers (Hop, section 4), alone or with staleness (the hybrid): a worker does without some in-neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preduce.schedulers.protocols.digraph import Digraph
    from preduce.verify.gaps.lengths import Length


def paper_bound(forward: Length, backward: Length) -> Length:  # noqa: ARG001 - one signature for all settings
    """Nothing is guaranteed without token queues."""
    return None


def runaways(graph: Digraph, backups: Sequence[int], behind: int) -> frozenset[int]:
    """The workers that can get ahead of worker `behind` without bound when there are no token queues.

    They are the greatest set S without `behind` in which every worker has all its in-neighbours but its backups inside
    S. Inside S nobody ever waits for anyone outside; and a worker that is thrown out while S shrinks waits in every
    step for at least one that was thrown out before it. Exact, also under staleness. O(edges).
    """
    missing = [0] * graph.num_workers
    outside = {behind}
    waiting = [behind]
    while waiting:
        for v in graph.targets[waiting.pop()]:
            missing[v] += 1
            if v not in outside and missing[v] > backups[v]:
                outside.add(v)
                waiting.append(v)
    return frozenset(range(graph.num_workers)) - outside
