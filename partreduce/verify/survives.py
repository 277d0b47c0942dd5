"""Claim `survives`: after every loss that contingencies are for, survivors reach consensus, and how fast.

One loss of each class is looked at (`topo.losses`). What remains of a rule acts, on functions that differ between nodes
outside the digits of lost ones, as the undisturbed rule does; on all others its matrix is one of *cells*: a local rank
on the nodes that have the same digits of lost nodes. verify/checker/claims/survives.py has the proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, combinations
from itertools import product as settings
from math import comb, lcm, prod, sqrt
from typing import Any

import numpy as np

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix, semidefinite_pivots
from partreduce.topo.contingency import Contingency, Survivors, after_loss
from partreduce.topo.losses import MAX_NODES, Loss, Symmetries, losses_of_nodes
from partreduce.topo.rule import RuleView, digit_of, strides_of
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import RulePhases
from partreduce.verify.base import Claim, not_proved, proved, refuted, some
from partreduce.verify.classes import MAX_DIGITS, MAX_SIZE, class_product
from partreduce.verify.consensus import GROUND, class_groups, tree_of_groups
from partreduce.verify.contraction import candidates, least_square
from partreduce.verify.view import contracts, is_tame

NAME, MOVED = "survives", "mean-moved"
ASKED = 2**20
"""Lines of all answers up to which the installed code is asked about every loss, as the checker counts them."""
MAX_CELLS = 2 * 10**7
"""Cells of all contingencies, in all phases, up to which they are looked at."""
MAX_RATED, MAX_RATES = 48, 4 * 10**6
"""Cells of a contingency whose rate is proved, and the sum of their cubes over all of them."""


def prove_survives(schedule: Schedule) -> Claim:
    """Prove that contingencies cover whole classes and work, or refute it by a loss.

    Rules: independent of the number of nodes. Listed groups: O(classes · period · n).
    """
    covered = Covered.of(schedule)
    if covered.missing is not None:
        text = f"no contingency is for the loss of {some(covered.missing)}, though others are for as many workers."
        return refuted(NAME, text, {"lost": list(covered.missing)})
    if covered.beyond is not None:
        text = f"{some(covered.beyond)} is not the smallest loss of a class, or losses of as many are not covered."
        return refuted(NAME, text, {"lost": list(covered.beyond)})
    bounds: list[Fraction] = []
    cells, budget = MAX_CELLS, MAX_RATES
    undisturbed = _Known({}, {})
    for contingency in schedule.contingencies:
        if contingency.groups is Survivors.ALL or schedule.strategy.averages_everyone:
            bounds.append(Fraction(0))
            continue
        cells -= _cells(schedule, contingency)
        if cells < 0:
            text = (
                f"the survivors of all {len(schedule.contingencies)} classes of losses have too many cells to look at."
            )
            return not_proved(NAME, text)
        runs = _Runs.of(schedule, contingency)
        known = _Known({}, {}) if isinstance(contingency.groups, RulePhases) else undisturbed
        if apart := runs.apart(known):
            text = f"after the loss of {some(contingency.lost)} survivors do not agree: {apart}."
            return refuted(NAME, text, {"lost": list(contingency.lost)})
        size = len(runs.sizes)
        is_rated = size <= MAX_RATED and size**3 <= budget and runs.is_small
        budget -= size**3 if is_rated else 0
        bounds.append(runs.least_square(known) if is_rated else Fraction(1))
    return _survives(schedule, covered, bounds)


def apart_after(schedule: Schedule) -> dict[Loss, str]:
    """The contingencies whose survivors do not agree, and why not, as a clause; none has a rule of its own."""
    undisturbed, result = _Known({}, {}), {}
    for contingency in schedule.contingencies:
        if contingency.groups is not Survivors.ALL and (why := _Runs.of(schedule, contingency).apart(undisturbed)):
            result[contingency.lost] = why
    return result


def _cells(schedule: Schedule, contingency: Contingency) -> int:
    """At most so many cells a contingency has, in all its phases."""
    lost, groups = contingency.lost, contingency.groups
    if isinstance(groups, Survivors) and (rule := schedule.rule(by_node=True)) is not None:
        nodes = len({worker // rule.workers_per_node for worker in lost})
        return rule.workers_per_node * len(rule.phases) * prod(min(radix, nodes + 1) for radix in rule.radices)
    return schedule.num_workers * (schedule.period if isinstance(groups, Survivors) else len(groups))


@dataclass(frozen=True, slots=True)
class Covered:
    """Losses of up to `workers` workers, and of one node where `nodes` is 1, have contingencies.

    `missing` is a class that has none, `beyond` a contingency for no such class.
    """

    workers: int
    nodes: int
    missing: Loss | None = None
    beyond: Loss | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Covered:
        """As many workers as all losses of which are planned, and nodes if those of all are."""
        symmetries, n = Symmetries.of(schedule), schedule.num_workers
        nodes = set(losses_of_nodes(schedule, symmetries))
        planned = {contingency.lost for contingency in schedule.contingencies}
        needed: set[Loss] = set()
        most = 0
        while most < min(MAX_NODES, n - 2):
            classes = set(symmetries.classes(most + 1, most=len(planned)))
            if not classes <= planned:
                break
            most, needed = most + 1, needed | classes
        of_nodes = int(bool(nodes) and nodes <= planned | needed)
        if of_nodes:
            needed |= nodes
        beyond = min(planned - needed, key=_by_size, default=None)
        if beyond is None or symmetries.representative(beyond) != beyond:
            return cls(most, of_nodes, beyond=beyond)
        losses = chain.from_iterable(
            symmetries.classes(count, most=len(planned)) for count in range(most + 1, len(beyond) + 1)
        )
        absent = (nodes if beyond in nodes else set(losses)) - planned
        return cls(most, of_nodes, missing=min(absent, key=_by_size, default=None), beyond=beyond)

    def losses(self, schedule: Schedule) -> Iterator[Loss]:
        """All of them, smaller ones first and then in order; last those of larger nodes."""
        n, cluster = schedule.num_workers, schedule.cluster
        for count in range(1, self.workers + 1):
            yield from combinations(range(n), count)
        for node in map(cluster.workers_of, range(cluster.num_nodes if self.nodes else 0)):
            if len(node) > self.workers and n - len(node) >= 2:
                yield tuple(sorted(node))

    @property
    def words(self) -> str:
        """As a sentence says it."""
        workers = f"{'up to ' * (self.workers > 1)}{self.workers} worker{'s' * (self.workers > 1)}"
        return " or ".join([workers] * bool(self.workers) + ["one node"] * self.nodes)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the undisturbed rule: digits along which it leaves parts apart, bounds by free digits."""

    apart: dict[int, bool]
    bounds: dict[tuple[int, ...], Fraction]


@dataclass(frozen=True, slots=True)
class _Runs:
    """What survivors run, on cells of `sizes` workers; a group of a phase is (cells, relax).

    `rule` is there where functions outside the cells are those of a rule, which vary along `free` digits.
    """

    sizes: tuple[int, ...]
    phases: tuple[tuple[tuple[list[int], Fraction], ...], ...]
    rule: RuleView | None
    free: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule, contingency: Contingency) -> _Runs:
        """Of one contingency, for its own loss."""
        lost, groups = contingency.lost, contingency.groups
        if isinstance(groups, RulePhases):
            return cls._of_rule(groups.view(schedule.cluster.without(lost)).canonical, ())
        if isinstance(groups, Survivors) and (rule := schedule.rule(by_node=True)) is not None:
            return cls._of_rule(rule.canonical, lost)
        found = after_loss(replace(schedule, contingencies=(contingency,)), lost)
        phases = (
            tuple((list(group.members), group.relax) for group in phase)
            for phase in map(found.phase, range(found.period))
        )
        return cls((1,) * found.num_workers, tuple(phases), None, ())

    @classmethod
    def _of_rule(cls, rule: RuleView, lost: Loss) -> _Runs:
        size, strides = rule.workers_per_node, strides_of(rule.radices)
        nodes = sorted({worker // size for worker in lost})
        used = [
            sorted({digit_of(node, stride, radix) for node in nodes})
            for stride, radix in zip(strides, rule.radices, strict=True)
        ]
        # (value, workers that have it) for each digit; -1 is any value outside those of lost nodes
        parts = [
            [*((value, 1) for value in values), *([(-1, radix - len(values))] if radix > len(values) else [])]
            for values, radix in zip(used, rule.radices, strict=True)
        ]
        gone = {
            (tuple(digit_of(w // size, s, r) for s, r in zip(strides, rule.radices, strict=True)), w % size)
            for w in lost
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
            relax: dict[tuple[object, ...], Fraction] = {}
            for (digits, rank), cell in cells.items():
                for number, block in enumerate(phase):
                    if rank in block.local:
                        kept = (number, *(value for d, value in enumerate(digits) if d not in block.across))
                        groups.setdefault(kept, []).append(cell)
                        relax[kept] = block.relax
            phases.append(tuple((members, relax[kept]) for kept, members in groups.items()))
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
            {block.relax for phase in self.rule.phases for block in phase if block.makes_groups} if self.rule else set()
        )
        relaxes |= {relax for phase in self.phases for members, relax in phase if len(members) > 1}
        if not all(map(is_tame, relaxes)):
            return "a group has relax < 0 or relax >= 2, so that meeting is not enough"
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

        joined = [members for phase in self.phases for members, relax in phase if contracts(relax)]
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
            factor = lcm(1, *(relax.denominator * total for (_, relax), total in zip(phase, totals, strict=True)))
            numerators = product.numerators * factor
            for (members, relax), total in zip(phase, totals, strict=True):
                before = product.numerators[members]
                mean = (sizes[members][:, None] * before).sum(axis=0) * int(relax * factor / total)
                numerators[members] = int((1 - relax) * factor) * before + mean
            product = ExactMatrix(numerators, product.denominator * factor).reduced()
        everybody = sum(self.sizes)
        mean_of_all = ExactMatrix(np.tile(sizes, (len(sizes), 1)), everybody)
        return product - mean_of_all


def _by_size(lost: Loss) -> tuple[int, Loss]:
    return len(lost), lost


def _survives(schedule: Schedule, covered: Covered, bounds: Sequence[Fraction]) -> Claim:
    n, kept = schedule.num_workers, len(schedule.contingencies)
    entry: dict[str, Any] = {"workers": covered.workers, "nodes": covered.nodes, "squared": list(map(str, bounds))}
    rated = [bound for bound in bounds if bound < 1]
    text = (
        f"After every loss of {covered.words} the survivors' groups join them all. One loss was looked at of each of "
        f"{kept} class{'es' * (kept > 1)} of losses that symmetries map to one another; of {len(rated)} of them it is "
        f"proved how much a period leaves of differences: at most {sqrt(max(rated, default=Fraction(1))):.6g}."
    )
    periods = [1 if isinstance(one.groups, Survivors) else len(one.groups) for one in schedule.contingencies]
    losses = sum(comb(n, count) for count in range(1, covered.workers + 1)) + schedule.cluster.num_nodes * covered.nodes
    if losses * n * max(schedule.period, *periods) > ASKED:
        text += (
            " There are too many losses to ask the installed code about each; that it does as the file says is assumed."
        )
        return proved(NAME, text, **entry, answers="")
    lines = hashlib.sha256()
    for lost in covered.losses(schedule):
        found = after_loss(schedule, lost)
        for phase in map(found.phase, range(found.period)):
            home = {worker: f"{group.members[0]} {group.relax}\n" for group in phase for worker in group.members}
            lines.update("".join(home.get(worker, "-\n") for worker in range(found.num_workers)).encode())
    text += " The installed code was asked about every one, and the checker compares what it answered."
    return proved(NAME, text, **entry, answers=lines.hexdigest())


def moved_words(schedule: Schedule) -> str:
    """How far the loss of k workers moves the mean, and a join: what the fact `mean-moved` is in numbers."""
    n = schedule.num_workers
    return (
        f"A death of worker i moves the mean by (mean - x_i)/{n - 1}, a join from donor d by (x_d - mean)/{n + 1}. Let "
        "d² be the workers' mean squared distance to their mean at that instant; its usual size is what "
        "consensus-distance bounds. Then a loss of k moves the mean by the root of k/(n - k)·d² at most, and of "
        "k/((n - 1)(n - k))·d² in the mean over all such losses."
    )
