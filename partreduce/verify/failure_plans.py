"""Failures that a plan covers: `survives`, that survivors agree; `mean-moved`, how far the mean moves.

One failure of each class is looked at, on the cells that the checker makes of what its survivors run
(verify/checker/survives.py has the proof); here bounds are found that its pivots confirm.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, semidefinite_pivots
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import after_failure, planned_failures
from partreduce.verify.base import Claim, not_proved, proved, refuted, some, upper
from partreduce.verify.checker.consensus import lengthens_nothing
from partreduce.verify.checker.failure_classes import Cells, cells_of, classes_of_plan, runs_after, values_on
from partreduce.verify.checker.period import MAX_DIGITS, MAX_SIZE, classes, distance_from_mean
from partreduce.verify.checker.refusal import TooLarge, Work
from partreduce.verify.checker.survives import ASKED, Confirmed, off_mean, parts_left
from partreduce.verify.contraction import candidates, least_square
from partreduce.verify.facts import ScheduleFacts, fact

NAME = "survives"
MAX_CELLS = 2 * 10**7
"""Cells of all classes, in all phases, up to which they are looked at."""
MAX_RATED, MAX_RATES = 48, 4 * 10**6
"""Cells of a class whose rate is proved, and the sum of their cubes over all of them."""


def planned_classes(schedule: Schedule) -> list[tuple[int, ...]]:
    """A failure of each class that the plan covers, smaller ones first.

    Raises:
        TooLarge: there are over `failure_classes.MAX_CLASSES`, or too many workers.
    """
    read = ScheduleFacts(schedule).read
    return classes_of_plan(read, read.failure_plan, Work(NAME))


def prove_survives(schedule: Schedule) -> Claim:
    """Prove that the survivors of every failure that the plan covers reach consensus, or refute it by a failure.

    Rules: independent of the number of nodes. Listed groups: O(classes · period · n).
    """
    read = ScheduleFacts(schedule).read
    try:
        listed = classes_of_plan(read, read.failure_plan, Work(NAME))
    except TooLarge as refusal:
        return not_proved(NAME, f"{refusal.sentence.removeprefix(f'{NAME}: ')}.")
    bounds: dict[tuple[int, ...], Fraction] = {}
    work, budget = Work(NAME, 20 * MAX_CELLS), MAX_RATES
    known: dict[int, tuple[Confirmed, dict[tuple[int, ...], Fraction]]] = {}
    for failed in listed:
        runs, missing = runs_after(read, read.failure_plan, failed)
        try:
            cells = cells_of(runs, missing, values_on(missing, runs.width, runs.radices), work)
        except TooLarge:
            return not_proved(NAME, f"the survivors of all {len(listed)} classes of failures have too many cells.")
        seen, rates = known.setdefault(runs.num_workers, (Confirmed(set(), set()), {}))
        if apart := _apart(runs, cells, seen):
            text = f"after the failure of {some(failed)} survivors do not agree: {apart}."
            return refuted(NAME, text, {"failed": list(failed)})
        size = len(cells.sizes)
        is_small = not runs.radices or (len(runs.radices) <= MAX_DIGITS and runs.width <= MAX_SIZE)
        is_rated = size <= MAX_RATED and size**3 <= budget and is_small
        budget -= size**3 if is_rated else 0
        bounds[failed] = _least_square(runs, cells, rates) if is_rated else Fraction(1)
    return _survives(schedule, bounds)


def _apart(runs: Any, cells: Cells, known: Confirmed) -> str:  # noqa: ANN401 - the checker's own schedule
    """Why survivors do not agree, as a clause; empty where they do."""
    if not lengthens_nothing(runs):
        return "a group has relaxation < 0 or relaxation >= 2, so that meeting is not enough"
    parts, digit = parts_left(runs, cells, known, Work(NAME))
    if digit is not None:
        return f"some local ranks never average across digit {digit} of the node index"
    return "" if parts == 1 else f"their groups leave {parts} parts that never meet"


def _least_square(runs: Any, cells: Cells, rates: dict[tuple[int, ...], Fraction]) -> Fraction:  # noqa: ANN401
    """The least simple bound c² ≤ 1 on what a period leaves of differences; `rates` are those along free digits."""
    free, work = tuple(cells.free), Work(NAME)
    if free not in rates:
        of_digits = (distance_from_mean(runs, digits, 1, work) for digits in classes(runs, NAME, free) if free)
        matrices = [ExactMatrix(np.array(rows, dtype=object), scale) for rows, scale in of_digits]
        rates[free] = least_square(matrices) if matrices else Fraction(0)
    rows, scale = off_mean(cells, work)
    matrix = ExactMatrix(np.array(rows, dtype=object), scale).reduced()
    weights = ExactMatrix.diagonal(list(map(Fraction, cells.sizes)))
    square = matrix.transposed @ (weights @ matrix)
    roots = np.sqrt(np.array(cells.sizes, dtype=float))
    norm = float(np.linalg.norm(matrix.floats() * roots[:, None] / roots[None, :], 2))
    for squared in candidates(norm**2):
        if squared <= 1 and semidefinite_pivots(weights.scaled(squared) - square) is not None:
            return max(squared, rates[free])
    return Fraction(1)


def _survives(schedule: Schedule, bounds: dict[tuple[int, ...], Fraction]) -> Claim:
    n, plan = schedule.num_workers, schedule.failure_plan
    assert plan is not None, "asked of schedules with a plan"
    listed = [{"failed": list(failed), "squared": str(bound)} for failed, bound in bounds.items()]
    entry: dict[str, Any] = {"failures": plan.failures, "classes": listed}
    workers = f"{'up to ' * (plan.failures > 1)}{plan.failures} worker{'s' * (plan.failures > 1)}"
    node = " or one node" if (schedule.cluster.node_sizes() <= n - 2).any() else ""
    text = f"After every failure of {workers}{node} the survivors' groups join them all. "
    if bounds:
        rated = [bound for bound in bounds.values() if bound < 1]
        text += (
            f"One failure was looked at of each of {len(bounds)} class{'es' * (len(bounds) > 1)} of failures that "
            f"symmetries map to one another; of {len(rated)} of them it is proved how much a period leaves of "
            f"differences: at most {upper(max(rated, default=Fraction(1)), power=2)}."
        )
    else:
        text += "All of them average in one group, which leaves nothing of differences."
    failures = sum(comb(n, count) for count in range(1, plan.failures + 1)) + schedule.cluster.num_nodes
    if failures * n * schedule.period > ASKED:
        text += (
            " There are too many failures to ask the installed code about each: it is assumed to do as the file says."
        )
        return proved(NAME, text, **entry, answers="")
    lines = hashlib.sha256()
    for failed in planned_failures(schedule, plan):
        found = after_failure(schedule, failed)
        for phase in map(found.phase, range(found.period)):
            home = {worker: f"{group.members[0]} {group.relaxation}\n" for group in phase for worker in group.members}
            lines.update("".join(home.get(worker, "-\n") for worker in range(found.num_workers)).encode())
    text += " The installed code was asked about every one, and the checker compares what it answered."
    return proved(NAME, text, **entry, answers=lines.hexdigest())


MEAN_MOVED = fact(
    "mean-moved",
    "A death of worker i moves the mean by (mean - x_i)/{fewer}, a join from donor d by (x_d - mean)/{more}. Let d² be "
    "the workers' mean squared distance to their mean at that instant; its usual size is what consensus-distance "
    "bounds. Then a failure of k moves the mean by the root of k/(n - k)·d² at most, and of k/((n - 1)(n - k))·d² in "
    "the mean over all such failures.",
    lambda s, _: {"fewer": s.num_workers - 1, "more": s.num_workers + 1},
)
