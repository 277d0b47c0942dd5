"""Claim `conflict-free`: in every phase each worker is in at most one group, and all members agree on the group.

Who stands in two groups, the checker says (`verify/checker/groups.py`, with the proof).
"""

from __future__ import annotations

from typing import Any

from partreduce.topo.rule import Block, RuleView, nodes_of_group
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Claim, fact, refuted, some
from partreduce.verify.checker.groups import conflict
from partreduce.verify.stated import Stated
from partreduce.verify.view import rule_view

NAME = "conflict-free"
RULE = "each worker is in at most one group of a phase"
OF_RULES = (
    "For every number of nodes with {digits} digits: in each phase a local rank stands in at most one block, and two "
    "workers of one block share a group exactly when their nodes agree on the digits that the block does not average "
    "over. That is an equivalence, so the groups are disjoint and the members agree."
)
OF_GROUPS = (
    "In each of the {period} phases no worker occurs twice in the list of groups; every worker reads its group from "
    "that one list, so all members of a group agree on it."
)


def prove_conflict_free(schedule: Schedule, stated: Stated) -> Claim:
    """Prove or refute that groups of one phase never share a worker. O(size of the file)."""
    rule, found = rule_view(schedule), conflict(stated.read)
    if found is None:
        told = OF_GROUPS.format(period=schedule.period) if rule is None else OF_RULES.format(digits=rule.num_digits)
        return fact(NAME, told)
    phase, worker, both = found
    groups, blocks, place = [list(average.members) for average in both], {}, f"in phase {phase}"
    if rule is not None:
        listed = [Block(tuple(members), tuple(across), relaxation) for members, across, relaxation in both]
        groups, blocks = [_members(rule, block) for block in listed], {"blocks": [str(block) for block in listed]}
        place += f" the blocks {listed[0]} and {listed[1]} share local rank {worker}:"
    text = f"{place} worker {worker} is in group {some(groups[0])} and in group {some(groups[1])}; {RULE}."
    witness: dict[str, Any] = {"phase": phase, "worker": worker, "groups": groups, **blocks, "rule": RULE}
    return refuted(NAME, text, witness)


def _members(rule: RuleView, block: Block) -> list[int]:
    """Of the group of node 0. One across all digits of a huge cluster is cut: a few members confirm the conflict."""
    nodes = nodes_of_group(0, rule.radices, block.across)[:64]
    return sorted(node * rule.workers_per_node + rank for node in nodes for rank in block.local)
