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
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preduce.topo.rule import Block, RuleView
    from preduce.verify.rational import Matrix

MAX_DIGITS = 12
MAX_SIZE = 64


def every_class(num_digits: int) -> Iterator[tuple[int, ...]]:
    """All sets of digits, by size and then in order; the empty set first."""
    for size in range(num_digits + 1):
        yield from combinations(range(num_digits), size)


def distinct_classes(rule: RuleView) -> list[tuple[int, ...]]:
    """The first class of every pattern of blocks that vanish: other classes have the same matrices. O(2^k)."""
    seen: dict[tuple[bool, ...], tuple[int, ...]] = {}
    for digits in every_class(rule.num_digits):
        pattern = (not digits, *(bool(set(digits) & set(b.across)) for phase in rule.phases for b in phase))
        seen.setdefault(pattern, digits)
    return list(seen.values())


@lru_cache(maxsize=1)
def class_products(rule: RuleView) -> tuple[tuple[tuple[int, ...], Matrix], ...]:
    """Every distinct class with the period's matrix on it: the rate and exact consensus ask for the same. Read only."""
    return tuple((digits, class_product(rule, digits)) for digits in distinct_classes(rule))


def class_product(rule: RuleView, digits: tuple[int, ...], periods: int = 1) -> Matrix:
    """The period's matrix on one class, less J on the class of the empty set. Shape (size, size)."""
    size = rule.workers_per_node
    rows = [[Fraction(int(i == j)) for j in range(size)] for i in range(size)]
    for phase in rule.phases * periods:
        if not any(map(any, rows)):
            break  # zero stays zero, and most classes of an exact rule get there early
        for block in (b for b in phase if b.makes_groups):
            _average(rows, block, vanishes=bool(set(digits) & set(block.across)))
    if not digits:
        rows = [[entry - Fraction(1, size) for entry in row] for row in rows]
    return rows


def _average(rows: Matrix, block: Block, *, vanishes: bool) -> None:
    relax, local = block.relax, block.local
    mean = [Fraction(0)] * len(rows)
    if not vanishes:
        mean = [sum(column, Fraction(0)) / len(local) for column in zip(*(rows[i] for i in local), strict=True)]
    for i in local:
        rows[i] = (
            list(mean) if relax == 1 else [entry + relax * (m - entry) for entry, m in zip(rows[i], mean, strict=True)]
        )
