"""The means of a schedule's phases on one class of characters: what operators on more than parameters are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView


class Mean(NamedTuple):
    """One averaging of a phase: whom (workers, or local ranks), whether the mean survives on the class, its factor."""

    members: list[int]
    survives: bool
    relaxation: float


Means = list[list[Mean]]
"""Of every phase of a period."""


def means_of_class(rule: RuleView, digits: Collection[int]) -> Means:
    """On characters that are not trivial on these digits a block averages over its local ranks, or its mean is zero."""
    met = set(digits)
    return [
        [Mean(sorted(b.local), not met & set(b.across), float(b.relaxation)) for b in phase if b.makes_groups]
        for phase in rule.phases
    ]


def means_of_groups(phases: Iterable[Phase]) -> Means:
    """Of explicit groups, on all workers at once."""
    return [[Mean(list(group.members), True, float(group.relaxation)) for group in phase] for phase in phases]
