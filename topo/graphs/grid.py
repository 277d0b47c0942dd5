"""Grid: workers on a rectangle, hearing from the neighbours that exist."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def grid(rows: int, columns: int) -> Graph:
    """Worker r·columns + c is joined to (r, c+1) and (r+1, c) where these exist."""
    i = np.arange(rows * columns)
    right, down = i[i % columns < columns - 1], i[i // columns < rows - 1]
    return Graph.undirected(rows * columns, np.concatenate([right, down]), np.concatenate([right + 1, down + columns]))
