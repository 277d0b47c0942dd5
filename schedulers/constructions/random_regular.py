"""Random regular graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import SEED, WEIGHTS, fixed
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.graphs.random_regular import random_regular

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, degree: int, seed: int, weights: str) -> Schedule:
    """A connected draw."""
    graph = random_regular(cluster.num_workers, degree, seed)
    return fixed(ENTRY.label(degree=degree, seed=seed, weights=weights), cluster, graph, weights)


def refuse(cluster: Cluster, degree: int, seed: int, weights: str) -> str | None:
    """Degree < n and n·degree even."""
    del seed, weights
    count = cluster.num_workers
    if degree >= count:
        return f"degree {degree} needs more than {degree} workers; the largest degree here is {count - 1}"
    if count * degree % 2:
        near = degree + 1 if degree + 1 < count else degree - 1
        return f"{count} workers of degree {degree} have half an edge too many; use an even degree such as {near}"
    return None


ENTRY = Entry(
    name="random-regular",
    summary="Every worker has the same number of random neighbours: nearly the largest gap for its degree.",
    source="Friedman 2008 (near-Ramanujan); pairing model of Bollobás 1980",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(Parameter(name="degree", default=4, minimum=2, help="neighbours a worker"), SEED, WEIGHTS),
    condition="n·d even, d < n",
    degree="d",
    period="1",
    figures="second singular value about (1 + 2√(d−1))/(d + 1)",
)
