"""Hop's spectral gap, that of the bare graph: 1 − λ₂ of D⁻¹A, eigenvalues in the order of real numbers (ASPLOS'19)."""

from __future__ import annotations

import numpy as np

from partreduce.topo.errors import InputError
from partreduce.topo.metrics.circulant import shifts_of, transformed
from partreduce.topo.round import Round

MAX_WORKERS = 4_000


def hop_gap(graph: Round) -> float:
    """1 − λ₂ of D⁻¹A, A the adjacency without self-loops and D its degrees. O(n³); alike under shifts O(n log n).

    Weights do not count, only which edges there are. The gap of W itself, by modulus, is 1 − radius.

    Raises:
        InputError: a worker without neighbors, or more than 4,000 workers in a graph that no shifts describe.
    """
    found = shifts_of([graph]) if len(graph) else None
    if found is not None:
        radices, columns = found
        pattern = (columns[0] != 0).astype(np.float64)
        pattern[0] = 0.0
        return 1 - float((transformed(pattern, radices).real / pattern.sum())[1:].max())
    n = graph.num_workers
    if n > MAX_WORKERS:
        raise InputError(f"hop gap: {n} workers; at most {MAX_WORKERS} as one matrix")
    adjacency = np.zeros((n, n))
    for source, target, _ in graph.edges():
        adjacency[target, source] = 1.0
    degrees = adjacency.sum(axis=1)
    if not degrees.all():
        raise InputError(f"hop gap: worker {int(np.argmin(degrees))} has no neighbor; every worker needs at least 1")
    if np.array_equal(adjacency, adjacency.T):
        root = 1 / np.sqrt(degrees)
        values = np.linalg.eigvalsh(root[:, None] * adjacency * root)
    else:
        values = np.sort(np.linalg.eigvals(adjacency / degrees[:, None]).real)
    return 1 - float(values[-2])
