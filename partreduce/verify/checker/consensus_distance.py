"""Claim `consensus-distance`: a bound on the mean squared distance of workers from their mean in the steady state.

**The model.** Each step adds noise of unit variance to its worker, independent of all other noise. With H the largest
steps_per_round a round has the instants 1 … H: at instant s < H worker i has made ⌊s·steps_per_round/H⌋ of its steps
and nothing is averaged yet; at instant H it has made all, and W acts: x ← W·(x + steps), or late x ← W·x + steps. With
step-normalized averages a round's steps are multiplied there, before W acts or late, by (mean steps_per_round of the
group)/steps_per_round. Shared outer steps, and merging late, change differences as W does; fragments are taken as
averaged at the end of their round. The consensus distance is the mean over all instants of a period of ‖x − mean‖²/n,
in the steady state.

**Classes** (`period.py`). Steps have unit variance on every character, so the distance is the sum over classes, each
times its number of characters. Let Q = I − J on the class that holds the mean, and Q = I on others. Rows of W sum to 1,
so Q·W = Q·W·Q: the mean may be taken out at the end of a period.

**No phase lengthens.** Groups with 0 ≤ relaxation ≤ 2 have the eigenvalues 1 and 1 − relaxation. A matrix without
negative entries whose rows and columns sum to 1 has ‖W‖₂² ≤ ‖W‖₁·‖W‖∞ = 1. Every phase is checked for this.

*Theorem.* Let Σ be the covariance of the workers off the mean at the start of a period, and F(Σ) that at its end: each
phase makes it W·(Σ + D)·Wᵀ, or late W·Σ·Wᵀ + D, with the variances of its steps on the diagonal of D. Let X be
symmetric with X ≻ F(X), and let no phase lengthen a vector. Then workers that start equal, Σ = 0, have Σ ⪯ X at the
start of every period, and Σ converges, to a steady state that is ⪯ X too. So the sum of the traces over a period that
starts with X bounds the sum of the traces of Σ, in the steady state and in every period before.

*Proof.* Let M be the period off the mean, so F(X) = M·X·Mᵀ + (a matrix ⪰ 0), and ‖M‖₂ ≤ 1. First, X ⪰ 0: were
its smallest eigenvalue μ negative, with v of length 1, then μ = vᵀXv > vᵀM·X·Mᵀv ≥ μ·‖Mᵀv‖² ≥ μ. Next, F is monotone (A
⪯ B gives F(A) ⪯ F(B)), so covariances that start at 0 stay ⪯ F(X) ⪯ X. They grow, since F(0) ⪰ 0, so they converge. As
X ⪰ 0 and X ≻ M·X·Mᵀ, powers of M vanish: from any start the workers reach that steady state.

**X ≻ F(X)** is seen by rows: on the diagonal of X − F(X) each entry exceeds the sum of the absolute values of its
row's others. **Rounding.** Entries of W·X·Wᵀ are rounded to the nearest integer. That changes a matrix of g rows by a
symmetric matrix of row sums at most g/2, so with ⌈g/2⌉ added on the diagonal the result is ⪰ what was meant; D is
rounded upwards. Everything holds for such larger matrices, since F is monotone.

A prologue changes no steady state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from .groups import weights_of_round
from .linear_algebra import IntegerMatrix, symmetric
from .period import after_phase, classes, growth_bits
from .refusal import Work, confirm, require
from .schedule import Schedule
from .strict_json import as_fraction
from .survives import cells_of

GUARD = 16
"""Extra bits, beyond those of the certificate's numbers, with which a period is computed."""

MAX_ROWS = 1024
MAX_MATRIX_BITS = 2**30
"""Most bits of all integers of one matrix together."""


class Steps(NamedTuple):
    """The noise that steps add between averages at each place (a worker, or a local rank of a rule).

    `worker_steps` are the steps per round of each place, and `instants` is H, the largest of them. `noise[t]` is the
    variance that each place adds in round t, as integers in units of 1/`unit`, rounded upwards: the steps per round, or
    with step-normalized averages steps_per_round·f², where f is the mean steps_per_round of the group divided by the
    place's own.
    """

    worker_steps: list[int]
    instants: int
    noise: list[list[int]]
    unit: int


def with_places(schedule: Schedule, place: str) -> Schedule:
    """Return the schedule, or, for a rule whose steps per round differ between nodes, the same with explicit groups.

    Its mixing matrices then act on places: the local ranks of any node for a rule, otherwise the workers.
    """
    width = schedule.width
    require(width <= MAX_ROWS, place, f"over {MAX_ROWS} rows")
    worker_steps = schedule.worker_steps
    if all(worker_steps[at : at + width] == worker_steps[:width] for at in range(0, len(worker_steps), width)):
        return schedule
    require(schedule.num_workers <= MAX_ROWS, place, f"over {MAX_ROWS} workers of different steps_per_round")
    phases = cells_of(schedule, (), list(map(range, schedule.radices)), Work(place)).phases
    return replace(schedule, form="groups", radices=[], phases=phases)


def read_steps(schedule: Schedule, unit: int, work: Work) -> Steps:
    """Return the steps of a schedule, noise in units of 1/`unit`; raise a Refusal if a phase enlarges differences."""
    for sizes in schedule.group_sizes():
        is_tame = all(0 <= relaxation <= 2 for _, relaxation in sizes)
        confirm(is_tame, work.place, "relaxation", "0 <= relaxation <= 2 in every group")
    for t, edges in enumerate(schedule.rounds):
        weights = weights_of_round(edges)
        confirm(weights is not None, f"schedule: round {t}", "a column", "columns that sum to 1")
        smallest = min(weights or (), default=Fraction(0))
        confirm(smallest >= 0, work.place, str(smallest), "no negative weight")
    width, rounds = schedule.width, range(schedule.period)
    longest = 2 * max(growth_bits(schedule, t) for t in rounds)  # W acts from both sides
    require(width * width * longest <= MAX_MATRIX_BITS, work.place, "factors with too long denominators for this check")
    worker_steps = schedule.worker_steps * width if len(schedule.worker_steps) == 1 else schedule.worker_steps[:width]
    instants = max(worker_steps)
    work.spend(200 * (instants + schedule.period) * width)
    means = (_means(schedule, t, worker_steps) for t in rounds)
    noise = [[ceil(unit * mean * mean / each) for mean, each in zip(row, worker_steps, strict=True)] for row in means]
    return Steps(worker_steps, instants, noise, unit)


def _means(schedule: Schedule, t: int, worker_steps: Sequence[int]) -> list[Fraction]:
    """Return the progress of each place (row of W) in round t, in steps: its own, or its group's if step-normalized.

    Weighted graphs have no groups: for a worker with an edge in the round it is the mean of all workers.
    """
    means = list(map(Fraction, worker_steps))
    if schedule.is_step_normalized and schedule.rounds:
        everybody = Fraction(sum(worker_steps), len(worker_steps))
        for target, source, _ in schedule.rounds[t]:
            means[target] = means[source] = everybody
    elif schedule.is_step_normalized:
        for members, _, _ in schedule.phases[t]:
            mean = Fraction(sum(worker_steps[member] for member in members), len(members))
            for member in members:
                means[member] = mean
    return means


def rounded_after_phase(schedule: Schedule, t: int, digits: Sequence[int], rows: IntegerMatrix) -> IntegerMatrix:
    """Return W·X·Wᵀ on the class of `digits`, rounded to integers; W is the matrix of phase t, X = `rows` symmetric."""
    rows, scale = after_phase(schedule, t, digits, rows)
    rows, factor = after_phase(schedule, t, digits, list(map(list, zip(*rows, strict=True))))
    scale *= factor
    twice = 2 * scale
    return [[(2 * entry + scale) // twice for entry in row] for row in rows]


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """Raise a Refusal unless `covariance` / 2^`bits`, a lower triangle for each class, proves `consensus-distance`."""
    work = Work(place)
    schedule = with_places(schedule, place)
    steps = read_steps(schedule, 1 << (entry["bits"] + GUARD), work)
    listed = classes(schedule, place)
    triangles = entry["covariance"]
    confirm(len(triangles) == len(listed), f"{place}.covariance", len(triangles), f"{len(listed)} classes")
    total = Fraction(0)
    for number, ((digits, count), triangle) in enumerate(zip(listed.items(), triangles, strict=True)):
        at = work.place = f"{place}.covariance[{number}]"
        covariance = symmetric([entry << GUARD for entry in triangle], schedule.width, at)
        total += count * _sum_of_traces(schedule, steps, digits, covariance, work)
    bound = total / (schedule.num_workers * schedule.period * steps.instants)
    at_most = as_fraction(entry["at_most"], f"{place}.at_most")
    confirm(bound <= at_most, f"{place}.at_most", entry["at_most"], f"at least {float(bound):.9g}")


def _sum_of_traces(
    schedule: Schedule, steps: Steps, digits: Sequence[int], start: IntegerMatrix, work: Work
) -> Fraction:
    """Return, on one class, the sum of traces over a period from X = start / unit, and confirm that X gets smaller."""
    size, is_late = schedule.width, schedule.is_late
    half = (size + 1) // 2
    # Inside a round W has not acted yet: noise of the steps made so far comes to what stood at its start.
    made = sum(s * each // steps.instants for s in range(steps.instants) for each in steps.worker_steps)
    inside = Fraction(made * (size if digits else size - 1), size)
    total, covariance = Fraction(0), start
    for t, noise in enumerate(steps.noise):
        work.spend(100 * size * size)
        total += (steps.instants - 1) * _trace(covariance, digits) / steps.unit + inside
        before = covariance if is_late else _with_diagonal(covariance, noise)
        after = rounded_after_phase(schedule, t, digits, before)
        covariance = _with_diagonal(after, [half + late for late in noise] if is_late else [half] * size)
        total += _trace(covariance, digits) / steps.unit
    _confirm_smaller(covariance, start, digits, work.place)
    return total


def _confirm_smaller(after: IntegerMatrix, before: IntegerMatrix, digits: Sequence[int], place: str) -> None:
    """Confirm X ≻ Q·Y·Q by diagonal dominance; X = before, Y = after, Q removes the mean where `digits` is empty."""
    size = len(after)
    sums = [0 if digits else sum(row) for row in after]
    whole = sum(sums)
    for i, (new_row, old_row) in enumerate(zip(after, before, strict=True)):
        trios = zip(new_row, old_row, sums, strict=True)
        row = [size * size * (old - new) + size * (sums[i] + other) - whole for new, old, other in trios]
        beside = sum(map(abs, row)) - abs(row[i])
        confirm(row[i] > beside, f"{place}: row {i}", "too small", "more than a period makes of it")


def _trace(matrix: IntegerMatrix, digits: Sequence[int]) -> Fraction:
    """Return the trace of Q·matrix·Q; Q removes the mean if `digits` is empty, and is the identity otherwise."""
    trace = sum(row[i] for i, row in enumerate(matrix))
    return Fraction(trace) if digits else trace - Fraction(sum(map(sum, matrix)), len(matrix))


def _with_diagonal(matrix: IntegerMatrix, numbers: Sequence[int]) -> IntegerMatrix:
    pairs = enumerate(zip(matrix, numbers, strict=True))
    return [[*row[:i], row[i] + number, *row[i + 1 :]] for i, (row, number) in pairs]
