"""A rule's mixing matrices, split over the characters of the digit group: exact, whatever the number of nodes.

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
from partreduce.topo.rule import RuleView, distinct_classes

MAX_DIGITS = 12
MAX_SIZE = 64


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
