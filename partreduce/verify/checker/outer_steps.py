"""Claim `outer-consensus`: workers with separate outer parameters reach consensus if gradients are zero.

Every worker has outer parameters a and an outer momentum b. Where gradients are zero its model is its outer parameters,
and a round of its group gives it, with r the outer rate, μ the outer momentum and m the group's mean of a less its own:

    b' = μ·b + m        a' = a + r·(m + μ·b') with nesterov, else a + r·b'

A worker without a group keeps both. So a period is a linear map M of all (a, b). It does not change equal outer
parameters without momentum. Let Π remove the mean of the outer parameters, so Π·M = Π·M·Π; below, M stands for Π·M.

*Theorem.* Let P be symmetric with P − I and c²·P − MᵀPM positive semidefinite, c < 1. With V(z) = zᵀPz each period
gives V(Mz) ≤ c²·V(z), so ‖z‖² ≤ V(z) falls below every bound: outer parameters come to agree, and momenta to rest, by a
factor of at most c a period in the norm √V.

**Rules.** M splits over the classes of characters into matrices of size 2G (`period.py`), and each has its own P.

No statement is made about gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import lcm
from typing import Any

from .linear_algebra import IntegerMatrix, confirm_semidefinite, inner_product, symmetric
from .period import MAX_SIZE, ClassAverage, Rational, Step, averages_on_class, classes, multiply
from .refusal import Work, confirm, require
from .schedule import OuterStep, Schedule
from .strict_json import as_fraction


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless V(Mz) ≤ c²·V(z) (`outer-consensus`): M a period's matrix, V(z) = zᵀPz, c² = `squared` < 1.

    `weights` proves it: for each class of characters of a rule (`period.py`; one class for explicit groups) it has the
    lower triangle of an integer matrix P, by rows.
    """
    work = Work(place)
    squared = as_fraction(entry["squared"], f"{place}.squared")
    confirm(squared < 1, f"{place}.squared", entry["squared"], "below 1")
    require(schedule.width <= MAX_SIZE, place, f"over {MAX_SIZE} workers, or workers on a node of a rule")
    size = 2 * schedule.width
    listed, weights = classes(schedule, place), entry["weights"]
    confirm(len(weights) == len(listed), f"{place}.weights", len(weights), f"{len(listed)} classes")
    for number, (digits, given) in enumerate(zip(listed, weights, strict=True)):
        at = f"{place}.weights[{number}]"
        weight = symmetric(given, size, at)
        confirm_semidefinite([[p - (i == j) for j, p in enumerate(row)] for i, row in enumerate(weight)], at, work)
        rows, scale = joint_period(schedule, digits, work)
        columns = list(zip(*rows, strict=True))
        work.spend(2 * size**3 * (40 + scale.bit_length() // 16))
        weighed = [[inner_product(row, column) for row in weight] for column in columns]  # MᵀP, by rows
        top, bottom = squared.numerator * scale * scale, squared.denominator
        difference = [
            [top * weight[i][j] - bottom * inner_product(weighed[i], columns[j]) for j in range(size)]
            for i in range(size)
        ]
        confirm_semidefinite(difference, f"{place}.squared", work)


def joint_period(schedule: Schedule, digits: Sequence[int], work: Work) -> Rational:
    """Return a period's matrix on one class, with the mean of outer parameters removed; rows of momenta come last."""
    half = schedule.width
    rows, scale = multiply(2 * half, (_step(schedule, t, digits) for t in range(schedule.period)), work)
    if digits:
        return rows, scale
    total = [sum(column) for column in zip(*rows[:half], strict=True)]
    off = [[half * entry - mean for entry, mean in zip(row, total, strict=True)] for row in rows[:half]]
    return off + [[half * entry for entry in row] for row in rows[half:]], half * scale


def _step(schedule: Schedule, t: int, digits: Sequence[int]) -> Step:
    """Return the factor of round t on the class of `digits`, as `multiply` needs it: growth in bits and a function."""
    averages, (r, s) = averages_on_class(schedule.phases[t], digits), schedule.outer.lr.as_integer_ratio()
    k, q = lcm(*(len(members) for members, _, _ in averages)), schedule.outer.momentum.denominator
    return (k * q * q * (3 * s + 5 * r)).bit_length(), partial(_after_round, schedule.outer, averages, k)


def _after_round(outer: OuterStep, averages: Sequence[ClassAverage], k: int, rows: IntegerMatrix) -> Rational:
    """Return `rows` (workers' outer parameters, then momenta) after `averages`; k: a common multiple of group sizes."""
    half = len(rows) // 2
    (p, q), (r, s) = outer.momentum.as_integer_ratio(), outer.lr.as_integer_ratio()
    factor = k * q * q * s
    result = [[factor * entry for entry in row] for row in rows]
    for members, vanishes, _ in averages:
        share = k // len(members)
        columns = zip(*(rows[member] for member in members), strict=True)
        mean = [0 if vanishes else share * sum(column) for column in columns]  # k times the group's mean
        for i in members:
            movement = [theirs - k * own for theirs, own in zip(mean, rows[i], strict=True)]  # k·m
            momentum = [p * k * b + q * m for b, m in zip(rows[half + i], movement, strict=True)]  # k·q·b'
            if outer.nesterov:
                step = [q * q * m + p * b for m, b in zip(movement, momentum, strict=True)]  # k·q²·(m + μ·b')
            else:
                step = [q * b for b in momentum]
            result[half + i] = [q * s * b for b in momentum]
            result[i] = [factor * a + r * d for a, d in zip(rows[i], step, strict=True)]
    return result, factor
