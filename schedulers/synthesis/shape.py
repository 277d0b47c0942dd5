"""What the cluster's shape and speeds imply before any search: evenness, paces worth trying, the crossing bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedulers.synthesis.explicit_alphabet import partition_cost

if TYPE_CHECKING:
    from schedulers.synthesis.problem import Problem
    from topo.cluster import Cluster

MAX_PACE = 8


def is_even(cluster: Cluster) -> bool:
    """Whether all nodes are alike, so that a rule can treat them alike."""
    hardware = cluster.hardware
    assert hardware is not None
    unequal = hardware.node_nic or hardware.node_inside or any(f != 1 for _, f in hardware.slowdown)
    return cluster.is_regular and not unequal and cluster.num_nodes > 1


def derived_paces(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Pace 1 for all, and paces in proportion to speed where speeds differ (the slowest worker keeps pace 1)."""
    hardware = cluster.hardware
    assert hardware is not None
    same = (1,) * cluster.num_workers
    factors = dict(hardware.slowdown)
    if all(factor == 1 for factor in factors.values()):
        return (same,)
    slow = [factors.get(worker, 1.0) for worker in range(cluster.num_workers)]
    slowest = max(slow)
    proportional = tuple(min(MAX_PACE, max(1, round(slowest / factor))) for factor in slow)
    return (same,) if proportional == same else (same, proportional)


def crossing_bound(problem: Problem) -> float:
    """Seconds per step below which the workers cannot all stay connected.

    In every period some group must cross nodes (or exist at all, on one node). The cheapest group is a pair, whatever
    the form of the all-reduce, and it must run once in `max_period` rounds of at most the largest pace in steps.
    """
    cluster, size = problem.cluster, problem.cluster.num_workers
    instants = max((max(pace) for pace in problem.paces or derived_paces(cluster)), default=1)
    node_of = cluster.node_of()
    first = [cluster.workers_of(v)[0] for v in range(cluster.num_nodes)]
    if cluster.num_nodes == 1:
        pairs = [(0, 1)]
    elif problem.hardware.node_nic:
        # Every node must be crossed; the slowest NIC costs the most, so some pair with it is unavoidable.
        worst = max(range(cluster.num_nodes), key=lambda v: problem.hardware.nic_of(v).seconds_per_byte)
        pairs = [(first[worst], other) for other in first if node_of[other] != worst]
    else:
        pairs = [(first[0], first[1])]
    assert size >= 2
    return min(partition_cost(((min(a, b), max(a, b)),), problem) for a, b in pairs) / (
        problem.limits.max_period * instants
    )
