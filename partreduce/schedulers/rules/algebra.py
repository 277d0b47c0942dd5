"""Turn a rule into a strategy for any cluster, including one with unequal nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RulePhase, distinct, representatives
from partreduce.topo.strategies.static import GroupPhases, RulePhases, StaticGroups


def all_digits(num_nodes: int) -> tuple[int, ...]:
    """Return the node radices of a rule that treats all nodes equally: one digit, or none for a single node."""
    return (num_nodes,) if num_nodes > 1 else ()


def local_ranks(cluster: Cluster) -> tuple[int, ...]:
    """Return the local ranks of the largest node."""
    if cluster.workers_per_node is not None:
        return tuple(range(cluster.workers_per_node))
    return tuple(range(int(cluster.node_sizes().max())))


def static(cluster: Cluster, rule: RulePhases) -> StaticGroups:
    """Return the strategy of a rule on a cluster: in rule form for equal nodes, else with explicit groups.

    A block is a set of local ranks with the node digits across which they average. Blocks with a single worker are left
    out, so that every group has at least two. On an irregular cluster a block has those of its local ranks that exist.
    """

    def keep_groups(phase: RulePhase) -> RulePhase:
        return tuple(sorted((b for b in phase if b.makes_groups), key=lambda b: (b.local, b.across)))

    kept = {id(phase): keep_groups(phase) for _, phase in distinct(rule.phases)}
    phases = tuple(kept[id(phase)] for phase in rule.phases)
    if cluster.is_regular:
        return StaticGroups(phases=RulePhases(rule.node_radices, phases))
    expanded = {phase: _on_irregular(phase, cluster, rule.node_radices) for phase in set(phases)}
    return StaticGroups(phases=GroupPhases(tuple(expanded[phase] for phase in phases)))


def _on_irregular(phase: RulePhase, cluster: Cluster, radices: Sequence[int]) -> Phase:
    node_of, local = cluster.node_of(), cluster.local_rank_of()
    labels = np.full(cluster.num_workers, -1, dtype=np.int64)
    for index, block in enumerate(phase):
        chosen = np.isin(local, block.local)
        heads = representatives(np.arange(cluster.num_nodes), radices, block.across)
        labels[chosen] = heads[node_of[chosen]] * len(phase) + index
    return Phase.from_labels(labels)
