"""Claim `membership`: the function that a worker evaluates finds the same group at every member of it."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from preduce.topo.rule import Block, group_of
from preduce.verify.base import Claim, not_proved, proved, refuted
from preduce.verify.symbolic import UnprovedError, prove_identity
from preduce.verify.view import rule_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preduce.topo.rule import RuleView
    from preduce.topo.schedule import Schedule

NAME = "membership"
EXHAUSTIVE = 64
"""Numbers of nodes up to which every worker of every cluster is evaluated."""


def prove_membership(schedule: Schedule) -> Claim | None:
    """Prove that `topo.rule.group_of` agrees with the blocks for every number of nodes; None for explicit schedules.

    Two ways at once: the code itself is run on symbols (`verify.symbolic`), and on every worker of every cluster of
    up to 64 nodes with this number of digits.
    """
    rule = rule_view(schedule)
    if rule is None:
        return None
    across = tuple(sorted({block.across for phase in rule.phases for block in phase}))
    wrong = exhaustive_mismatch(rule.num_digits, across)
    if wrong is not None:
        return refuted(NAME, "a member of a group computes another group than its fellows.", wrong)
    try:
        steps = prove_identity(rule.num_digits, rule.workers_per_node, rule.phases)
    except UnprovedError as error:
        return not_proved(NAME, f"the symbolic run of the group function stopped: {error}.")
    except ImportError:
        return not_proved(NAME, f"sympy is not installed; only clusters of up to {EXHAUSTIVE} nodes were evaluated.")
    text = (
        "The function that computes a worker's group was run, as it is, on a node with symbolic digits and radices: "
        f"with {len(steps)} Euclidean divisions, each with 0 ≤ remainder < divisor shown for all radices ≥ 2, every "
        f"member of a group finds exactly that group, for every number of nodes with {rule.num_digits} digits. All "
        f"workers of all clusters of up to {EXHAUSTIVE} nodes were evaluated besides."
    )
    witness = {"divisions": [asdict(step) for step in steps]}
    listed = [list(digits) for digits in across]
    return proved(
        NAME, text, witness, digits=rule.num_digits, across=listed, steps=_by_digit(rule, across), to=EXHAUSTIVE
    )


def _by_digit(rule: RuleView, across: tuple[tuple[int, ...], ...]) -> list[dict[str, Any]]:
    """The divisions of the node index by each digit's weight: which digits the quotient and the remainder hold."""
    used = sorted({digit for digits in across for digit in digits})
    last = rule.num_digits
    return [{"digit": d, "quotient": list(range(d + 1)), "remainder": list(range(d + 1, last))} for d in used]


@lru_cache(maxsize=256)
def exhaustive_mismatch(num_digits: int, across: tuple[tuple[int, ...], ...]) -> dict[str, Any] | None:
    """Evaluate `group_of` on every node of every cluster of up to 64 nodes; the first disagreement, or None."""
    for radices in all_radices(num_digits, EXHAUSTIVE):
        digits = _digits(radices)
        for listed in across:
            # Two local ranks, of which one is in the block: a member and a skipping worker on every node.
            block = Block((0,), listed)
            kept = [d for d in range(num_digits) if d not in listed]
            keys = [tuple(node[d] for d in kept) for node in digits]
            expected: dict[tuple[int, ...], list[int]] = {}
            for node, key in enumerate(keys):
                expected.setdefault(key, []).append(2 * node)
            for node, key in enumerate(keys):
                right = tuple(expected[key]) if listed else None
                for local in range(2):
                    group = group_of(2 * node + local, (block,), 2, radices)
                    if (group.members if group else None) != (None if local else right):
                        return {"radices": list(radices), "across": list(listed), "worker": 2 * node + local}
    return None


def all_radices(num_digits: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every tuple of `num_digits` integers >= 2 whose product is at most `most`."""
    if num_digits == 0:
        yield ()
        return
    for first in range(2, most // 2 ** (num_digits - 1) + 1):
        for rest in all_radices(num_digits - 1, most // first):
            yield first, *rest


def _digits(radices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The digits of every node, counted up like an odometer: no division, so nothing is shared with the code."""
    nodes: list[tuple[int, ...]] = [()]
    for radix in radices:
        nodes = [(*node, value) for node in nodes for value in range(radix)]
    return nodes
