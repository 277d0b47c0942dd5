"""Claim `contraction`: ‖P − J‖₂ ≤ c for the product P of one period that starts at phase 0; c² is a fraction.

**Method `pivots`.** ‖M‖₂ ≤ c iff c²·I − MᵀM is positive semidefinite, which its pivots decide exactly (Sylvester's law
of inertia). For rules M is split by classes of characters, which are orthogonal and all listed, so the largest norm on
a class is the norm, for every number of nodes with this number of digits.

**Method `factor`, for explicit groups and weighted graphs.** The same with M rounded to integers, and with a factor of
integers L instead of exact pivots: c²·I − MᵀM is L·Lᵀ up to a rest that is bounded (`linear_algebra.confirm_norm`). The
check makes L itself, so the entry holds nothing but c².

**Method `norms`.** ‖M‖₂² is the spectral radius of MᵀM, which no norm undercuts: ‖M‖₂² ≤ ‖MᵀM‖₁ ≤ ‖M‖₁·‖M‖∞ ≤ c².

*The check is sound because* it multiplies the matrices of the schedule itself, in integers. steps_per_round, prologue
and delay do not enter: they say when new gradients arrive, and this claim says what a period of averaging does to a
difference that is there.

Claim `exact-consensus`: one period leaves the mean at every worker, P = J.

**Method `product`.** P − J is multiplied out in integers (on every class of characters, for rules) and is 0.

**Method `labels`, for explicit groups of any size.** Every worker carries a different label 0 … n−1, written in mixed
radix. *Theorem:* if phase `first` + l averages exactly the workers whose labels agree in all digits but digit l, for
every l, then these phases together are J: after the first l of them a value depends on the remaining digits only, being
the mean over the others. The phases before and behind keep the sum, or a common value, because rows and columns of each
sum to 1: J·W = W·J = J.

*The checks are sound because* they use the groups of the schedule itself.
"""

from __future__ import annotations

from math import prod
from typing import Any

from . import linear_algebra
from .linear_algebra import largest_absolute_sum
from .period import classes, confirm_norm, distance_from_mean
from .refusal import Work, confirm, require
from .schedule import Schedule
from .strict_json import as_fraction, as_integer, as_integers

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


def check_by_product(schedule: Schedule, entry: dict[str, Any], place: str) -> None:  # noqa: ARG001 - as the others
    """Nothing besides: the product is made again."""
    work = Work(place)
    for digits in classes(schedule, place):
        rows, _ = distance_from_mean(schedule, digits, 1, work)
        confirm(not any(map(any, rows)), place, "the product", "exactly the mean")


def check_by_labels(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`first` (a phase), `radices`, `labels` (one for each worker)."""
    n = schedule.num_workers
    labels = as_integers(entry["labels"], f"{place}.labels", 0, n)
    radices = as_integers(entry["radices"], f"{place}.radices", 2, n + 1)
    first = as_integer(entry["first"], f"{place}.first", 0, schedule.period)
    spans = schedule.form == "groups" and len(radices) < 32 and prod(radices) == n
    confirm(spans, place, radices, "product n")
    confirm(first + len(radices) <= schedule.period, f"{place}.first", first, "a window inside the period")
    is_bijection = len(labels) == len(set(labels)) == n
    confirm(is_bijection, f"{place}.labels", "…", "a different label for every worker")
    for digit, radix in enumerate(radices):
        phase = schedule.phases[first + digit]
        at = f"{place}.labels and phase {first + digit}"
        confirm(len(phase) * radix == n, at, len(phase), f"{n // radix} groups")
        weight = prod(radices[digit + 1 :])  # of this digit in a label
        for members, _, relaxation in phase:
            # Labels that differ in this digit alone are smallest + value · weight, for all values of the digit. That
            # they begin at the value 0 follows, since such groups hold everybody: by induction from label 0 upwards.
            group_labels = sorted(labels[worker] for worker in members)
            smallest = group_labels[0]
            differ_here = group_labels == list(range(smallest, smallest + radix * weight, weight))
            is_mean = differ_here and relaxation == 1
            confirm(is_mean, at, members, f"labels that differ in digit {digit} alone")
