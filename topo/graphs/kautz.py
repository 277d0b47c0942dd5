"""Kautz graph: the largest known directed graphs of a given degree and diameter."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def kautz(degree: int, diameter: int) -> Graph:
    """Edges i → −(degree·i + a) mod n, a = 1..degree, over n = degree^diameter + degree^(diameter−1) workers.

    With weight 1/degree and none on oneself, |λ₂| = 1/degree and ‖W^t − J‖₂ = 1 for t < diameter,
    then degree^−(t−diameter+1).
    """
    count = degree**diameter + degree ** (diameter - 1)
    i = np.arange(count, dtype=np.int64)
    others = [-(degree * i + a) % count for a in range(1, degree + 1)]
    return Graph.directed(count, np.tile(i, degree), np.concatenate(others))
