"""Claim `limit`, for weighted graphs: where averaging alone leads, and how fast.

Rows of P, one period, sum to 1; columns need not, and then the mean moves. *Claimed:* from any start x all workers
converge to one value π·x, with |π_i − `weights`_i| ≤ `error` for every worker i; and differences vanish at least as
fast as `rate`ᵏ over k periods, so that P has no other eigenvalue above `rate`.

**The rate.** Let y_i = x_i − x_n be the differences to the last worker. Rows sum to 1, so one period takes y to N·y
with N_ij = P_ij − P_nj. *Theorem:* if H is positive definite and r²·H − NᵀHN is positive semidefinite, then each
period shrinks √(yᵀHy) by the factor r or more (Lyapunov). So the spectral radius of N, which has the eigenvalues of P
but for one 1, is at most r; and with r < 1 all differences vanish.

**The value.** Let w be the weights, Σw = 1, and d = wᵀP − wᵀ, whose entries sum to 0: so d·x = Σ_{i<n} d_i·y_i. The
number w·x changes by d·Pᵏx in period k, hence converges, hence all workers do, to π·x say. The changes together are
at most Σ_k ‖d‖·rᵏ·√(yᵀHy)/√u = ‖d‖·√(yᵀHy)/(√u·(1 − r)), where H − u·I is positive semidefinite and ‖d‖ is the length
of (d_1 … d_{n−1}). Take for x the vector that is 1 at worker i and 0 elsewhere: π·x − w·x = π_i − w_i, and yᵀHy is
H_ii, or the sum of all entries of H for the last worker. Where d = 0 the weights are exactly π, and the error is 0.

*The check is sound because* it multiplies P itself, and computes N, d and both matrices from it in integers
(definite.py decides them). Any H, u and r that pass will do. *It assumes* nothing; pace and lateness do not enter.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..definite import confirm_semidefinite
from ..linear_algebra import inner_product
from ..period import distance_from_mean
from ..refusal import Work, confirm
from ..strict_json import as_fraction, as_integer, as_integers, as_list

if TYPE_CHECKING:
    from ..linear_algebra import IntegerMatrix
    from ..schedule import Schedule

MAX_WORKERS = 64
MAX_FORM = 2**256


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`weights` (w), `error`, `rate` (r), `form` (H: its lower triangle, row by row), `floor` (u)."""
    n = schedule.num_workers
    confirm(schedule.form == "graph" and n <= MAX_WORKERS, place, n, f"a weighted graph of up to {MAX_WORKERS} workers")
    given = as_list(entry["weights"], f"{place}.weights")
    weights = [as_fraction(weight, f"{place}.weights[{i}]") for i, weight in enumerate(given)]
    sums_to_one = len(weights) == n and sum(weights) == 1
    confirm(sums_to_one, f"{place}.weights", "…", f"{n} weights that sum to 1")
    rate = as_fraction(entry["rate"], f"{place}.rate")
    confirm(0 < rate < 1, f"{place}.rate", entry["rate"], "a rate above 0 and below 1")
    floor = as_integer(entry["floor"], f"{place}.floor", 1, MAX_FORM)
    form = _read_form(entry["form"], n - 1, f"{place}.form")

    work = Work(place)
    rows, scale = distance_from_mean(schedule, (), 1, work)  # n·scale·(P − J): in differences J drops out
    last = rows[-1]
    step = [[row[j] - last[j] for j in range(n - 1)] for row in rows[:-1]]  # scale · N
    length = max((abs(number) for row in (*step, *form) for number in row), default=1).bit_length()
    work.spend(2 * n**3 * (40 + length // 8))
    columns = list(zip(*step, strict=True))
    moved = [[inner_product(row, column) for column in columns] for row in form]  # scale · HN
    shrunk = [[inner_product(one, other) for other in zip(*moved, strict=True)] for one in columns]  # scale² · NᵀHN
    wide, narrow = (rate.numerator * scale) ** 2, rate.denominator**2
    confirm_semidefinite(
        [[wide * h - narrow * s for h, s in zip(*pair, strict=True)] for pair in zip(form, shrunk, strict=True)],
        f"{place}.rate",
        work,
    )
    confirm_semidefinite(_minus_identity(form, floor), f"{place}.floor", work)

    error = as_fraction(entry["error"], f"{place}.error")
    after = [sum(weight * row[j] for weight, row in zip(weights, rows, strict=True)) / scale for j in range(n - 1)]
    change = [part + Fraction(1, n) - weight for part, weight in zip(after, weights, strict=False)]  # d
    squared = sum(part * part for part in change)
    largest = max(*(row[i] for i, row in enumerate(form)), sum(map(sum, form)))
    is_enough = error >= 0 and error**2 * (1 - rate) ** 2 * floor >= squared * largest
    confirm(is_enough, f"{place}.error", entry["error"], "an error that covers what a period changes the weights by")


def _read_form(value: object, size: int, place: str) -> IntegerMatrix:
    """A symmetric matrix, from its lower triangle."""
    lower = as_list(value, place)
    confirm(len(lower) == size, place, len(lower), f"{size} rows")
    rows = [as_integers(row, f"{place}[{i}]", 1 - MAX_FORM, MAX_FORM) for i, row in enumerate(lower)]
    is_triangle = all(len(row) == i + 1 for i, row in enumerate(rows))
    confirm(is_triangle, place, "…", "rows of 1, 2, … numbers")
    return [[rows[max(i, j)][min(i, j)] for j in range(size)] for i in range(size)]


def _minus_identity(form: IntegerMatrix, floor: int) -> IntegerMatrix:
    return [[entry - floor * (i == j) for j, entry in enumerate(row)] for i, row in enumerate(form)]
