"""Claims `drift-worker` and `drift-node`: at most so much, in the steady state.

A constant push b moves workers apart in each of their steps: data that differ. `drift-worker` has a b of its own for
each worker, `drift-node` one for each node; all of them are independent, with mean 0 and variance 1. The drift is the
mean squared distance to the mean that this leads to (`steady_state.py` says when it is looked at, and what classes
are). With b independent its expectation is that for a matrix Z with a column for each b, which begins as U (the
identity, or a 1 for the workers of that node), summed over columns. A phase makes Z to W·(Z + D·U), or, late, to
W·Z + D·U, with the progress of its steps on the diagonal of D. On a class of a rule, U is the identity or one column of
ones.

*Theorem.* Let M be a period off the mean, ‖M‖₂ ≤ c < 1, and let no phase lengthen a vector. Put some Z through one
period, and let r be the Frobenius norm, off the mean, of what it differs then from Z. The steady state Z* differs from
Z off the mean by at most r/(1 − c), since Z* − Z = M·(Z* − Z) + (that difference); phases do not lengthen this. So with
S the sum over all N instants of a period of the squares of what Z leads to off the mean, the sum for Z* is at most
(√S + √N·r/(1 − c))²: norms add up no further than that (Minkowski).

**Rounding.** A phase rounds g·k entries to the nearest integers twice at most, those of D·U and those of the result,
which moves the matrix by at most √(g·k)/2 each time. All phases together move it by at most e = T·√(g·k), so r + e
stands for r, and e is added to the distance.

*The check is sound because* it computes the period itself, in integers; Z may come from anywhere. ‖M‖₂ ≤ c is confirmed
as for the claim `contraction` by a factor, and 1/(1 − c) ≤ 2/(1 − c²). *It assumes* that groups are disjoint, which
`conflict-free` confirms. A prologue changes no steady state.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import linear_algebra
from ..period import distance_from_mean
from ..refusal import Work, confirm
from ..steady_state import GUARD, MAX_BITS, Steps, classes_with_counts, read_steps, rounded_after_phase, with_places
from ..strict_json import as_fraction, as_integer, as_integers, as_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..linear_algebra import IntegerMatrix
    from ..schedule import Schedule

MAX_ENTRY = 2**96


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`at_most`, `squared` (c²), `bits` (Z of the class c is state[c] / 2^bits), `state` (matrices by rows)."""
    work = Work(place)
    schedule = with_places(schedule, place)
    steps = read_steps(schedule, work)
    columns = _pushed_places(schedule, entry["claim"], place)
    bits = as_integer(entry["bits"], f"{place}.bits", 0, MAX_BITS + 1)
    squared = as_fraction(entry["squared"], f"{place}.squared")
    confirm(squared < 1, f"{place}.squared", entry["squared"], "below 1")
    listed = classes_with_counts(schedule, place)
    states = as_list(entry["state"], f"{place}.state")
    confirm(len(states) == len(listed), f"{place}.state", len(states), f"{len(listed)} classes")
    period = _Period(schedule, steps, columns, 1 << (bits + GUARD), work)
    total = 0
    for number, ((digits, count), state) in enumerate(zip(listed, states, strict=True)):
        at = f"{place}.state[{number}]"
        numbers = as_integers(state, at, -MAX_ENTRY, MAX_ENTRY)
        confirm(len(numbers) == schedule.width * len(columns), at, len(numbers), "a column for each push")
        rows, scale = distance_from_mean(schedule, digits, 1, work)
        linear_algebra.confirm_norm(squared, rows, scale, f"{place}.squared", work)
        firsts = range(0, len(numbers), len(columns))
        start = [[entry << GUARD for entry in numbers[first : first + len(columns)]] for first in firsts]
        total += count * period.sum_of_squares(digits, start, squared)
    bound = Fraction(total, period.unit**2 * schedule.num_workers * schedule.period * steps.instants)
    at_most = as_fraction(entry["at_most"], f"{place}.at_most")
    confirm(bound <= at_most, f"{place}.at_most", entry["at_most"], f"at least {float(bound):.9g}")


def _pushed_places(schedule: Schedule, claim: str, place: str) -> list[list[int]]:
    """The places that each push moves: the ones of every column of U."""
    width = schedule.width
    if claim == "drift-worker":
        return [[worker] for worker in range(width)]
    if schedule.form == "rule":
        # all-reduce is read as a rule of one worker a node, whatever its nodes are
        sees_nodes = schedule.workers_per_node == schedule.node_size
        confirm(sees_nodes, place, claim, "a rule that sees the nodes")
        return [list(range(width))]
    size = schedule.node_size
    return schedule.nodes or [list(range(first, first + size)) for first in range(0, width, size)]


class _Period(NamedTuple):
    """One period with its pushes, for numbers of which `unit` is 1."""

    schedule: Schedule
    steps: Steps
    columns: list[list[int]]
    unit: int
    work: Work

    def pushed(self, state: IntegerMatrix, made: Sequence[int | Fraction]) -> IntegerMatrix:
        """Z + D·U, with the steps that were made on the diagonal of D, rounded."""
        result = [list(row) for row in state]
        for column, places in enumerate(self.columns):
            for at in places:
                result[at][column] += round(made[at] * self.unit)
        return result

    def sum_of_squares(self, digits: Sequence[int], start: IntegerMatrix, squared: Fraction) -> int:
        """A bound on the sum of the squares off the mean over the instants of a period in the steady state."""
        schedule, steps = self.schedule, self.steps
        entries = schedule.width * len(self.columns)
        total, state = Fraction(0), start
        for t in range(schedule.period):
            self.work.spend(100 * (steps.instants + 1) * entries)
            for s in range(1, steps.instants):
                total += _squares(self.pushed(state, steps.made(s)), digits)
            if not schedule.is_late:
                state = self.pushed(state, steps.push[t])
            state = rounded_after_phase(schedule, t, digits, state, both_sides=False)
            if schedule.is_late:
                state = self.pushed(state, steps.push[t])
            total += _squares(state, digits)
        difference = [[new - old for new, old in zip(*pair, strict=True)] for pair in zip(state, start, strict=True)]
        rounding = schedule.period * (isqrt(entries) + 1)
        residual = _root_above(_squares(difference, digits)) + rounding
        distance = residual * 2 / (1 - squared) + rounding
        num_instants = Fraction(schedule.period * steps.instants)
        return (_root_above(total) + ceil(_root_above(num_instants) * distance)) ** 2


def _squares(matrix: IntegerMatrix, digits: Sequence[int]) -> Fraction:
    """‖Q·Z‖_F²."""
    squares = Fraction(sum(entry * entry for row in matrix for entry in row))
    if digits:
        return squares
    return squares - Fraction(sum(sum(column) ** 2 for column in zip(*matrix, strict=True)), len(matrix))


def _root_above(number: Fraction) -> int:
    """An integer that is not below the root of a number that is not negative."""
    return isqrt(ceil(number)) + 1
