"""Torus: workers on a grid that closes in both directions."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def torus(rows: int, columns: int) -> Graph:
    """Worker r·columns + c hears from its 4 neighbours; rows, columns ≥ 3.

    With weights 1/5 the slem gap is 1 − max |1 + 2cos(2πi/rows) + 2cos(2πj/columns)|/5 over (i, j) ≠ (0, 0).
    """
    i = np.arange(rows * columns)
    r, c = i // columns, i % columns
    others = np.concatenate([r * columns + (c + 1) % columns, (r + 1) % rows * columns + c])
    return Graph.undirected(rows * columns, np.concatenate([i, i]), others)
