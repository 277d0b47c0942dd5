"""Hop's double ring: two ring-based graphs, connected worker to worker."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph
from preduce.topo.graphs.ring_based import ring_based


def double_ring(num_workers: int) -> Graph:
    """Two copies of `ring_based(n/2)` and edges (i, i+n/2), for n divisible by 4. Degree 4 (Hop, ASPLOS 2019)."""
    half = num_workers // 2
    one = ring_based(half)
    i = np.arange(half)
    ends = np.concatenate([one.sources, one.sources + half, i])
    return Graph.undirected(num_workers, ends, np.concatenate([one.targets, one.targets + half, i + half]))
