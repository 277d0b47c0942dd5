"""Moshpit grid: workers on a grid that need not be full average along one axis a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.phase import Phase
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import GroupPhases
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


def dimensions(num_workers: int, side: int) -> int:
    """The least d with side^d ≥ n."""
    d, cells = 1, side
    while cells < num_workers:
        d, cells = d + 1, cells * side
    return d


def default_side(num_workers: int) -> int:
    """The least side whose square holds everybody, at least 2."""
    return max(2, next(side for side in range(int(num_workers**0.5), num_workers + 1) if side * side >= num_workers))


def make(cluster: Cluster, side: int | None) -> Schedule:
    """Worker i has the base-`side` digits of i as coordinates; phase l averages those that differ in digit l only."""
    count = cluster.num_workers
    chosen = default_side(count) if side is None else side
    workers = np.arange(count, dtype=np.int64)
    strides = [chosen**axis for axis in range(dimensions(count, chosen))]
    phases = tuple(Phase.from_labels(workers - workers // stride % chosen * stride) for stride in strides)
    return Schedule(ENTRY.label(side=side), cluster, Static(phases=GroupPhases(phases)))


def refuse(cluster: Cluster, side: int | None) -> str | None:
    """A side fits into the cluster."""
    if side is not None and side > cluster.num_workers:
        return f"side {side} is more than the {cluster.num_workers} workers there are; use side={cluster.num_workers}"
    return None


ENTRY = Entry(
    name="moshpit-grid",
    summary="Averages along the axes of a grid that may have empty cells: any n, exact when the grid is full.",
    source="Ryabinin et al., Moshpit SGD, NeurIPS 2021",
    kind="groups",
    make=make,
    refuse=refuse,
    parameters=(Parameter(name="side", minimum=2, help="workers along an axis; auto: the least square that fits"),),
    condition="any n; exact iff n = side^d",
    degree="side − 1",
    period="d, the number of axes",
    figures="exact (contraction 0) when the grid is full",
)
