"""Claim `exact-consensus`: one period leaves the mean at every worker, P = J.

**Method `product`.** P − J is multiplied out in integers (on every class of characters, for rules) and is 0.

**Method `labels`, for explicit groups of any size.** Every worker carries a different label 0 … n−1, written in mixed
radix. *Theorem:* if phase `first` + l averages exactly the workers whose labels agree in all digits but digit l, for
every l, then these phases together are J: after the first l of them a value depends on the remaining digits only, being
the mean over the others. The phases before and behind keep the sum, or a common value, because rows and columns of each
sum to 1: J·W = W·J = J.

*The checks are sound because* they use the groups of the schedule itself. *They assume* that groups are disjoint, which
`conflict-free` confirms.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..period import classes, distance_from_mean
from ..refusal import Work, confirm
from ..schedule import Schedule
from ..strict_json import as_integer, as_integers


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
