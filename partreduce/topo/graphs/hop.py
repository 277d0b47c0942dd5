"""The graphs of Hop: rings with a chord to the most distant worker, two of them joined, and those of its Figure 21.

Source: Luo, Lin, Zhuo, Qian, Hop: heterogeneity-aware decentralized training, ASPLOS 2019.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from partreduce.topo.graphs.base import Graph

MACHINES = ((0, 1, 2, 3), (4, 5), (6, 7))
"""Which workers share a machine in settings b and c of Figure 21."""

LINKS = {"b": ((0, 4), (4, 6), (6, 0)), "c": ((1, 4), (5, 6), (7, 0))}
"""The edges between machines in these settings."""


def ring_based(num_workers: int) -> Graph:
    """A ring whose workers also hear from the most distant one: edges (i, i+1) and (i, i+n/2), for even n. Degree 3."""
    i = np.arange(num_workers)
    others = np.concatenate([(i + 1) % num_workers, (i + num_workers // 2) % num_workers])
    return Graph.undirected(num_workers, np.concatenate([i, i]), others)


def double_ring(num_workers: int) -> Graph:
    """Two copies of `ring_based(n/2)` and edges (i, i+n/2), for n divisible by 4. Degree 4."""
    half = num_workers // 2
    one = ring_based(half)
    i = np.arange(half)
    ends = np.concatenate([one.sources, one.sources + half, i])
    return Graph.undirected(num_workers, ends, np.concatenate([one.targets, one.targets + half, i + half]))


def hop_figure_21(setting: str) -> Graph:
    """One of the three graphs over 8 workers of Figure 21, rebuilt from their printed spectral gaps.

    Setting `a` is the ring-based graph; `b` and `c` join machines of 4, 2 and 2 workers by a ring. In `b` one gateway
    worker of each machine carries both links, in `c` each link has its own workers. The hop gaps are 2/3, 1 − r with
    45r³ − 20r − 3 = 0, and 1 − r with 24r³ − 2r² − 10r − 1 = 0; printed are 0.6667, 0.2682, 0.2688.
    """
    if setting == "a":
        return ring_based(8)
    pairs = [pair for machine in MACHINES for pair in combinations(machine, 2)]
    pairs.extend(LINKS[setting])
    return Graph.undirected(8, [a for a, _ in pairs], [b for _, b in pairs])
