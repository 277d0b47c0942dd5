"""Random regular graphs, drawn from a seed until one is connected."""

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
    Source: Bollobás, A probabilistic proof of an asymptotic formula for the number of labeled regular graphs, 1980.
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
