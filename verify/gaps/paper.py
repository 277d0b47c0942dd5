"""The published bounds: Hop's Table 1, for any combination of its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.verify.gaps import backup, notify_ack, staleness, standard, tokens
from partreduce.verify.gaps.lengths import path_lengths

if TYPE_CHECKING:
    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.topo.strategies.gap import Gap
    from partreduce.verify.gaps.lengths import Length

Matrix = tuple[tuple["Length", ...], ...]


def paper_bounds(graph: Digraph, setting: Gap) -> Matrix:
    """Entry [i][j] bounds Step(i) − Step(j) as the paper does, None where it gives no bound. O(n·edges)."""
    lengths = path_lengths(graph)
    n = graph.num_workers
    has_backup = any(setting.backups(n))

    def entry(i: int, j: int) -> Length:
        forward, backward = lengths[j][i], lengths[i][j]
        if i == j:
            return 0
        if has_backup:
            base = backup.paper_bound(forward, backward)
        elif setting.notify_ack:
            base = notify_ack.paper_bound(forward, backward)
        elif setting.staleness:
            base = staleness.paper_bound(forward, backward, setting.staleness)
        else:
            base = standard.paper_bound(forward, backward)
        return base if setting.max_ig is None else tokens.paper_bound(base, backward, setting.max_ig)

    return tuple(tuple(entry(i, j) for j in range(n)) for i in range(n))
