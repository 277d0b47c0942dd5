"""The graphs of stochastic gradient push: exponential hops forward and back in turn."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import rounds, shift
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.arithmetic.whole_numbers import ceil_log

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def hops(num_workers: int, variant: str) -> list[int]:
    """`alternating`: +1, −1, +2, −2, +4, …; `bipartite`: ±1, ±(1+2^k), so that even ranks meet odd ranks only."""
    powers = [2**k for k in range(ceil_log(num_workers))]
    if variant == "bipartite":
        powers = sorted({1, *(1 + power for power in powers[1:])})
    listed = [sign * hop for hop in powers if hop < num_workers for sign in (1, -1)]
    return list(dict.fromkeys(hop % num_workers for hop in listed))


def make(cluster: Cluster, variant: str) -> Schedule:
    """Push-sum on permutations keeps its weights at 1, so that the rounds are plain averages (I + S^hop)/2."""
    count = cluster.num_workers
    listed = [shift(count, hop, Fraction(1, 2)) for hop in hops(count, variant)]
    return rounds(ENTRY.label(variant=variant), cluster, listed)


def refuse(cluster: Cluster, variant: str) -> str | None:
    """Even ranks meet odd ranks only if there are as many of each."""
    if variant == "bipartite" and cluster.num_workers % 2:
        return f"{cluster.num_workers} workers are not even and the bipartite graph needs that; use variant=alternating"
    return None


ENTRY = Entry(
    name="sgp",
    summary="Exponential hops forward and back in turn: directed, one message a round, any n.",
    source="Assran et al., Stochastic gradient push for distributed deep learning, ICML 2019",
    kind="rounds",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="variant",
            kind="text",
            default="alternating",
            choices=("alternating", "bipartite"),
            help="alternating: ±2^k; bipartite: ±(1 + 2^k), even ranks with odd ranks",
        ),
    ),
    condition="any n; bipartite: n even",
    degree="1",
    period="up to 2⌈log₂ n⌉",
)
