"""Graphs that every textbook has: ring, star, complete graph, grid, torus, hypercube. Undirected, deterministic."""

from __future__ import annotations

import numpy as np

from partreduce.topo.graphs.base import Graph


def ring(num_workers: int) -> Graph:
    """Edges (i, i+1). With weights 1/3 the slem gap is 1 − max_k |1 + 2cos(2πk/n)|/3 ≈ 4π²/(3n²)."""
    i = np.arange(num_workers)
    return Graph.undirected(num_workers, i, (i + 1) % num_workers)


def star(num_workers: int) -> Graph:
    """Edges (0, i). The hub carries n − 1 messages a round."""
    i = np.arange(1, num_workers)
    return Graph.undirected(num_workers, np.zeros_like(i), i)


def complete(num_workers: int) -> Graph:
    """All n(n−1)/2 edges; with weights 1/n one round is exact consensus."""
    i, j = np.triu_indices(num_workers, 1)
    return Graph.undirected(num_workers, i, j)


def grid(rows: int, columns: int) -> Graph:
    """Worker r·columns + c is joined to (r, c+1) and (r+1, c) where these exist."""
    i = np.arange(rows * columns)
    right, down = i[i % columns < columns - 1], i[i // columns < rows - 1]
    return Graph.undirected(rows * columns, np.concatenate([right, down]), np.concatenate([right + 1, down + columns]))


def torus(rows: int, columns: int) -> Graph:
    """The grid closed in both directions: worker r·columns + c hears from its 4 neighbors; rows, columns ≥ 3.

    With weights 1/5 the slem gap is 1 − max |1 + 2cos(2πi/rows) + 2cos(2πj/columns)|/5 over (i, j) ≠ (0, 0).
    """
    i = np.arange(rows * columns)
    r, c = i // columns, i % columns
    others = np.concatenate([r * columns + (c + 1) % columns, (r + 1) % rows * columns + c])
    return Graph.undirected(rows * columns, np.concatenate([i, i]), others)


def hypercube(dimension: int) -> Graph:
    """Edges (i, i xor 2^k) over 2^dimension workers. With weights 1/(d+1) the slem gap is 2/(d+1)."""
    i = np.arange(2**dimension)
    others = [i ^ (1 << k) for k in range(dimension)]
    return Graph.undirected(2**dimension, np.tile(i, dimension), np.concatenate([i[:0], *others]))
