"""Star: everybody hears from worker 0 and worker 0 from everybody."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def star(num_workers: int) -> Graph:
    """Edges (0, i). The hub carries n − 1 messages a round."""
    i = np.arange(1, num_workers)
    return Graph.undirected(num_workers, np.zeros_like(i), i)
