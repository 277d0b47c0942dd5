"""CECA-2P: exact consensus in ⌈log₂ n⌉ rounds for any n, with two vectors a worker. Analysis only.

Source: Ding et al., DSGD-CECA: decentralized SGD with communication-optimal exact consensus, ICML 2023.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from partreduce.topo.cluster import Cluster

    Matrix = list[list[Fraction]]


def averages(num_workers: int) -> list[Matrix]:
    """The first vector of every worker after each round, as rows over the starting values. O(n² log n), exact.

    After the round that reads the bits of n − 1 down to m, vector x is the mean over the worker itself and the m before
    it, vector y the mean over the m before it: n − 1 = m at the end makes x the mean of everybody.
    """
    n = num_workers
    x: Matrix = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    y: Matrix = [[Fraction(0)] * n for _ in range(n)]
    m, history = 0, []
    for bit in bin(n - 1)[2:]:
        if bit == "1":  # x of the worker m + 1 before is the mean just beyond what x and y hold
            far = [x[(i - m - 1) % n] for i in range(n)]
            y = [_mix(far[i], m + 1, y[i], m) for i in range(n)]
            x = [_mix(x[i], 1, far[i], 1) for i in range(n)]
        else:
            far = [y[(i - m) % n] for i in range(n)]
            x = [_mix(x[i], m + 1, far[i], m) for i in range(n)]
            y = [_mix(y[i], 1, far[i], 1) for i in range(n)]
        m = 2 * m + int(bit)
        history.append(x)
    return history


def _mix(a: list[Fraction], weight_a: int, b: list[Fraction], weight_b: int) -> list[Fraction]:
    return [(weight_a * p + weight_b * q) / (weight_a + weight_b) for p, q in zip(a, b, strict=True)]


def ceca_2p(cluster: Cluster) -> NoReturn:
    """Never called: `ceca_2p_refusal` always has a reason."""
    raise AssertionError(f"CECA-2P has no schedule, asked for on {cluster}")


def ceca_2p_refusal(cluster: Cluster) -> str:
    """Schedules average one vector a worker."""
    rounds = (cluster.num_workers - 1).bit_length()
    return f"CECA-2P keeps two vectors a worker and is listed for comparison only ({rounds} rounds); use base-k-plus-1"
