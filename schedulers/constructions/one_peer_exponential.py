"""One-peer exponential graph: round k sends to the worker 2^k further on."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import rounds, shift
from preduce.schedulers.entry import Entry, always
from preduce.topo.arithmetic.whole_numbers import ceil_log

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster) -> Schedule:
    """Rounds (I + S^{2^k})/2 for k < ⌈log₂ n⌉, S the cyclic shift."""
    count = cluster.num_workers
    half = Fraction(1, 2)
    return rounds(ENTRY.name, cluster, [shift(count, 2**k, half) for k in range(ceil_log(count))])


ENTRY = Entry(
    name="one-peer-exponential",
    summary="One message a round, 1, 2, 4, … workers further on in turn; exact when n is a power of two.",
    source="Ying et al., Exponential graph is provably efficient, NeurIPS 2021",
    kind="rounds",
    make=make,
    refuse=always,
    degree="1",
    period="⌈log₂ n⌉",
    figures="exact iff n = 2^c; else contraction e.g. 0.2023 (n = 5), 0.125 (7), 0.1916 (100)",
)
