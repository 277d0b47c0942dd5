"""Random partitions: uniformly random groups in each phase, drawn once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.constructions.common import SEED
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.phase import Phase
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import GroupPhases
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


def phase(num_workers: int, group: int, rng: np.random.Generator) -> Phase:
    """Groups of `group` workers in random order; what is left over forms a smaller group, a single one skips."""
    labels = np.empty(num_workers, dtype=np.int64)
    labels[rng.permutation(num_workers)] = np.arange(num_workers) // group
    return Phase.from_labels(labels)


def make(cluster: Cluster, group: int | None, phases: int, seed: int) -> Schedule:
    """`phases` independent draws; more are made until the period connects everybody."""
    count = cluster.num_workers
    size = min(4, count) if group is None else group
    rng = np.random.default_rng(seed)
    drawn = [phase(count, size, rng) for _ in range(phases)]
    while not _connected(drawn):
        drawn = [phase(count, size, rng) for _ in range(phases)]
    return Schedule(
        ENTRY.label(group=group, phases=phases, seed=seed), cluster, Static(phases=GroupPhases(tuple(drawn)))
    )


def _connected(phases: list[Phase]) -> bool:
    from preduce.topo.graphs.base import Graph

    first = [np.repeat(p.members[p.offsets[:-1]], p.sizes) for p in phases]
    members = [p.members for p in phases]
    return Graph.undirected(phases[0].num_workers, np.concatenate(first), np.concatenate(members)).is_connected


def refuse(cluster: Cluster, group: int | None, phases: int, seed: int) -> str | None:
    """Groups fit into the cluster, and the phases can connect it."""
    del seed
    count = cluster.num_workers
    if group is not None and group > count:
        return f"group {group} is more than the {count} workers there are; the largest group is {count}"
    size = min(4, count) if group is None else group
    links = phases * (count - -(-count // size))
    if links < count - 1 or (phases < 3 and size < count and count > 64):
        return f"{phases} phases of groups of {size} are unlikely to connect {count} workers; use phases=8 or more"
    return None


ENTRY = Entry(
    name="random-partitions",
    summary="Random groups of a given size in each phase: a rate near 1/√g per phase whatever n.",
    source="Prague's random groups (ASPLOS 2020); Ryabinin et al., Moshpit SGD, NeurIPS 2021",
    kind="groups",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(name="group", minimum=2, help="workers in a group; auto: 4, or n if that is less"),
        Parameter(name="phases", default=8, minimum=1, maximum=10_000, help="phases drawn; they repeat after the last"),
        SEED,
    ),
    degree="g − 1",
    period="phases",
    figures="expected factor of the squared distance per phase: (n − g)/(g(n − 1)) when g divides n",
)
