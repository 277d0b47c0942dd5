"""Static exponential graph: directed edges to the workers 1, 2, 4, … further on."""

from __future__ import annotations

import numpy as np

from preduce.topo.graphs.base import Graph


def exponential(num_workers: int) -> Graph:
    """Edges i → i + 2^k for k < c = ⌈log₂ n⌉. With weights 1/(c+1) the gap is 2/(1+c) for even n, larger for odd n.

    Source: Ying et al., Exponential graph is provably efficient for decentralized deep training, NeurIPS 2021.
    """
    i = np.arange(num_workers)
    hops = [2**k for k in range((num_workers - 1).bit_length())]
    others = [(i + hop) % num_workers for hop in hops]
    return Graph.directed(num_workers, np.tile(i, len(hops)), np.concatenate([i[:0], *others]))
