"""Erdős–Rényi graph: every pair of workers is joined with the same probability."""

from __future__ import annotations

import numpy as np

from preduce.topo.errors import ScheduleError
from preduce.topo.graphs.base import Graph

TRIES = 200


def erdos_renyi(num_workers: int, probability: float, seed: int) -> Graph:
    """A connected draw; connected with high probability from (1+ε)·ln n / n on. O(n + edges) expected.

    Raises:
        ScheduleError: no connected graph was found.
    """
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        graph = _draw(num_workers, probability, rng)
        if graph.is_connected:
            return graph
    threshold = np.log(num_workers) / num_workers
    raise ScheduleError(
        f"probability: no connected graph at {probability:g} over {num_workers} workers in {TRIES} draws; "
        f"use more than ln n / n = {threshold:.4f}"
    )


def _draw(count: int, probability: float, rng: np.random.Generator) -> Graph:
    """Skip geometrically from edge to edge of the list of all pairs, so that absent edges cost nothing."""
    total = count * (count - 1) // 2
    if probability >= 1:
        positions = np.arange(total, dtype=np.int64)
    else:
        expected = total * probability
        steps = rng.geometric(probability, size=int(expected + 6 * np.sqrt(expected) + 16)).astype(np.float64)
        floats = np.cumsum(steps) - 1
        positions = floats[floats < total].astype(np.int64)
    # Pair number p is (row, column) with row > column: row is the greatest r with r(r−1)/2 ≤ p.
    row = ((1 + np.sqrt(1 + 8 * positions.astype(np.float64))) / 2).astype(np.int64)
    row -= row * (row - 1) // 2 > positions
    row += (row + 1) * row // 2 <= positions
    return Graph.undirected(count, row, positions - row * (row - 1) // 2)
