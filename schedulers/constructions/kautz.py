"""Kautz graph."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import rounds
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.graphs.kautz import kautz
from preduce.topo.graphs.weights.constant import constant

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def shape_of(num_workers: int, degree: int | None) -> tuple[int, int] | None:
    """(degree, diameter) with n = d^D + d^(D−1) and D ≥ 2, the smallest degree first; None if there is none."""
    for d in (degree,) if degree is not None else range(2, 65):
        count, diameter = d + 1, 1
        while count < num_workers:
            count, diameter = count * d, diameter + 1
        if count == num_workers and diameter >= 2:
            return d, diameter
    return None


def make(cluster: Cluster, degree: int | None) -> Schedule:
    """Weight 1/degree on every edge, none on oneself."""
    shape = shape_of(cluster.num_workers, degree)
    assert shape is not None
    return rounds(ENTRY.label(degree=degree), cluster, [constant(kautz(*shape), Fraction(1, shape[0]))])


def refuse(cluster: Cluster, degree: int | None) -> str | None:
    """The number of workers is d^D + d^(D−1)."""
    count = cluster.num_workers
    if shape_of(count, degree):
        return None
    larger = next(m for m in range(count + 1, 64 * count + 100) if shape_of(m, degree))
    wanted = "d" if degree is None else str(degree)
    return f"{count} is not {wanted}^D + {wanted}^(D−1) with D ≥ 2; the next number that is: {larger}"


ENTRY = Entry(
    name="kautz",
    summary="The largest directed graphs for their degree and diameter; no weight on oneself.",
    source="Kautz 1968; weights as for de Bruijn graphs",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(Parameter(name="degree", minimum=2, maximum=64, help="edges a worker; auto: the smallest that fits"),),
    condition="n = d^D + d^(D−1), D ≥ 2",
    degree="d",
    period="1",
    figures="|λ₂| = 1/d; ‖W^t − J‖₂ = 1 for t < D, then d^−(t−D+1)",
)
