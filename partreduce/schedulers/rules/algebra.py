"""Compose, repeat and interleave rules; make strategies of them for any cluster."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import lcm, prod

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block, RulePhase, representatives, strides_of
from partreduce.topo.strategies.static import GroupPhases, RulePhases, StaticGroups


def compose(*rules: RulePhases) -> RulePhases:
    """One rule after the other; digits are refined to common ones."""
    refined = _align(rules)
    return RulePhases(refined[0].node_radices, tuple(phase for rule in refined for phase in rule.phases))


def repeat(rule: RulePhases, times: int) -> RulePhases:
    """The rule's phases `times` times over."""
    if times < 1:
        raise ScheduleError(f"repeat: {times} times; a rule is repeated at least once")
    return RulePhases(rule.node_radices, rule.phases * times)


def interleave(*rules: RulePhases) -> RulePhases:
    """One phase of each rule in turn, until all of them end together (the period is the rules' common multiple)."""
    refined = _align(rules)
    length = lcm(*(len(rule.phases) for rule in refined))
    phases = tuple(rule.phases[t % len(rule.phases)] for t in range(length) for rule in refined)
    return RulePhases(refined[0].node_radices, phases)


def refine(rule: RulePhases, radices: Sequence[int]) -> RulePhases:
    """The same groups written in finer digits: radix 6 may become radices 2, 3."""
    if tuple(radices) == rule.node_radices:
        return rule
    wrong = f"radices {list(radices)} do not refine {list(rule.node_radices)}"
    children: list[tuple[int, ...]] = []
    position = 0
    for radix in rule.node_radices:
        taken: list[int] = []
        while prod(radices[d] for d in taken) < radix and position < len(radices):
            taken.append(position)
            position += 1
        if prod(radices[d] for d in taken) != radix:
            raise ScheduleError(wrong)
        children.append(tuple(taken))
    if position != len(radices):
        raise ScheduleError(wrong)

    def split(block: Block) -> Block:
        return Block(block.local, tuple(d for old in block.across for d in children[old]), block.relaxation)

    return RulePhases(tuple(radices), tuple(tuple(split(block) for block in phase) for phase in rule.phases))


def _align(rules: Sequence[RulePhases]) -> list[RulePhases]:
    if not rules:
        raise ScheduleError("compose: no rules given; give at least 1")
    if all(rule.node_radices == rules[0].node_radices for rule in rules):
        return list(rules)
    sizes = {prod(rule.node_radices) for rule in rules}
    if len(sizes) > 1:
        raise ScheduleError(f"rules for different numbers of nodes, {sorted(sizes)}, cannot be combined")
    strides = sorted({stride for rule in rules for stride in strides_of(rule.node_radices)} | sizes, reverse=True)
    if any(larger % smaller for larger, smaller in pairwise(strides)):
        shown = ", ".join(str(list(rule.node_radices)) for rule in rules)
        raise ScheduleError(f"radices {shown} have no common refinement; write the rules in the same radices")
    radices = tuple(larger // smaller for larger, smaller in pairwise(strides))
    return [refine(rule, radices) for rule in rules]


def all_digits(num_nodes: int) -> tuple[int, ...]:
    """Radices that treat all nodes equally: one digit, or none for a single node."""
    return (num_nodes,) if num_nodes > 1 else ()


def local_ranks(cluster: Cluster) -> tuple[int, ...]:
    """The local ranks of the largest node."""
    if cluster.workers_per_node is not None:
        return tuple(range(cluster.workers_per_node))
    return tuple(range(int(cluster.node_sizes().max())))


def static(cluster: Cluster, rule: RulePhases) -> StaticGroups:
    """The rule on a cluster: in rule form for equal nodes, in explicit groups otherwise.

    Blocks that would hold one worker only are left out, so that every group has at least two. On an irregular cluster
    a block holds those of its local ranks that exist.
    """

    def keep_groups(phase: RulePhase) -> RulePhase:
        return tuple(sorted((b for b in phase if b.makes_groups), key=lambda b: (b.local, b.across)))

    phases = tuple(map(keep_groups, rule.phases))
    if cluster.is_regular:
        return StaticGroups(phases=RulePhases(rule.node_radices, phases))
    expanded = {phase: _on_irregular(phase, cluster, rule.node_radices) for phase in set(phases)}
    return StaticGroups(phases=GroupPhases(tuple(expanded[phase] for phase in phases)))


def _on_irregular(phase: RulePhase, cluster: Cluster, radices: Sequence[int]) -> Phase:
    node_of, local = cluster.node_of(), cluster.local_rank_of()
    labels = np.full(cluster.num_workers, -1, dtype=np.int64)
    for index, block in enumerate(phase):
        chosen = np.isin(local, block.local)
        heads = representatives(cluster.num_nodes, radices, block.across)
        labels[chosen] = heads[node_of[chosen]] * len(phase) + index
    return Phase.from_labels(labels)
