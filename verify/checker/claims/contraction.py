"""Claim `contraction`: ‖P − J‖₂ ≤ c for the product P of one period that starts at phase 0; c² is a fraction.

**Method `pivots`.** ‖M‖₂ ≤ c iff c²·I − MᵀM is positive semidefinite, which its pivots decide exactly (Sylvester's law
of inertia). For rules M is split by classes of characters, which are orthogonal and all listed, so the largest norm on
a class is the norm, for every number of nodes with this number of digits.

**Method `norms`.** ‖M‖₂² is the spectral radius of MᵀM, which no norm undercuts: ‖M‖₂² ≤ ‖MᵀM‖₁ ≤ ‖M‖₁·‖M‖∞.

*The check is sound because* it multiplies the matrices of the schedule itself, in integers. *It assumes* that groups
are disjoint, which `conflict-free` confirms. Pace, prologue and lateness do not enter: they say when new gradients
arrive, and this claim says what a period of averaging does to a difference that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..linear_algebra import largest_absolute_sum
from ..period import confirm_norm, distance_from_mean
from ..refusal import Work, confirm, confirm_equal

if TYPE_CHECKING:
    from ..schedule import Schedule

OPERATOR = "W_T...W_1 - J, one period from phase 0"


def check_by_pivots(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`operator` (which matrix), `squared` (c²), `classes`, `pivots`."""
    confirm_equal(f"{place}.operator", entry["operator"], OPERATOR)
    confirm_norm(schedule, entry, 1, place)


def check_by_norms(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`operator`, `one`, `infinity` (the two norms), `squared` (their product)."""
    confirm_equal(f"{place}.operator", entry["operator"], OPERATOR)
    confirm(schedule.form != "rule", place, "norms", "pivots on the classes of a rule")
    rows, scale = distance_from_mean(schedule, (), 1, place, Work())
    infinity = largest_absolute_sum(rows, scale)
    one = largest_absolute_sum(list(zip(*rows, strict=True)), scale)
    confirm_equal(f"{place}.one", entry["one"], str(one))
    confirm_equal(f"{place}.infinity", entry["infinity"], str(infinity))
    confirm_equal(f"{place}.squared", entry["squared"], str(one * infinity))
