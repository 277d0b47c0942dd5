"""De Bruijn graph."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import rounds
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.arithmetic.whole_numbers import divisors
from preduce.topo.graphs.de_bruijn import de_bruijn
from preduce.topo.graphs.weights.constant import constant

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def length_of(num_workers: int, base: int) -> int | None:
    """L with base^L = n, if there is one."""
    length, rest = 0, num_workers
    while rest % base == 0:
        length, rest = length + 1, rest // base
    return length if rest == 1 else None


def default_base(num_workers: int) -> int:
    """The smallest base of which n is a power; n itself at worst."""
    return next(d for d in divisors(num_workers) if d > 1 and length_of(num_workers, d))


def make(cluster: Cluster, base: int | None) -> Schedule:
    """Weight 1/base on every edge i → base·i + a mod n."""
    chosen = default_base(cluster.num_workers) if base is None else base
    length = length_of(cluster.num_workers, chosen)
    assert length is not None
    return rounds(ENTRY.label(base=base), cluster, [constant(de_bruijn(chosen, length), Fraction(1, chosen))])


def refuse(cluster: Cluster, base: int | None) -> str | None:
    """The number of workers is a power of the base."""
    count = cluster.num_workers
    if base is not None and not length_of(count, base):
        return f"{count} is not a power of {base}; use base={default_base(count)}"
    if base is None and default_base(count) > 64:
        return f"{count} is a power of nothing up to 64: {default_base(count)} edges a worker; use exponential"
    return None


ENTRY = Entry(
    name="de-bruijn",
    summary="A fixed directed graph that reaches the exact mean: log_m n rounds with m edges a worker.",
    source="Delvenne, Carli, Zampieri, Optimal strategies in the average consensus problem, 2009",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(Parameter(name="base", minimum=2, help="m, edges a worker; auto: the smallest of which n is a power"),),
    condition="n = m^L",
    degree="m",
    period="1",
    figures="W^L = J exactly, although ‖W − J‖₂ = 1 for L > 1",
)
