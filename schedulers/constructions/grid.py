"""Rectangular grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed, sides, why_not_sides
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.graphs.grid import grid

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule

LEAST_SIDE = 2


def make(cluster: Cluster, shape: tuple[int, ...] | None, weights: str) -> Schedule:
    """Rows × columns over all workers in rank order."""
    chosen = shape or sides(cluster.num_workers, LEAST_SIDE)
    assert chosen is not None
    graph = grid(chosen[0], chosen[1])
    return fixed(ENTRY.label(shape=shape, weights=weights), cluster, graph, weights)


def refuse(cluster: Cluster, shape: tuple[int, ...] | None, weights: str) -> str | None:
    """Both sides have a least length and multiply to the number of workers."""
    del weights
    return why_not_sides(cluster.num_workers, shape, LEAST_SIDE)


ENTRY = Entry(
    name="grid",
    summary="Workers on a rectangle, with the neighbours that exist.",
    source="folklore; figures as in Ying et al., NeurIPS 2021",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(Parameter(name="shape", kind="ints", help="rows x columns; auto: as square as possible"), WEIGHTS),
    condition="n = a·b with a, b ≥ 2",
    degree="up to 4",
    period="1",
    figures="",
)
