"""Claim `contraction`: ‖P − J‖₂ ≤ c for the product P of one period that starts at phase 0; c² is a fraction.

**Method `pivots`.** ‖M‖₂ ≤ c iff c²·I − MᵀM is positive semidefinite, which its pivots decide exactly (Sylvester's law
of inertia). For rules M is split by classes of characters, which are orthogonal and all listed, so the largest norm on
a class is the norm, for every number of nodes with this number of digits.

**Method `factor`, for explicit groups and weighted graphs.** The same with M rounded to integers, and with a factor of
integers L instead of exact pivots: c²·I − MᵀM is L·Lᵀ up to a rest that is bounded (`linear_algebra.confirm_norm`). The
check makes L itself, so the entry holds nothing but c².

**Method `norms`.** ‖M‖₂² is the spectral radius of MᵀM, which no norm undercuts: ‖M‖₂² ≤ ‖MᵀM‖₁ ≤ ‖M‖₁·‖M‖∞ ≤ c².

*The check is sound because* it multiplies the matrices of the schedule itself, in integers. *It assumes* that groups
are disjoint, which `conflict-free` confirms. steps_per_round, prologue and delay do not enter: they say when new
gradients arrive, and this claim says what a period of averaging does to a difference that is there.
"""

from __future__ import annotations

from typing import Any

from .. import linear_algebra
from ..linear_algebra import largest_absolute_sum
from ..period import confirm_norm, distance_from_mean
from ..refusal import Work, confirm, require
from ..schedule import Schedule
from ..strict_json import as_fraction

MAX_ROWS = 1024
"""Factors are made for matrices of up to so many rows."""


def check_by_pivots(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`squared` (c²)."""
    confirm_norm(schedule, entry, 1, place)


def check_by_factor(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`squared`."""
    confirm(schedule.form != "rule", place, "factor", "pivots on the classes of a rule")
    require(schedule.width <= MAX_ROWS, place, f"over {MAX_ROWS} workers")
    squared = as_fraction(entry["squared"], f"{place}.squared")
    work = Work(place)
    rows, scale = distance_from_mean(schedule, (), 1, work)
    linear_algebra.confirm_norm(squared, rows, scale, f"{place}.squared", work)


def check_by_norms(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`squared`."""
    confirm(schedule.form != "rule", place, "norms", "pivots on the classes of a rule")
    squared = as_fraction(entry["squared"], f"{place}.squared")
    rows, scale = distance_from_mean(schedule, (), 1, Work(place))
    product = largest_absolute_sum(rows, scale) * largest_absolute_sum(list(zip(*rows, strict=True)), scale)
    confirm(product <= squared, f"{place}.squared", entry["squared"], f"at least {product}")
