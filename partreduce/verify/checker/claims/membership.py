"""Claim `membership`, for rules: the function that a worker evaluates at run time finds the group of its block.

*What this check confirms:* `answers` is the SHA-256 of what every worker has to answer in every phase: the smallest
member of its group and the relaxation, or `-` if it skips. The check computes the groups from the digits itself, so a
function that answered otherwise, anywhere, has another hash. Where all answers together are long nobody asks every
worker, and there is no such claim.

*It assumes* that it was the installed function that was asked. `conflict-free` confirms the blocks, without any
function.
"""

from __future__ import annotations

import hashlib
from math import prod
from typing import Any

from ..refusal import confirm, confirm_equal
from ..schedule import Schedule

EVALUATED = 2**20
"""Every worker was asked if the members of all answers, in all phases, are at most so many (1 for one that skips)."""


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`answers`, the hash of all of them."""
    confirm(schedule.form == "rule", place, "membership", "a rule; explicit groups are read from one list")
    members = _count(schedule)
    confirm(members <= EVALUATED, place, "membership", f"answers of at most {EVALUATED} members in all; not {members}")
    confirm_equal(f"{place}.answers", entry["answers"], _answers(schedule))


def _count(schedule: Schedule) -> int:
    """Members in the answers of all workers in all phases; 1 for a worker that skips."""
    num_nodes, total = prod(schedule.radices), 0
    for phase in schedule.phases:
        skipping = schedule.workers_per_node - sum(len(block.members) for block in phase)
        sizes = ((len(block.members), prod(schedule.radices[d] for d in block.across)) for block in phase)
        total += num_nodes * (skipping + sum(ranks * ranks * nodes for ranks, nodes in sizes))
    return total


def _answers(schedule: Schedule) -> str:
    """The hash of the answers: a line for every phase and worker."""
    digits: list[tuple[int, ...]] = [()]  # of every node, counted up like an odometer
    for radix in schedule.radices:
        digits = [(*node, value) for node in digits for value in range(radix)]
    text = hashlib.sha256()
    for phase in schedule.phases:
        block_of = {rank: block for block in phase for rank in block.members}
        first: dict[tuple[int, ...], int] = {}  # smallest member of a group, by its block's first rank and kept digits
        for node, own in enumerate(digits):
            for rank in range(schedule.workers_per_node):
                block = block_of.get(rank)
                if block is None or (len(block.members) < 2 and not block.across):
                    text.update(b"-\n")
                    continue
                kept = (block.members[0], *(value for d, value in enumerate(own) if d not in block.across))
                smallest = first.setdefault(kept, node * schedule.workers_per_node + rank)
                text.update(b"%d %b\n" % (smallest, str(block.relaxation).encode()))
    return text.hexdigest()
