"""Average workers or whole nodes on a mixed-radix grid along one axis per phase; after the last all models are equal.

These are the hyper-cuboid, the one-peer hypercube (its special case of pairs) and grids of whole nodes (node digits).
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from partreduce.schedulers.rules.algebra import local_ranks, static
from partreduce.topo.arithmetic.whole_numbers import ceil_log, fewest_factors, largest_prime_factor, prime_factors
from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block, RulePhase, strides_of
from partreduce.topo.strategies.static import GroupPhases, RulePhases, StaticGroups

MAX_RULE_NODE = 4096
"""The most workers of a node for which a rule is written, since a rule names every local rank; else explicit groups."""


def grid_rule(node_radices: tuple[int, ...], local_radices: tuple[int, ...]) -> RulePhases:
    """Return the rule of a grid, with axes inside the node first, then across nodes: one phase per axis.

    The radices are the lengths of the axes: their products are the number of nodes, and of workers on a node. Each
    worker is in one group per phase.
    """
    size = prod(local_radices)
    phases: list[RulePhase] = [_local_axis(local_radices, axis) for axis in range(len(local_radices))]
    phases.extend(
        tuple(Block((rank,), (digit,)) for rank in range(size)) for digit in range(len(node_radices) - 1, -1, -1)
    )
    return RulePhases(node_radices, tuple(phases))


def _local_axis(radices: tuple[int, ...], axis: int) -> RulePhase:
    strides = strides_of(radices)
    others = [range(0, r * s, s) for d, (r, s) in enumerate(zip(radices, strides, strict=True)) if d != axis]
    line = range(0, radices[axis] * strides[axis], strides[axis])
    return tuple(Block(tuple(sum(base) + step for step in line)) for base in sorted(product(*others)))


def grid_phases(num_workers: int, factors: tuple[int, ...]) -> tuple[Phase, ...]:
    """Return one phase per factor f_l, with the groups {i + m·Π_{j<l} f_j, m < f_l}. O(n log n) per phase.

    The grid may have empty cells (factors whose product is above n): groups at its edge are then smaller.
    """
    workers = np.arange(num_workers, dtype=np.int64)
    phases = []
    stride = 1
    for factor in factors:
        phases.append(Phase.from_labels(workers - workers // stride % factor * stride))
        stride *= factor
    return tuple(phases)


def hyper_cuboid(cluster: Cluster, max_group: int | None, factors: tuple[int, ...] | None) -> StaticGroups:
    """Return the hyper-cuboid schedule, one phase per factor of n: `factors`, or the fewest that are ≤ `max_group`.

    `max_group` None means `default_group`. Without `factors` the schedule is a rule, if as few phases suffice when each
    averages inside nodes or across nodes only; else it has explicit groups.
    """
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
            if len(inside) + len(across) == len(shortest) and cluster.workers_per_node <= MAX_RULE_NODE:
                return static(cluster, grid_rule(across, inside))
        factors = shortest
    return StaticGroups(phases=GroupPhases(grid_phases(count, factors)))


def default_group(cluster: Cluster) -> int:
    """Return the default largest group: the largest node, or more if the prime factors of n require it."""
    return max(
        int(cluster.node_sizes().max()) if not cluster.is_regular else cluster.workers_per_node or 1,
        largest_prime_factor(cluster.num_workers),
        2,
    )


def hyper_cuboid_unsupported_reason(
    cluster: Cluster, max_group: int | None, factors: tuple[int, ...] | None
) -> str | None:
    """Return why no hyper-cuboid has these factors, or groups of at most `max_group` workers; None if there is one."""
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


def one_peer_hypercube(cluster: Cluster) -> StaticGroups:
    """Return the one-peer hypercube: phase k pairs rank i with i xor 2^k; in rule form if nodes are equal."""
    if cluster.workers_per_node is not None and cluster.workers_per_node <= MAX_RULE_NODE:
        across, inside = ceil_log(cluster.num_nodes), ceil_log(cluster.workers_per_node)
        rule = grid_rule((2,) * across, (2,) * inside)
        local, rest = rule.phases[:inside], rule.phases[inside:]  # local digits are written most significant first
        return static(cluster, RulePhases(rule.node_radices, local[::-1] + rest))
    pairs = grid_phases(cluster.num_workers, (2,) * ceil_log(cluster.num_workers))
    return StaticGroups(phases=GroupPhases(pairs))


def node_digits(cluster: Cluster, radices: tuple[int, ...] | None) -> StaticGroups:
    """Return the grid of nodes: phase d averages all workers of the nodes that agree on every digit except d.

    `radices` are the lengths of the grid's axes, by default (None) the prime factors of the number of nodes.
    """
    chosen = prime_factors(cluster.num_nodes) if radices is None else radices
    ranks = local_ranks(cluster)
    return static(cluster, RulePhases(chosen, tuple((Block(ranks, (d,)),) for d in range(len(chosen)))))


def node_digits_unsupported_reason(cluster: Cluster, radices: tuple[int, ...] | None) -> str | None:
    """Return why the radices do not fit (their product must be the number of nodes); None if they fit."""
    if cluster.num_nodes < 2:
        return "there is 1 node; use allreduce"
    if radices is not None and (any(radix < 2 for radix in radices) or prod(radices) != cluster.num_nodes):
        nearest = ",".join(map(str, prime_factors(cluster.num_nodes)))
        return (
            f"radices {list(radices)} do not multiply to {cluster.num_nodes} nodes; use factors ≥ 2 such as {nearest}"
        )
    return None
