"""Claim `membership`, for rules: the function that a worker evaluates at run time finds the group of its block.

A worker finds its group by digits: it divides the index of its node by the weight of a digit, and takes the remainder
by the radix. *Euclidean division:* if a = q·s + r with integers and 0 ≤ r < s, then a // s = q and a % s = r. In mixed
radix the weight s of digit d is the product of the radices behind it. So the digits 0 … d make up the quotient, the
digits behind d the remainder, and 0 ≤ r < s holds for all values of the digits.

*What this check confirms:* the entry names exactly the divisions that the blocks of this rule need, each with its
quotient and remainder as above; and where all groups together are small, `answers` is the SHA-256 of what every worker
has to answer in every phase: the smallest member of its group and the relax, or `-` if it skips. The check computes the
groups from the digits itself, so a function that answered otherwise, anywhere, has another hash.

*It assumes* that it was the installed function that was asked, and that the function performs the divisions element by
element: the checker holds no copy of it. That it does is shown by the prover, which reads the function's own code for
a general worker of this cluster (verify/reading.py). `conflict-free` confirms the blocks, without any function.
"""

from __future__ import annotations

import hashlib
from math import prod
from typing import TYPE_CHECKING, Any

from ..refusal import confirm, confirm_equal

if TYPE_CHECKING:
    from ..schedule import Schedule

EVALUATED = 2**18
"""Every worker was asked if the members of all answers, in all phases, are at most so many (1 for one that skips)."""


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`digits`, `across`, `steps` (one division for each digit of any block), `answers` (empty for larger groups)."""
    confirm(schedule.form == "rule", place, "membership", "a rule; explicit groups are read from one list")
    num_digits = len(schedule.radices)
    across = sorted({tuple(block.across) for phase in schedule.phases for block in phase})
    used = sorted({digit for digits in across for digit in digits})
    steps = [{"digit": d, "quotient": list(range(d + 1)), "remainder": list(range(d + 1, num_digits))} for d in used]
    confirm_equal(f"{place}.digits", entry["digits"], num_digits)
    confirm_equal(f"{place}.across", entry["across"], list(map(list, across)))
    confirm_equal(f"{place}.steps", entry["steps"], steps)
    expected = _answers(schedule) if _count(schedule) <= EVALUATED else ""
    confirm_equal(f"{place}.answers", entry["answers"], expected)


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
                text.update(b"%d %b\n" % (smallest, str(block.relax).encode()))
    return text.hexdigest()
