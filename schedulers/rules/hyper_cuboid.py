"""Hyper-cuboid: workers on a grid average along one axis a phase, which is exact after the last axis."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from preduce.schedulers.entry import Entry, Parameter
from preduce.schedulers.factors import fewest_factors, largest_prime_factor
from preduce.schedulers.rules.algebra import Rule, schedule
from preduce.topo.phase import Phase
from preduce.topo.rule import Block, RulePhase, strides_of
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import GroupPhases
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


def rule(node_radices: tuple[int, ...], local_radices: tuple[int, ...]) -> Rule:
    """Axes inside the node first, then across nodes: one phase per radix, each worker in one group per phase."""
    size = prod(local_radices)
    phases: list[RulePhase] = [_local_axis(local_radices, axis) for axis in range(len(local_radices))]
    phases.extend(
        tuple(Block((rank,), (digit,)) for rank in range(size)) for digit in range(len(node_radices) - 1, -1, -1)
    )
    return Rule(node_radices, tuple(phases))


def _local_axis(radices: tuple[int, ...], axis: int) -> RulePhase:
    strides = strides_of(radices)
    others = [range(0, r * s, s) for d, (r, s) in enumerate(zip(radices, strides, strict=True)) if d != axis]
    line = range(0, radices[axis] * strides[axis], strides[axis])
    return tuple(Block(tuple(sum(base) + step for step in line)) for base in sorted(product(*others)))


def explicit_phases(num_workers: int, factors: tuple[int, ...]) -> tuple[Phase, ...]:
    """One phase per factor: the blocks {i + m·Π_{j<l} f_j}. O(n log n) per phase, vectorised."""
    workers = np.arange(num_workers, dtype=np.int64)
    phases = []
    stride = 1
    for factor in factors:
        phases.append(Phase.from_labels(workers - workers // stride % factor * stride))
        stride *= factor
    return tuple(phases)


def default_group(cluster: Cluster) -> int:
    """The largest node, or what the prime factors of the number of workers force."""
    return max(
        int(cluster.node_sizes().max()) if not cluster.is_regular else cluster.workers_per_node or 1,
        largest_prime_factor(cluster.num_workers),
        2,
    )


def make(cluster: Cluster, max_group: int | None, factors: tuple[int, ...] | None) -> Schedule:
    """Rule form when the axes can be chosen to respect the nodes without costing a phase, explicit groups otherwise."""
    name = ENTRY.label(max_group=max_group, factors=factors)
    count = cluster.num_workers
    if factors is None:
        limit = default_group(cluster) if max_group is None else max_group
        shortest = fewest_factors(count, limit)
        assert shortest is not None
        if cluster.workers_per_node is not None:
            inside = fewest_factors(cluster.workers_per_node, limit)
            across = fewest_factors(cluster.num_nodes, limit)
            assert inside is not None
            assert across is not None
            if len(inside) + len(across) == len(shortest) and cluster.workers_per_node <= 4096:
                return schedule(name, cluster, rule(across, inside))
        factors = shortest
    return Schedule(name, cluster, Static(phases=GroupPhases(explicit_phases(count, factors))))


def refuse(cluster: Cluster, max_group: int | None, factors: tuple[int, ...] | None) -> str | None:
    """Plain means of at most g workers are exact only if every prime factor of n is at most g."""
    count = cluster.num_workers
    prime = largest_prime_factor(count)
    if factors is not None:
        if max_group is not None:
            return "max_group and factors are both given; give one of them"
        if any(factor < 2 for factor in factors) or prod(factors) != count:
            near = ",".join(map(str, fewest_factors(count, default_group(cluster)) or ()))
            return f"factors {list(factors)} do not multiply to {count} workers; use factors ≥ 2 such as {near}"
        return None
    if max_group is not None and max_group > count:
        return f"max_group {max_group} is more than the {count} workers there are; the largest group is {count}"
    if max_group is not None and prime > max_group:
        return (
            f"{count} workers have the prime factor {prime}, so plain means of groups ≤ {max_group} are never exact; "
            f"use max_group={prime}, or base-k-plus-1, which is exact for any number"
        )
    return None


ENTRY = Entry(
    name="hyper-cuboid",
    summary="Exact consensus in the fewest phases that plain group means allow; one axis of a grid of workers a phase.",
    source="mixed-radix grid; k-peer hyper-hypercube of Takezawa et al., Beyond exponential graph, NeurIPS 2023",
    kind="rule",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="max_group", minimum=2, help="largest group; auto: a node, or the largest prime factor of n if larger"
        ),
        Parameter(
            name="factors", kind="ints", help="the grid's sides; auto: as few as possible, along nodes if it fits"
        ),
    ),
    condition="every prime factor of n is at most max_group",
    degree="largest side − 1",
    period="number of sides",
    figures="exact (contraction 0)",
)
