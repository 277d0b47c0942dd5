"""Build Moshpit SGD's groups: along the axes of a grid that need not be full, and drawn at random.

Source: Ryabinin, Gorbunov, Plokhotnyuk, Pekhimenko, Moshpit SGD: communication-efficient decentralized training on
heterogeneous unreliable devices, NeurIPS 2021. Prague draws random groups as well (ASPLOS 2020), but on request.
"""

from __future__ import annotations

import numpy as np

from partreduce.schedulers.rules.grids import grid_phases
from partreduce.topo.cluster import Cluster
from partreduce.topo.graphs import Graph
from partreduce.topo.phase import Phase
from partreduce.topo.strategies.static import GroupPhases, StaticGroups


def moshpit_grid(cluster: Cluster, side: int | None) -> StaticGroups:
    """Worker i has the base-`side` digits of i as coordinates; phase l averages those that differ in digit l only."""
    count = cluster.num_workers
    chosen = _default_side(count) if side is None else side
    axes, cells = 1, chosen  # the least number of axes whose grid holds everybody
    while cells < count:
        axes, cells = axes + 1, cells * chosen
    return StaticGroups(phases=GroupPhases(grid_phases(count, (chosen,) * axes)))


def _default_side(num_workers: int) -> int:
    """The least side whose square holds everybody, at least 2."""
    return max(2, next(side for side in range(int(num_workers**0.5), num_workers + 1) if side * side >= num_workers))


def moshpit_grid_unsupported_reason(cluster: Cluster, side: int | None) -> str | None:
    """A side fits into the cluster."""
    if side is not None and side > cluster.num_workers:
        return f"side {side} is more than the {cluster.num_workers} workers there are; use side={cluster.num_workers}"
    return None


def random_partitions(cluster: Cluster, group: int | None, phases: int, seed: int) -> StaticGroups:
    """`phases` independent draws; all are drawn again until the period connects everybody."""
    count = cluster.num_workers
    size = _group_size(count, group)
    rng = np.random.default_rng(seed)
    drawn = [random_phase(count, size, rng) for _ in range(phases)]
    while not _is_connected(drawn):
        drawn = [random_phase(count, size, rng) for _ in range(phases)]
    return StaticGroups(phases=GroupPhases(tuple(drawn)))


def random_phase(num_workers: int, group: int, rng: np.random.Generator) -> Phase:
    """Groups of `group` workers in random order; what is left over forms a smaller group, a single one skips."""
    labels = np.empty(num_workers, dtype=np.int64)
    labels[rng.permutation(num_workers)] = np.arange(num_workers) // group
    return Phase.from_labels(labels)


def _group_size(num_workers: int, group: int | None) -> int:
    return min(4, num_workers) if group is None else group


def _is_connected(phases: list[Phase]) -> bool:
    heads = [np.repeat(p.members[p.offsets[:-1]], p.sizes) for p in phases]  # each member's group's first
    members = [p.members for p in phases]
    return Graph.undirected(phases[0].num_workers, np.concatenate(heads), np.concatenate(members)).is_connected


def random_partitions_unsupported_reason(cluster: Cluster, group: int | None, phases: int, seed: int) -> str | None:
    """Groups fit into the cluster, and the phases can connect it."""
    del seed
    count = cluster.num_workers
    if group is not None and group > count:
        return f"group {group} is more than the {count} workers there are; the largest group is {count}"
    size = _group_size(count, group)
    links = phases * (count - -(-count // size))
    if links < count - 1 or (phases < 3 and size < count and count > 64):
        return f"{phases} phases of groups of {size} are unlikely to connect {count} workers; use phases=8 or more"
    return None
