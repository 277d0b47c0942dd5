"""Torus: a grid that closes in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed, sides, why_not_sides
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.graphs.torus import torus

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule

LEAST_SIDE = 3


def make(cluster: Cluster, shape: tuple[int, ...] | None, weights: str) -> Schedule:
    """Rows × columns over all workers in rank order."""
    chosen = shape or sides(cluster.num_workers, LEAST_SIDE)
    assert chosen is not None
    graph = torus(chosen[0], chosen[1])
    return fixed(ENTRY.label(shape=shape, weights=weights), cluster, graph, weights)


def refuse(cluster: Cluster, shape: tuple[int, ...] | None, weights: str) -> str | None:
    """Both sides have a least length and multiply to the number of workers."""
    del weights
    return why_not_sides(cluster.num_workers, shape, LEAST_SIDE)


ENTRY = Entry(
    name="torus",
    summary="Workers on a grid that closes in both directions: four neighbours each.",
    source="folklore; figures as in Ying et al., NeurIPS 2021",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(Parameter(name="shape", kind="ints", help="rows x columns; auto: as square as possible"), WEIGHTS),
    condition="n = a·b with a, b ≥ 3",
    degree="4",
    period="1",
    figures="slem gap 1 − max |1 + 2cos(2πi/a) + 2cos(2πj/b)|/5",
)
