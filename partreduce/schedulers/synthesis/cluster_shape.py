"""Compute what a search needs to know about a cluster: digits of its nodes, steps per round, a lower bound."""

from __future__ import annotations

from collections import Counter
from itertools import product

from partreduce.schedulers.synthesis.problem import Problem
from partreduce.topo.arithmetic.whole_numbers import prime_factors
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import regular_levels, switches_above
from partreduce.topo.rule import Block

MAX_STEPS_PER_ROUND, SLOWER = 8, 1.05
"""Most steps per round; and the largest ratio of step times at which two workers count as equally fast."""
MAX_DIGITS, MAX_RULE_ENTRIES = 4, 750_000
"""Most digits of a node's number in a rule, and most entries of its mixing matrices, one matrix per set of digits."""
MAX_EXPLICIT_WORKERS = 512
"""Most workers for which explicit groups are searched; each phase is then a dense n×n matrix."""


def holds_rules(cluster: Cluster) -> bool:
    """Return whether the mixing matrices of a cluster's rules fit into memory; otherwise no rules are searched."""
    digits = min(MAX_DIGITS, len(prime_factors(cluster.num_nodes)))
    return (1 << digits) * (cluster.workers_per_node or 0) ** 2 <= MAX_RULE_ENTRIES


def node_radices(cluster: Cluster) -> tuple[int, ...]:
    """Return the radices of node numbers for rules; their product is the number of nodes. () if no rules are searched.

    Rules need several nodes, all equal, switches that form a regular tree, and memory (`holds_rules`). The radices are
    the prime factors of each level of switches, top level first, so a block's digits show whether its groups cross
    racks. Factors of one level are multiplied until at most MAX_DIGITS are left, or one per level.
    """
    hardware, num_nodes = cluster.hardware, cluster.num_nodes
    assert hardware is not None
    levels = regular_levels(hardware.shared_switches(num_nodes), num_nodes)
    equal = has_equal_speeds(cluster) and not hardware.node_nic and not hardware.node_inside and cluster.is_regular
    if not equal or levels is None or not holds_rules(cluster):
        return ()
    parts = [sorted(prime_factors(level), reverse=True) for level in levels]
    while sum(map(len, parts)) > MAX_DIGITS and max(map(len, parts)) > 1:
        longest = max(parts, key=len)
        longest.append(longest.pop() * longest.pop())
        longest.sort(reverse=True)
    return tuple(radix for part in parts for radix in part)


def has_equal_speeds(cluster: Cluster) -> bool:
    """Return whether the hardware states no slower worker."""
    return cluster.hardware is None or all(factor == 1 for _, factor in cluster.hardware.slowdown)


def derived_worker_steps(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Return one or two tuples of all workers' steps per round: 1 each; if speeds differ, also proportional to them."""
    hardware = cluster.hardware
    assert hardware is not None
    same = (1,) * cluster.num_workers
    factors = dict(hardware.slowdown)
    slow = [factors.get(worker, 1.0) for worker in range(cluster.num_workers)]
    slowest, fastest = max(slow), min(slow)
    proportional = tuple(min(MAX_STEPS_PER_ROUND, max(1, round(slowest / factor))) for factor in slow)
    if proportional == same and slowest > SLOWER * fastest:
        proportional = tuple(1 + (factor <= SLOWER * fastest) for factor in slow)
    return (same,) if proportional == same else (same, proportional)


def largest_steps(cluster: Cluster) -> int:
    """Return the most steps per round that the search gives any worker."""
    return 1 if has_equal_speeds(cluster) else max(map(max, derived_worker_steps(cluster)))


def crossing_bound(problem: Problem) -> float:
    """Return a lower bound on the communication, in seconds per step, of any schedule that reaches consensus.

    A group must cross each cut of the nodes (around the slowest NIC, below a switch) once in `max_period` rounds of at
    most `largest_steps` steps. The cheapest group that crosses it is a pair, for any all-reduce algorithm.
    """
    cluster, hardware, num_nodes = problem.cluster, problem.hardware, problem.cluster.num_nodes
    rounds = problem.limits.max_period * largest_steps(cluster)

    def seconds(one: int, other: int) -> float:
        return float(problem.link_loads((Block((one, other)),)).seconds()[0])

    if num_nodes == 1:
        return seconds(0, 1) / rounds
    switches, own = hardware.shared_switches(num_nodes), dict(hardware.node_nic)
    # Nodes with the same NIC and switches are equal: two of each kind represent all. Without switches these are found
    # among the first nodes and those with a NIC that differs.
    shown, kinds = list[int](), Counter[tuple[object, ...]]()
    some = range(num_nodes) if switches else sorted({*range(min(num_nodes, len(own) + 2)), *own})
    levels = switches_above(switches, num_nodes)
    for node in some:
        kind = (own.get(node), *levels[:, node].tolist())
        kinds[kind] += 1
        if kinds[kind] <= 2:
            shown.append(node)
    slowest = max(shown, key=lambda node: hardware.nic_of(node).seconds_per_byte)
    least = 0.0
    for cut in ({slowest}, *(set(switch.nodes) for switch in switches)):
        pairs = product([v for v in shown if v in cut], [v for v in shown if v not in cut])
        first = ((cluster.workers_of(a)[0], cluster.workers_of(b)[0]) for a, b in pairs)
        least = max(least, min(seconds(*pair) for pair in first))
    return least / rounds
