"""The phases that a profile measures, and random ones to check its predictions with."""

from __future__ import annotations

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase


def calibration_phases(cluster: Cluster) -> list[Phase]:
    """One group and several at once, inside nodes and across them, from pairs to everybody; duplicates are left out."""
    n = cluster.num_workers
    nodes = [list(cluster.workers_of(node)) for node in range(cluster.num_nodes)]
    candidates: list[list[list[int]]] = [[list(range(n))]]
    for size in (2, 3, 4):
        chunks = [[node[i : i + size] for i in range(0, len(node) - size + 1, size)] for node in nodes]
        flat = [chunk for node in chunks for chunk in node]
        if flat:
            candidates += [[flat[0]], flat, flat[: max(1, len(flat) // 2)]]
    candidates += [[node] for node in nodes[:1] if len(node) > 1] + [[node for node in nodes if len(node) > 1]]
    if len(nodes) > 1:
        columns = [list(column) for column in zip(*nodes, strict=False)]
        pairs = [[a, b] for a, b in zip(nodes[0], nodes[1], strict=False)]
        candidates += [[columns[0]], columns, [pairs[0]], pairs]
    return list(dict.fromkeys(Phase.from_groups(n, groups) for groups in candidates if groups))


def random_phases(cluster: Cluster, count: int, rng: np.random.Generator) -> list[Phase]:
    """Random partitions into groups of 2 to n workers, some workers skipping; at least one group each."""
    n = cluster.num_workers
    phases: list[Phase] = []
    while len(phases) < count:
        order = rng.permutation(n).tolist()
        groups, start = [], 0
        while n - start >= 2:
            size = int(rng.integers(2, min(n - start, max(2, n // 2)) + 1))
            if rng.random() < 0.85:
                groups.append(order[start : start + size])
            start += size
        if groups:
            phases.append(Phase.from_groups(n, groups))
    return phases
