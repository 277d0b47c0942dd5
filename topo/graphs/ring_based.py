"""Hop's ring-based graph: a ring in which every worker also hears from the most distant one."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def ring_based(num_workers: int) -> Graph:
    """Edges (i, i+1) and (i, i+n/2), for even n. Degree 3 (Luo et al., Hop, ASPLOS 2019)."""
    i = np.arange(num_workers)
    others = np.concatenate([(i + 1) % num_workers, (i + num_workers // 2) % num_workers])
    return Graph.undirected(num_workers, np.concatenate([i, i]), others)
