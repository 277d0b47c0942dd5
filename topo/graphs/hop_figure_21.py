"""The three graphs over 8 workers of Hop's Figure 21, rebuilt from their printed spectral gaps."""

from __future__ import annotations

from itertools import combinations

from preduce.topo.graphs.base import Graph
from preduce.topo.graphs.ring_based import ring_based

MACHINES = ((0, 1, 2, 3), (4, 5), (6, 7))
LINKS = {"b": ((0, 4), (4, 6), (6, 0)), "c": ((1, 4), (5, 6), (7, 0))}


def hop_figure_21(setting: str) -> Graph:
    """Setting `a` is the ring-based graph; `b` and `c` join machines of 4, 2 and 2 workers by a ring.

    In `b` one gateway worker of each machine carries both links, in `c` each link has workers of its own. The hop gaps
    are 2/3, 1 − r with 45r³ − 20r − 3 = 0, and 1 − r with 24r³ − 2r² − 10r − 1 = 0; printed are 0.6667, 0.2682, 0.2688.
    """
    if setting == "a":
        return ring_based(8)
    pairs = [pair for machine in MACHINES for pair in combinations(machine, 2)]
    pairs.extend(LINKS[setting])
    return Graph.undirected(8, [a for a, _ in pairs], [b for _, b in pairs])
