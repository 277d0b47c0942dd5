"""How the prover looks at a schedule: explicit phases, or a rule with its digits."""

from __future__ import annotations

from fractions import Fraction

from partreduce.topo.phase import Phase
from partreduce.topo.rule import RuleView
from partreduce.topo.schedule import Schedule


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


def contracts(relaxation: Fraction) -> bool:
    """Whether a group of this factor draws its members together."""
    return 0 < relaxation < 2


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
