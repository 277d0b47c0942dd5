"""Ring: every worker hears from its two neighbours."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def ring(num_workers: int) -> Graph:
    """Edges (i, i+1). With weights 1/3 the slem gap is 1 − max_k |1 + 2cos(2πk/n)|/3 ≈ 4π²/(3n²)."""
    i = np.arange(num_workers)
    return Graph.undirected(num_workers, i, (i + 1) % num_workers)
