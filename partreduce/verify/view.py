"""How the prover looks at a schedule: explicit phases, or a rule, whose matrices split over characters of its digits.

A node's digits form the group Z_{r0} × … × Z_{r(k−1)}. On functions that are f(local rank) times a character, a block
(L, D) averages over L if the character is trivial on all digits of D, and is zero on L otherwise: the sum of a
non-trivial character over a digit is 0. So only the *class* of a character matters, the set c of digits on which it is
not trivial, and because every radix is at least 2 every set of digits occurs. The classes carry orthogonal subspaces
that together span everything; hence ‖P − J‖ is the largest ‖P_c‖, with J subtracted on the class of the empty set.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix
from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView, distinct_classes
from partreduce.topo.schedule import Schedule

MAX_DIGITS = 12
MAX_SIZE = 64
"""Digits, and workers on a node, up to which classes of characters are enumerated."""


def rule_view(schedule: Schedule) -> RuleView | None:
    """The rule behind a schedule in canonical order, so that a certificate holds for every file of the same hash.

    None for explicit groups and graphs.
    """
    rule = schedule.rule()
    return None if rule is None else rule.canonical


def explicit_view(schedule: Schedule) -> tuple[Phase, ...] | None:
    """The explicit phases, None for rules and graphs."""
    if not schedule.is_phased or schedule.rule() is not None:
        return None
    return schedule.phased.steps(schedule.cluster)


def is_tame(relaxation: Fraction) -> bool:
    """Whether a group of this factor lengthens nothing and keeps a vector's length only by leaving it alone."""
    return 0 <= relaxation < 2


def every_relaxation_tame(schedule: Schedule) -> bool:
    """Whether 0 ≤ relaxation < 2 in every group."""
    rule = rule_view(schedule)
    if rule is not None:
        return all(is_tame(block.relaxation) for phase in rule.phases for block in phase if block.makes_groups)
    return all(
        is_tame(relaxation) for phase in explicit_view(schedule) or () for relaxation in set(phase.relaxation or ())
    )


@lru_cache(maxsize=1)
def class_products(rule: RuleView) -> tuple[tuple[tuple[int, ...], ExactMatrix], ...]:
    """Every distinct class with the period's matrix on it: the rate and exact consensus ask for the same. Read only."""
    return tuple((digits, class_product(rule, digits)) for digits in distinct_classes(rule))


def class_product(rule: RuleView, digits: tuple[int, ...], periods: int = 1) -> ExactMatrix:
    """The period's matrix on one class, less J on the class of the empty set. Shape (size, size)."""
    met = set(digits)
    product = ExactMatrix.identity(rule.workers_per_node)
    for phase in rule.phases * periods:
        if product.is_zero():
            break  # zero stays zero, and most classes of an exact rule get there early
        product = product.averaged((b.local, b.relaxation, not met & set(b.across)) for b in phase if b.makes_groups)
    return product if digits else product.plus(-Fraction(1, rule.workers_per_node))
