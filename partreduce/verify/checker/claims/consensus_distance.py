"""Claim `consensus-distance`: at most so much, in the steady state.

Each step adds noise of unit variance to its worker, independent of all other noise. The consensus distance is the mean
squared distance to the mean under this noise (`steady_state.py` says when it is looked at, and what classes are).

Let Σ be the covariance of the workers off the mean at the start of a period. A phase makes it W·(Σ + D)·Wᵀ, or, late,
W·Σ·Wᵀ + D, with the variances of its steps on the diagonal of D. Write F(Σ) for what a whole period makes of it, off
the mean.

*Theorem.* Let X be symmetric with X ≻ F(X), and let no phase lengthen a vector. Then workers that start equal, Σ = 0,
have Σ ⪯ X at the start of every period, and Σ converges, to a steady state that is ⪯ X too. So the sum over a period
of the traces that X leads to bounds the sum of the traces of Σ, in the steady state and in every period before.

*Proof.* Let M be the period off the mean, so F(X) = M·X·Mᵀ + (what is not negative), and ‖M‖₂ ≤ 1. First, X ⪰ 0: were
its smallest eigenvalue μ negative, with v of length 1, then μ = vᵀXv > vᵀM·X·Mᵀv ≥ μ·‖Mᵀv‖² ≥ μ. Next, F is monotone
(A ⪯ B gives F(A) ⪯ F(B)), so from 0 ⪯ X all that follows stays ⪯ F(X) ⪯ X. It grows from F(0) ⪰ 0 on, so it
converges. As X ⪰ 0 and X ≻ M·X·Mᵀ, powers of M vanish: from wherever workers start they come to that steady state.

**X ≻ F(X)** is seen by rows: on the diagonal of X − F(X) there stands more than the sum of the absolute values beside
it. **Rounding.** Entries of W·X·Wᵀ are rounded to the nearest integer. That changes a matrix of g rows by a symmetric
matrix of row sums at most g/2, so with ⌈g/2⌉ added on the diagonal the result is ⪰ what was meant; D is rounded
upwards. Everything above holds for such larger matrices, since F is monotone.

*The check is sound because* it computes the period itself, in integers; X may come from anywhere. *It assumes* that
groups are disjoint, which `conflict-free` confirms. A prologue changes no steady state.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from ..linear_algebra import IntegerMatrix
from ..refusal import Work, confirm
from ..schedule import Schedule
from ..steady_state import GUARD, MAX_BITS, Steps, classes_with_counts, read_steps, rounded_after_phase, with_places
from ..strict_json import as_fraction, as_integer, as_integers, as_list

MAX_ENTRY = 2**96


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`at_most`, `bits` (the X of the class c is covariance[c] / 2^bits), `covariance` (lower triangles by rows)."""
    work = Work(place)
    schedule = with_places(schedule, place)
    steps = read_steps(schedule, work)
    bits = as_integer(entry["bits"], f"{place}.bits", 0, MAX_BITS + 1)
    listed = classes_with_counts(schedule, place)
    triangles = as_list(entry["covariance"], f"{place}.covariance")
    as_many = len(triangles) == len(listed)
    confirm(as_many, f"{place}.covariance", len(triangles), f"{len(listed)} classes")
    period = _Period(schedule, steps, 1 << (bits + GUARD), work)
    total = Fraction(0)
    for number, ((digits, count), triangle) in enumerate(zip(listed, triangles, strict=True)):
        at = f"{place}.covariance[{number}]"
        covariance = _symmetric(as_integers(triangle, at, -MAX_ENTRY, MAX_ENTRY), schedule.width, at)
        total += count * period.sum_of_traces(digits, covariance, at)
    bound = total / (schedule.num_workers * schedule.period * steps.instants)
    at_most = as_fraction(entry["at_most"], f"{place}.at_most")
    confirm(bound <= at_most, f"{place}.at_most", entry["at_most"], f"at least {float(bound):.9g}")


def _symmetric(triangle: Sequence[int], size: int, place: str) -> IntegerMatrix:
    """The symmetric matrix with these rows of its lower triangle, with GUARD more bits."""
    confirm(2 * len(triangle) == size * (size + 1), place, len(triangle), f"{size * (size + 1) // 2} numbers")
    lower = [[entry << GUARD for entry in triangle[i * (i + 1) // 2 : (i + 1) * (i + 2) // 2]] for i in range(size)]
    return [row + [lower[j][i] for j in range(i + 1, size)] for i, row in enumerate(lower)]


class _Period(NamedTuple):
    """One period with its noise, for numbers of which `unit` is 1."""

    schedule: Schedule
    steps: Steps
    unit: int
    work: Work

    def sum_of_traces(self, digits: Sequence[int], start: IntegerMatrix, place: str) -> Fraction:
        """The sum over the instants of a period of the trace off the mean, from X = start; confirms X ≻ F(X)."""
        schedule, steps = self.schedule, self.steps
        size = schedule.width
        noises = [[ceil(variance * self.unit) for variance in row] for row in steps.noise]
        # Inside a round W has not acted yet: noise of the steps made so far comes to what stood at its start.
        made = sum(sum(steps.made(s)) for s in range(steps.instants))
        inside = Fraction(made * (size if digits else size - 1), size)
        total, covariance = Fraction(0), start
        for t in range(schedule.period):
            self.work.spend(100 * size * size)
            total += (steps.instants - 1) * _trace(covariance, digits) / self.unit + inside
            if not schedule.is_late:
                covariance = _with_diagonal(covariance, noises[t])
            covariance = rounded_after_phase(schedule, t, digits, covariance)
            covariance = _with_diagonal(covariance, [(size + 1) // 2] * size)
            if schedule.is_late:
                covariance = _with_diagonal(covariance, noises[t])
            total += _trace(covariance, digits) / self.unit
        _confirm_smaller(covariance, start, digits, place)
        return total


def _confirm_smaller(after: IntegerMatrix, before: IntegerMatrix, digits: Sequence[int], place: str) -> None:
    """Confirm X ≻ Q·Y·Q for Y = after and X = before, row by row; all times size², which makes integers of it."""
    size = len(after)
    sums = [0 if digits else sum(row) for row in after]
    whole = sum(sums)
    for i, (new_row, old_row) in enumerate(zip(after, before, strict=True)):
        trios = zip(new_row, old_row, sums, strict=True)
        row = [size * size * (old - new) + size * (sums[i] + other) - whole for new, old, other in trios]
        beside = sum(map(abs, row)) - abs(row[i])
        confirm(row[i] > beside, f"{place}: row {i}", "too small", "more than a period makes of it")


def _trace(matrix: IntegerMatrix, digits: Sequence[int]) -> Fraction:
    """The trace of Q·X·Q."""
    trace = sum(row[i] for i, row in enumerate(matrix))
    return Fraction(trace) if digits else trace - Fraction(sum(map(sum, matrix)), len(matrix))


def _with_diagonal(matrix: IntegerMatrix, numbers: Sequence[int]) -> IntegerMatrix:
    """The matrix with these numbers added on its diagonal."""
    pairs = enumerate(zip(matrix, numbers, strict=True))
    return [[*row[:i], row[i] + number, *row[i + 1 :]] for i, (row, number) in pairs]
