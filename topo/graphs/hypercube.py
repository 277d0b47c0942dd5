"""Hypercube: workers whose numbers differ in one bit."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def hypercube(dimension: int) -> Graph:
    """Edges (i, i xor 2^k) over 2^dimension workers. With weights 1/(d+1) the slem gap is 2/(d+1)."""
    i = np.arange(2**dimension)
    others = [i ^ (1 << k) for k in range(dimension)]
    return Graph.undirected(2**dimension, np.tile(i, dimension), np.concatenate([i[:0], *others]))
