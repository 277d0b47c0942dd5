"""Schedules whose partners change every round: one-peer exponential, Moshpit's grid, random groups, NoLoCo.

Sources: Ying et al., Exponential graph is provably efficient, NeurIPS 2021; Ryabinin et al., Moshpit SGD, NeurIPS 2021
(Prague draws random groups as well, ASPLOS 2020, but on request); Kolehmainen et al., NoLoCo, 2025 (arXiv 2506.10911),
whose pairs are drawn here before the run, so that the schedule can be proved; they repeat with the period.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import isqrt

import numpy as np

from partreduce.schedulers.rules.grids import grid_phases
from partreduce.topo.arithmetic.whole_numbers import ceil_log
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.graphs import Graph
from partreduce.topo.metrics.stability import check_unstable
from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.payload import OuterParams, OuterStep, Payload
from partreduce.topo.strategies.static import GroupPhases, StaticGroups

HALF = Fraction(1, 2)


def shift(num_workers: int, hop: int) -> Round:
    """Return the round x_{i+hop} ← (x_{i+hop} + x_i)/2: each worker averages with the worker `hop` ranks before it."""
    i = np.arange(num_workers, dtype=np.int64)
    return Round.from_arrays(num_workers, i, (i + hop) % num_workers, [HALF], np.zeros(num_workers, np.int32))


def one_peer_exponential(cluster: Cluster) -> NeighborAveraging:
    """Return the one-peer exponential graph: rounds (I + S^{2^k})/2 for k < ⌈log₂ n⌉, S the cyclic shift of ranks."""
    count = cluster.num_workers
    return NeighborAveraging(rounds=tuple(shift(count, 2**k) for k in range(ceil_log(count))))


def moshpit_grid(cluster: Cluster, side: int | None) -> StaticGroups:
    """Return Moshpit's grid: in phase l, workers average whose ranks in base `side` differ only in digit l.

    By default (None) `side` is the smallest number whose square is at least n.
    """
    count = cluster.num_workers
    chosen = max(2, isqrt(count - 1) + 1) if side is None else side  # the smallest side whose square is at least n
    return StaticGroups(phases=GroupPhases(grid_phases(count, (chosen,) * ceil_log(count, chosen))))


def moshpit_grid_unsupported_reason(cluster: Cluster, side: int | None) -> str | None:
    """Return why no grid of this side fits the cluster; None if it fits."""
    if side is not None and side > cluster.num_workers:
        return f"side {side} is more than the {cluster.num_workers} workers there are; use side={cluster.num_workers}"
    return None


def random_partitions(cluster: Cluster, group: int | None, phases: int, seed: int) -> StaticGroups:
    """Return `phases` random partitions into groups of `group` workers (None: 4) that together connect all workers."""
    count = cluster.num_workers
    size = _group_size(count, group)
    rng = np.random.default_rng(seed)
    while True:
        drawn = tuple(random_phase(count, size, rng) for _ in range(phases))
        heads = np.concatenate([np.repeat(p.members[p.offsets[:-1]], p.sizes) for p in drawn])  # of each worker's group
        if Graph.undirected(count, heads, np.concatenate([p.members for p in drawn])).is_connected:
            return StaticGroups(phases=GroupPhases(drawn))


def random_phase(num_workers: int, group: int, rng: np.random.Generator) -> Phase:
    """Return a random partition into groups of `group` workers; the rest is a smaller group, a single worker skips."""
    labels = np.empty(num_workers, dtype=np.int64)
    labels[rng.permutation(num_workers)] = np.arange(num_workers) // group
    return Phase.from_labels(labels)


def _group_size(num_workers: int, group: int | None) -> int:
    return min(4, num_workers) if group is None else group


def random_partitions_unsupported_reason(cluster: Cluster, group: int | None, phases: int, seed: int) -> str | None:
    """Return why random groups do not fit, or are unlikely to connect all workers; None if they are possible."""
    del seed
    count = cluster.num_workers
    if group is not None and group > count:
        return f"group {group} is more than the {count} workers there are; the largest group is {count}"
    size = _group_size(count, group)
    links = phases * (count - -(-count // size))
    if links < count - 1 or (phases < 3 and size < count and count > 64):
        return f"{phases} phases of groups of {size} are unlikely to connect {count} workers; use phases=8 or more"
    return None


def noloco(cluster: Cluster, *, every: int, lr: float, momentum: float, phases: int, seed: int) -> StaticGroups:
    """Return NoLoCo: every `every` steps each worker takes an outer step with a random partner.

    In an odd number of workers one skips. `lr` and `momentum` are those of the outer steps. `phases` random pairings
    are drawn with `seed` and repeat.
    """
    outer = OuterStep(lr=Fraction(str(lr)), momentum=Fraction(str(momentum)), outer_params=OuterParams.PER_WORKER)
    return replace(random_partitions(cluster, 2, phases, seed), steps_per_round=every, payload=Payload(outer=outer))


def noloco_unsupported_reason(
    cluster: Cluster, *, every: int, lr: float, momentum: float, phases: int, seed: int
) -> str | None:
    """Return why these settings are invalid; None if pairs connect all workers and their differences decay."""
    if reason := random_partitions_unsupported_reason(cluster, 2, phases, seed):
        return reason
    drawn = noloco(cluster, every=every, lr=lr, momentum=momentum, phases=phases, seed=seed)
    try:
        check_unstable(Schedule("noloco", cluster, drawn))
    except (InputError, ScheduleError) as error:
        return str(error)
    return None
