"""What one phase or round does with the workers' parameters: means of groups, or weighted edges."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

PLAIN = Fraction(1)
"""The factor of a plain mean. Every plain average holds this very object, so that `is` tells it apart at once."""


class Average(NamedTuple):
    """x ← x + relaxation · (mean − x) for every one of some groups of workers.

    In an explicit phase it is one group: `members` are its workers and `across` is empty. In a rule it is a block:
    `members` are local ranks, and one group is made for every setting of the digits that are not in `across`.
    """

    members: Sequence[int]
    across: Sequence[int]
    relaxation: Fraction


class Edge(NamedTuple):
    """The target adds weight · (value of the source − its own value)."""

    target: int
    source: int
    weight: Fraction


def keeps_something(edges: Sequence[Edge]) -> bool:
    """No weight of a round is negative, and every worker keeps a positive weight on itself."""
    keeps: dict[int, Fraction] = {}  # only of targets: there may be far more workers than the file has lines
    for target, _, weight in edges:
        keeps[target] = keeps.get(target, Fraction(1)) - weight
    return all(weight > 0 for weight in keeps.values()) and all(edge.weight >= 0 for edge in edges)
