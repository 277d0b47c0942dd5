"""Directed graphs with few edges a worker and a short way between any two: exponential and de Bruijn."""

from __future__ import annotations

import numpy as np

from partreduce.topo.graphs.base import Graph


def exponential(num_workers: int) -> Graph:
    """Edges i → i + 2^k for k < c = ⌈log₂ n⌉. With weights 1/(c+1) the gap is 2/(1+c) for even n, larger for odd n.

    Source: Ying et al., Exponential graph is provably efficient for decentralized deep training, NeurIPS 2021.
    """
    i = np.arange(num_workers)
    hops = [2**k for k in range((num_workers - 1).bit_length())]
    others = [(i + hop) % num_workers for hop in hops]
    return Graph.directed(num_workers, np.tile(i, len(hops)), np.concatenate([i[:0], *others]))


def de_bruijn(base: int, length: int) -> Graph:
    """Edges i → base·i + a mod n for a < base, over n = base^length workers, self-loops left out.

    With weight 1/base on every edge, the rest on oneself, W^length = J exactly although ‖W − J‖₂ = 1.
    Source: Delvenne, Carli, Zampieri, Optimal strategies in the average consensus problem, 2009.
    """
    count = base**length
    i = np.arange(count, dtype=np.int64)
    others = [(base * i + a) % count for a in range(base)]
    return Graph.directed(count, np.tile(i, base), np.concatenate(others))
