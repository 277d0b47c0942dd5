"""Random graphs, drawn from a seed until one is connected: random regular and Erdős–Rényi."""

from __future__ import annotations

import numpy as np

from partreduce.topo.errors import ScheduleError
from partreduce.topo.graphs.base import Graph
from partreduce.topo.graphs.classic import complete

TRIES = 200


def random_regular(num_workers: int, degree: int, seed: int) -> Graph:
    """A connected random `degree`-regular graph; n·degree must be even and degree < n. O(n·degree) expected.

    Random pairing of stubs; pairs that are loops or repetitions swap an end with random other pairs until none is
    left. More than half full graphs are drawn as complements.
    Source: Bollobás, A probabilistic proof of an asymptotic formula for the number of labelled regular graphs, 1980.

    Raises:
        ScheduleError: no connected graph was found (degree 1, or 2 with bad luck).
    """
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        if 2 * degree <= num_workers - 1:
            graph = _pairing(num_workers, degree, rng)
        else:
            graph = _complement(_pairing(num_workers, num_workers - 1 - degree, rng))
        if graph.is_connected:
            return graph
    raise ScheduleError(
        f"degree: no connected graph of degree {degree} over {num_workers} workers in {TRIES} draws; use 3 or more"
    )


def _pairing(count: int, degree: int, rng: np.random.Generator) -> Graph:
    stubs = rng.permutation(np.repeat(np.arange(count, dtype=np.int64), degree)).reshape(-1, 2)  # (edges, 2)
    while len(stubs):
        keys = np.minimum(stubs[:, 0], stubs[:, 1]) * count + np.maximum(stubs[:, 0], stubs[:, 1])  # one an edge
        fresh = np.zeros(len(keys), dtype=bool)
        fresh[np.unique(keys, return_index=True)[1]] = True
        bad = np.flatnonzero(~fresh | (stubs[:, 0] == stubs[:, 1]))
        if not len(bad):
            break
        for index in bad.tolist():
            other = int(rng.integers(len(stubs)))
            stubs[index, 1], stubs[other, 1] = stubs[other, 1], stubs[index, 1]
    return Graph.undirected(count, stubs[:, 0], stubs[:, 1])


def _complement(graph: Graph) -> Graph:
    full = complete(graph.num_workers)
    n = np.int64(graph.num_workers)
    keep = ~np.isin(full.targets * n + full.sources, graph.targets * n + graph.sources)
    return Graph(graph.num_workers, full.sources[keep], full.targets[keep])


def erdos_renyi(num_workers: int, probability: float, seed: int) -> Graph:
    """A connected graph in which each pair of workers is joined with the same probability. O(n + edges) expected.

    Connected with high probability from (1+ε)·ln n / n on. Source: Erdős and Rényi, On random graphs I, 1959.

    Raises:
        ScheduleError: no connected graph was found.
    """
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        graph = _independent_edges(num_workers, probability, rng)
        if graph.is_connected:
            return graph
    threshold = np.log(num_workers) / num_workers
    raise ScheduleError(
        f"probability: no connected graph at {probability:g} over {num_workers} workers in {TRIES} draws; "
        f"use more than ln n / n = {threshold:.4f}"
    )


def _independent_edges(count: int, probability: float, rng: np.random.Generator) -> Graph:
    """Skip geometrically from edge to edge of the list of all pairs, so that absent edges cost nothing."""
    total = count * (count - 1) // 2
    if probability >= 1:
        positions = np.arange(total, dtype=np.int64)
    else:
        expected = total * probability
        steps = rng.geometric(probability, size=int(expected + 6 * np.sqrt(expected) + 16)).astype(np.float64)
        floats = np.cumsum(steps) - 1
        positions = floats[floats < total].astype(np.int64)  # (edges,): numbers of pairs, ascending
    # Pair number p is (row, column) with row > column: row is the greatest r with r(r−1)/2 ≤ p.
    row = ((1 + np.sqrt(1 + 8 * positions.astype(np.float64))) / 2).astype(np.int64)
    row -= row * (row - 1) // 2 > positions
    row += (row + 1) * row // 2 <= positions
    return Graph.undirected(count, row, positions - row * (row - 1) // 2)
