"""Claim `survives`: after every failure that the failure plan covers, survivors reach consensus, and how fast.

One failure of each class is looked at (`topo.failures`). What remains of a rule acts, on functions that differ between
nodes outside the digits of failed ones, as the undisturbed rule does; on all others its matrix is one of *cells*: a
local rank on the nodes that have the same digits of failed nodes. verify/checker/claims/survives.py has the proof.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations
from itertools import product as settings
from math import comb, lcm, prod, sqrt
from typing import Any

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, semidefinite_pivots
from partreduce.topo.cluster import Cluster
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.failure_symmetries import Failure, planned_classes, planned_failures
from partreduce.topo.rule import RuleView, digit_of, strides_of
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import after_failure, reapplied
from partreduce.verify.base import Claim, not_proved, proved, refuted, some
from partreduce.verify.classes import MAX_DIGITS, MAX_SIZE, class_product
from partreduce.verify.consensus import GROUND, class_groups, tree_of_groups
from partreduce.verify.contraction import candidates, least_square
from partreduce.verify.view import contracts, is_tame

NAME, MOVED = "survives", "mean-moved"
ASKED = 2**20
"""Lines of all answers up to which the installed code is asked about every failure, as the checker counts them."""
MAX_CLASSES = 2**16
MAX_CELLS = 2 * 10**7
"""Cells of all classes, in all phases, up to which they are looked at."""
MAX_RATED, MAX_RATES = 48, 4 * 10**6
"""Cells of a class whose rate is proved, and the sum of their cubes over all of them."""


def prove_survives(schedule: Schedule) -> Claim:
    """Prove that the survivors of every failure that the plan covers reach consensus, or refute it by a failure.

    Rules: independent of the number of nodes. Listed groups: O(classes · period · n).
    """
    plan = schedule.failure_plan
    assert plan is not None, "asked of schedules with a plan"
    classes = planned_classes(schedule, MAX_CLASSES)
    if len(classes) > MAX_CLASSES:
        return not_proved(NAME, f"the failures that the plan covers fall into over {MAX_CLASSES} classes.")
    bounds: list[Fraction] = []
    cells, budget = MAX_CELLS, MAX_RATES
    known: dict[int, _Known] = {}
    for failed in classes:
        runs = _Runs.of(schedule, plan, failed)
        cells -= len(runs.sizes) * len(runs.phases)
        if cells < 0:
            return not_proved(NAME, f"the survivors of all {len(classes)} classes of failures have too many cells.")
        seen = known.setdefault(runs.num_nodes, _Known({}, {}))
        if apart := runs.apart(seen):
            text = f"after the failure of {some(failed)} survivors do not agree: {apart}."
            return refuted(NAME, text, {"failed": list(failed)})
        size = len(runs.sizes)
        is_rated = size <= MAX_RATED and size**3 <= budget and runs.is_small
        budget -= size**3 if is_rated else 0
        bounds.append(runs.least_square(seen) if is_rated else Fraction(1))
    return _survives(schedule, plan, classes, bounds)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the undisturbed rule: digits along which it leaves parts apart, bounds by free digits."""

    apart: dict[int, bool]
    bounds: dict[tuple[int, ...], Fraction]


@dataclass(frozen=True, slots=True)
class _Runs:
    """What survivors run, on cells of `sizes` workers; a group of a phase is (cells, relaxation).

    `rule` is there where functions outside the cells are those of a rule, which vary along `free` digits.
    """

    sizes: tuple[int, ...]
    phases: tuple[tuple[tuple[list[int], Fraction], ...], ...]
    rule: RuleView | None
    free: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule, plan: FailurePlan, failed: Failure) -> _Runs:
        """Of one failure, the representative of its class."""
        rule = schedule.rule(by_node=True)
        if rule is None:
            found = after_failure(schedule, failed)
            phases = (
                tuple((list(group.members), group.relaxation) for group in phase)
                for phase in map(found.phase, range(found.period))
            )
            return cls((1,) * found.num_workers, tuple(phases), None, ())
        size = rule.workers_per_node
        if plan.rule is SurvivorRule.REAPPLY_RULE:
            # Nodes that failed as a whole are the last ones, so that the others keep their numbers.
            per_node = Counter(worker // size for worker in failed)
            left = rule.num_nodes - list(per_node.values()).count(size)
            rule = reapplied(schedule, left).view(Cluster.regular(left, size))
            failed = tuple(worker for worker in failed if worker < left * size)
        return cls._of_rule(rule.canonical, failed)

    @property
    def num_nodes(self) -> int:
        """Of the rule, 0 without one: what is known of a rule holds for one number of nodes."""
        return 0 if self.rule is None else self.rule.num_nodes

    @classmethod
    def _of_rule(cls, rule: RuleView, failed: Failure) -> _Runs:
        size, strides = rule.workers_per_node, strides_of(rule.radices)
        nodes = sorted({worker // size for worker in failed})
        used = [
            sorted({digit_of(node, stride, radix) for node in nodes})
            for stride, radix in zip(strides, rule.radices, strict=True)
        ]
        # (value, workers that have it) for each digit; -1 is any value outside those of failed nodes
        parts = [
            [*((value, 1) for value in values), *([(-1, radix - len(values))] if radix > len(values) else [])]
            for values, radix in zip(used, rule.radices, strict=True)
        ]
        gone = {
            (tuple(digit_of(w // size, s, r) for s, r in zip(strides, rule.radices, strict=True)), w % size)
            for w in failed
        }
        cells: dict[tuple[tuple[int, ...], int], int] = {}
        sizes: list[int] = []
        for pattern in settings(*parts):
            digits = tuple(value for value, _ in pattern)
            for rank in range(size):
                if (digits, rank) not in gone:
                    cells[digits, rank] = len(sizes)
                    sizes.append(prod(number for _, number in pattern))
        phases = []
        for phase in rule.phases:
            groups: dict[tuple[object, ...], list[int]] = {}
            relaxation: dict[tuple[object, ...], Fraction] = {}
            for (digits, rank), cell in cells.items():
                for number, block in enumerate(phase):
                    if rank in block.local:
                        kept = (number, *(value for d, value in enumerate(digits) if d not in block.across))
                        groups.setdefault(kept, []).append(cell)
                        relaxation[kept] = block.relaxation
            phases.append(tuple((members, relaxation[kept]) for kept, members in groups.items()))
        free = tuple(d for d, radix in enumerate(rule.radices) if radix - len(used[d]) >= 2)
        return cls(tuple(sizes), tuple(phases), rule, free)

    @property
    def is_small(self) -> bool:
        """Whether the checker takes its rule's classes."""
        rule = self.rule
        return rule is None or (rule.num_digits <= MAX_DIGITS and rule.workers_per_node <= MAX_SIZE)

    def apart(self, known: _Known) -> str:
        """Why survivors do not agree, as a clause; empty where they do."""
        relaxes = (
            {block.relaxation for phase in self.rule.phases for block in phase if block.makes_groups}
            if self.rule
            else set()
        )
        relaxes |= {relaxation for phase in self.phases for members, relaxation in phase if len(members) > 1}
        if not all(map(is_tame, relaxes)):
            return "a group has relaxation < 0 or relaxation >= 2, so that meeting is not enough"
        for digit in self.free:
            if digit not in known.apart:
                assert self.rule is not None, "only rules have digits"
                groups = class_groups(self.rule, {digit}, moving_only=False)
                vertices = [GROUND, *range(self.rule.workers_per_node)]
                known.apart[digit] = len(tree_of_groups(vertices, groups)[1]) > 1
            if known.apart[digit]:
                return f"some local ranks never average across digit {digit} of the node index"
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        joined = [members for phase in self.phases for members, relaxation in phase if contracts(relaxation)]
        heads = np.repeat([members[0] for members in joined], list(map(len, joined))).astype(np.int64)
        tails = np.fromiter(chain.from_iterable(joined), dtype=np.int64)
        shape = (len(self.sizes), len(self.sizes))
        count, _ = connected_components(coo_array((np.ones(len(tails)), (heads, tails)), shape=shape), directed=False)
        return "" if count == 1 else f"their groups leave {count} parts that never meet"

    def least_square(self, known: _Known) -> Fraction:
        """The least simple bound c² ≤ 1 on what a period leaves of differences."""
        if self.rule is not None and self.free not in known.bounds:
            classes = (
                c
                for size in range(1, self.rule.num_digits + 1)
                for c in combinations(range(self.rule.num_digits), size)
            )
            products = {class_product(self.rule, c) for c in classes if set(c) & set(self.free)}
            known.bounds[self.free] = least_square(list(products))
        outside = Fraction(0) if self.rule is None else known.bounds[self.free]
        matrix = self._minus_mean()
        weights = ExactMatrix.diagonal(list(map(Fraction, self.sizes)))
        square = matrix.transposed @ (weights @ matrix)
        roots = np.sqrt(np.array(self.sizes, dtype=float))
        norm = float(np.linalg.norm(matrix.floats() * roots[:, None] / roots[None, :], 2))
        for squared in candidates(norm**2):
            if squared <= 1 and semidefinite_pivots(weights.scaled(squared) - square) is not None:
                return max(squared, outside)
        return Fraction(1)

    def _minus_mean(self) -> ExactMatrix:
        """P − J on the cells, shape (cells, cells)."""
        product = ExactMatrix.identity(len(self.sizes))
        sizes = np.array(self.sizes, dtype=object)
        for phase in self.phases:
            totals = [int(sizes[members].sum()) for members, _ in phase]
            factor = lcm(
                1, *(relaxation.denominator * total for (_, relaxation), total in zip(phase, totals, strict=True))
            )
            numerators = product.numerators * factor
            for (members, relaxation), total in zip(phase, totals, strict=True):
                before = product.numerators[members]
                mean = (sizes[members][:, None] * before).sum(axis=0) * int(relaxation * factor / total)
                numerators[members] = int((1 - relaxation) * factor) * before + mean
            product = ExactMatrix(numerators, product.denominator * factor).reduced()
        everybody = sum(self.sizes)
        mean_of_all = ExactMatrix(np.tile(sizes, (len(sizes), 1)), everybody)
        return product - mean_of_all


def _survives(schedule: Schedule, plan: FailurePlan, classes: Sequence[Failure], bounds: Sequence[Fraction]) -> Claim:
    n = schedule.num_workers
    listed = [{"failed": list(failed), "squared": str(bound)} for failed, bound in zip(classes, bounds, strict=True)]
    entry: dict[str, Any] = {"failures": plan.failures, "classes": listed}
    workers = f"{'up to ' * (plan.failures > 1)}{plan.failures} worker{'s' * (plan.failures > 1)}"
    node = " or one node" if (schedule.cluster.node_sizes() <= n - 2).any() else ""
    text = f"After every failure of {workers}{node} the survivors' groups join them all. "
    if classes:
        rated = [bound for bound in bounds if bound < 1]
        text += (
            f"One failure was looked at of each of {len(classes)} class{'es' * (len(classes) > 1)} of failures that "
            f"symmetries map to one another; of {len(rated)} of them it is proved how much a period leaves of "
            f"differences: at most {sqrt(max(rated, default=Fraction(1))):.6g}."
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


def moved_words(schedule: Schedule) -> str:
    """How far the failure of k workers moves the mean, and a join: what the fact `mean-moved` is in numbers."""
    n = schedule.num_workers
    return (
        f"A death of worker i moves the mean by (mean - x_i)/{n - 1}, a join from donor d by (x_d - mean)/{n + 1}. Let "
        "d² be the workers' mean squared distance to their mean at that instant; its usual size is what "
        "consensus-distance bounds. Then a failure of k moves the mean by the root of k/(n - k)·d² at most, and of "
        "k/((n - 1)(n - k))·d² in the mean over all such failures."
    )
