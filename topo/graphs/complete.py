"""Complete graph: everybody hears from everybody."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def complete(num_workers: int) -> Graph:
    """All n(n−1)/2 edges; with weights 1/n one round is exact consensus."""
    i, j = np.triu_indices(num_workers, 1)
    return Graph.undirected(num_workers, i, j)
