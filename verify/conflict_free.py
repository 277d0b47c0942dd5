"""Claim `conflict-free`: in every phase each worker is in at most one group, and all members agree on the group."""

from __future__ import annotations

from typing import Any

import numpy as np

from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block, RuleView, nodes_of_group
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fact, refuted, some
from partreduce.verify.view import explicit_view, rule_view

NAME = "conflict-free"
RULE = "each worker is in at most one group of a phase"


def prove_conflict_free(schedule: Schedule) -> Claim:
    """Prove or refute that groups of one phase never share a worker.

    Explicit phases are counted worker by worker, O(num_workers · period). A rule phase is a partition for *every*
    number of nodes iff no local rank stands in two blocks: two groups of one block differ in a digit outside
    `across`, and groups of two blocks differ in the local rank.
    """
    rule = rule_view(schedule)
    return _rule(rule) if rule is not None else _explicit(explicit_view(schedule) or ())


def _explicit(phases: tuple[Phase, ...]) -> Claim:
    for t, phase in enumerate(phases):
        times = np.bincount(phase.members, minlength=phase.num_workers)
        if len(phase.members) and times.max() > 1:
            return _conflict(t, phase, int(np.argmax(times > 1)))
    text = (
        f"In each of the {len(phases)} phases no worker occurs twice in the list of groups; every worker reads its "
        "group from that one list, so all members of a group agree on it."
    )
    return fact(NAME, text)


def _conflict(t: int, phase: Phase, worker: int) -> Claim:
    places = np.flatnonzero(phase.members == worker)[:2]
    first, second = (int(g) for g in np.searchsorted(phase.offsets, places, side="right") - 1)
    groups = [phase[first].members, phase[second].members]
    text = f"in phase {t} worker {worker} is in group {some(groups[0])} and in group {some(groups[1])}; {RULE}."
    return refuted(NAME, text, {"phase": t, "worker": worker, "groups": [list(g) for g in groups], "rule": RULE})


def _rule(rule: RuleView) -> Claim:
    for t, phase in enumerate(rule.phases):
        owner: list[int] = [-1] * rule.workers_per_node
        for b, block in enumerate(phase):
            for local in block.local:
                if owner[local] >= 0:
                    return _rule_conflict(rule, t, local, phase[owner[local]], block)
                owner[local] = b
    text = (
        f"For every number of nodes with {rule.num_digits} digits: in each phase a local rank stands in at most one "
        "block, and two workers of one block share a group exactly when their nodes agree on the digits that the "
        "block does not average over. That is an equivalence, so the groups are disjoint and the members agree."
    )
    return fact(NAME, text)


def _rule_conflict(rule: RuleView, t: int, local: int, one: Block, two: Block) -> Claim:
    def members(block: Block) -> list[int]:
        # A group across all digits of a huge cluster is cut: a reader confirms the conflict from a few members.
        nodes = nodes_of_group(0, rule.radices, block.across)[:64]
        return sorted(node * rule.workers_per_node + rank for node in nodes for rank in block.local)

    groups = [members(one), members(two)]
    text = (
        f"in phase {t} the blocks {one} and {two} share local rank {local}: worker {local} would be in group "
        f"{some(groups[0])} and in group {some(groups[1])}; {RULE}."
    )
    witness: dict[str, Any] = {"phase": t, "worker": local, "groups": groups, "blocks": [str(one), str(two)]}
    return refuted(NAME, text, {**witness, "rule": RULE})
