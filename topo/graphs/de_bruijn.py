"""De Bruijn graph: m edges a worker, exact consensus after log_m n rounds of the same matrix."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def de_bruijn(base: int, length: int) -> Graph:
    """Edges i → base·i + a mod n for a < base, over n = base^length workers, self-loops left out.

    With weight 1/base on every edge, the rest on oneself, W^length = J exactly although ‖W − J‖₂ = 1.
    Source: Delvenne, Carli, Zampieri, Optimal strategies in the average consensus problem, 2009.
    """
    count = base**length
    i = np.arange(count, dtype=np.int64)
    others = [(base * i + a) % count for a in range(base)]
    return Graph.directed(count, np.tile(i, base), np.concatenate(others))
