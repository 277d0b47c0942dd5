"""Build the one-peer exponential graph: rounds in which every worker sends a fixed distance ahead.

S is the cyclic shift by one worker, so S^a x has at place i what worker i − a held.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from partreduce.topo.arithmetic.whole_numbers import ceil_log
from partreduce.topo.cluster import Cluster
from partreduce.topo.round import Round
from partreduce.topo.strategies.neighbor import NeighborAveraging

HALF = Fraction(1, 2)


def shift(num_workers: int, hop: int) -> Round:
    """Everybody sends to the worker `hop` further on: x_{i+hop} ← (x_{i+hop} + x_i)/2. O(n)."""
    i = np.arange(num_workers, dtype=np.int64)
    return Round.from_arrays(num_workers, i, (i + hop) % num_workers, [HALF], np.zeros(num_workers, np.int32))


def one_peer_exponential(cluster: Cluster) -> NeighborAveraging:
    """Rounds (I + S^{2^k})/2 for k < ⌈log₂ n⌉."""
    count = cluster.num_workers
    return NeighborAveraging(rounds=tuple(shift(count, 2**k) for k in range(ceil_log(count))))
