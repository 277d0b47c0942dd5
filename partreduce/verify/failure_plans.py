"""Prove `survives`: after every planned failure the surviving workers reach consensus.

One failure of each class of symmetric failures is examined. Surviving workers that are interchangeable form one *cell*,
which keeps the matrices small (proof: verify/checker/survives.py). This module finds bounds on the rate of consensus,
which the checker confirms by exact pivots.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, semidefinite_pivots
from partreduce.topo.mixing import Operators
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block, RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import after_failure, planned_failures
from partreduce.verify.base import Claim, not_proved, proved, refuted, some, upper
from partreduce.verify.checker.consensus import lengthens_nothing
from partreduce.verify.checker.period import MAX_DIGITS, MAX_SIZE, classes
from partreduce.verify.checker.refusal import TooLarge, Work
from partreduce.verify.checker.survives import (
    ASKED,
    Cells,
    Confirmed,
    cells_of,
    classes_of_plan,
    parts_left,
    runs_after,
    values_on,
)
from partreduce.verify.contraction import candidates, least_square
from partreduce.verify.facts import ScheduleFacts

NAME = "survives"
MAX_CELLS = 2 * 10**7
"""Most cells of survivors, summed over all classes of failures and all phases."""
MAX_RATED, MAX_RATES = 48, 4 * 10**6
"""Most cells of a class whose rate is proved, and the limit on the sum of their cubes over all classes."""


def planned_classes(schedule: Schedule) -> list[tuple[int, ...]]:
    """Return the failed ranks of one failure of each class that the plan covers, smaller failures first.

    A class holds the failures that a symmetry of the schedule maps to one another.

    Raises:
        TooLarge: more than `survives.MAX_CLASSES` classes, or too many workers.
    """
    read = ScheduleFacts(schedule).read
    return classes_of_plan(read, read.failure_plan, Work(NAME))


def prove_survives(schedule: Schedule) -> Claim:
    """Prove that the survivors of every planned failure reach consensus, or refute it by one failure.

    Not proved if there are too many classes of symmetric failures, or too many cells.
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
            text = f"after the failure of {some(failed)} the survivors do not reach consensus: {apart}."
            return refuted(NAME, text, {"failed": list(failed)})
        size = len(cells.sizes)
        is_small = not runs.radices or (len(runs.radices) <= MAX_DIGITS and runs.width <= MAX_SIZE)
        is_rated = size <= MAX_RATED and size**3 <= budget and is_small
        budget -= size**3 if is_rated else 0
        bounds[failed] = _least_square(runs, cells, rates) if is_rated else Fraction(1)
    return _survives(schedule, bounds)


def _apart(runs: Any, cells: Cells, known: Confirmed) -> str:  # noqa: ANN401 - the checker's own schedule
    """Return why the survivors do not reach consensus, as a clause of a sentence; empty if they do.

    `runs` is the schedule that survivors run, `cells` are their sets of interchangeable workers, `known` caches results
    that do not depend on the failure.
    """
    if not lengthens_nothing(runs):
        return "a group has relaxation < 0 or relaxation >= 2, so a spanning tree of groups is not enough"
    parts, digit = parts_left(runs, cells, known, Work(NAME))
    if digit is not None:
        return f"some local ranks never average across digit {digit} of the node index"
    return "" if parts == 1 else f"their groups leave {parts} parts that never average"


def _least_square(runs: Any, cells: Cells, rates: dict[tuple[int, ...], Fraction]) -> Fraction:  # noqa: ANN401
    """Return c² ≤ 1 such that a period leaves at most c² of the survivors' squared distance to their mean.

    `runs` is the schedule that survivors run, `cells` are their sets of interchangeable workers. `rates` caches the
    bounds for functions that vary along free digits: digits of the node index with at least two values that no failed
    node has.
    """
    free, sizes = tuple(cells.free), np.array(cells.sizes)
    if free not in rates:
        listed = list(classes(runs, NAME, free)) if free else []
        phases = tuple(tuple(Block(tuple(b.members), tuple(b.across), b.relaxation) for b in p) for p in runs.phases)
        on_classes = Operators.of_rule(RuleView(tuple(runs.radices), phases, runs.width), listed)
        rates[free] = least_square([on_classes.exact_period(which) for which in range(len(listed))])
    rounds = (Phase.from_groups(len(sizes), [Group(tuple(c), r) for c, _, r in phase]) for phase in cells.phases)
    mean = ExactMatrix(np.tile(sizes.astype(object), (len(sizes), 1)), sum(cells.sizes))
    matrix = (Operators(tuple(rounds), counts=sizes).exact_period() - mean).reduced()
    weights = ExactMatrix.diagonal(list(map(Fraction, cells.sizes)))
    square = matrix.transposed @ (weights @ matrix)
    roots = np.sqrt(sizes)
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
            f"One failure of each of {len(bounds)} class{'es' * (len(bounds) > 1)} of symmetric failures was examined. "
            f"For {len(rated)} of them it is proved that a period leaves at most "
            f"{upper(max(rated, default=Fraction(1)), power=2)} of a difference."
        )
    else:
        left = upper(schedule.strategy.sync.kept) if schedule.strategy.sync.kept else "nothing"
        text += f"All of them average in one group, which leaves {left} of a difference."
    failures = sum(comb(n, count) for count in range(1, plan.failures + 1)) + schedule.cluster.num_nodes
    if failures * n * schedule.period > ASKED:
        text += (
            " There are too many failures to evaluate the installed code for each: it is assumed to follow the file."
        )
        return proved(NAME, text, **entry, answers="")
    lines = hashlib.sha256()
    for failed in planned_failures(schedule, plan):
        found = after_failure(schedule, failed)
        for phase in map(found.phase, range(found.period)):
            home = {worker: f"{group.members[0]} {group.relaxation}\n" for group in phase for worker in group.members}
            lines.update("".join(home.get(worker, "-\n") for worker in range(found.num_workers)).encode())
    text += " The installed code was evaluated for every failure, and the checker compares the results."
    return proved(NAME, text, **entry, answers=lines.hexdigest())
