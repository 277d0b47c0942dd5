"""Figures of rule schedules as fractions: the class matrices for proofs, and the disagreement itself."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from preduce.topo.errors import InputError
from preduce.topo.figures.classes import MergedClass, merged_classes, rule_and_paces, rule_sectors
from preduce.topo.figures.rate import NEVER, radius_of
from preduce.topo.strategies.base import Averaging

if TYPE_CHECKING:
    from preduce.topo.rule import RulePhase, RuleView
    from preduce.topo.schedule import Schedule

Matrix = tuple[tuple[Fraction, ...], ...]

MAX_LOCAL = 8
"""Local ranks up to which the exact disagreement is solved: its system has g(g+1)/2 unknown fractions."""


@dataclass(frozen=True, slots=True)
class ExactClass:
    """One merged character class: its G×G matrix in every phase, the mean *not* removed.

    The class that holds the mean is the trivial character alone; subtract 1/G from each entry to take the mean out.
    """

    digits: tuple[int, ...]
    multiplicity: int
    holds_mean: bool
    matrices: tuple[Matrix, ...]


def exact_class_matrices(schedule: Schedule) -> tuple[ExactClass, ...]:
    """The matrices that describe a rule schedule completely, for any number of nodes. O(classes · T · G²).

    Raises:
        InputError: the schedule is no rule (explicit groups, uneven nodes, paces that differ between nodes).
        ScheduleError: two blocks of one phase share a local rank.
        UnknownError: too many classes.
    """
    rule, _ = _rule(schedule)
    return tuple(
        ExactClass(
            merged.digits,
            merged.multiplicity,
            merged.holds_mean,
            tuple(_class_matrix(phase, merged, rule.workers_per_node) for phase in rule.phases),
        )
        for merged in merged_classes(rule)
    )


def exact_disagreement(schedule: Schedule) -> Fraction | None:
    """The disagreement of a rule schedule as a fraction, None if the workers never converge.

    O(classes · G⁶) fraction operations, so for at most 8 local ranks; `disagreement` has no such limit.

    Raises:
        InputError: the schedule is no rule, or has more than 8 local ranks.
    """
    rule, paces = _rule(schedule)
    if rule.workers_per_node > MAX_LOCAL:
        raise InputError(
            f"exact disagreement: {rule.workers_per_node} workers per node; at most {MAX_LOCAL} are solved in "
            "fractions; use disagreement"
        )
    if any(not 0 <= block.relax <= 2 for phase in rule.phases for block in phase):
        # Only such factors can make a norm exceed 1; then the linear system alone would not notice divergence.
        sectors = rule_sectors(schedule)
        if sectors is None or radius_of(sectors) >= NEVER:
            return None
    total = Fraction(0)
    for cls in exact_class_matrices(schedule):
        trace = _class_trace(cls, rule, paces, schedule)
        if trace is None:
            return None
        total += cls.multiplicity * trace
    return total / (rule.num_nodes * rule.workers_per_node)


def _rule(schedule: Schedule) -> tuple[RuleView, tuple[int, ...]]:
    known = rule_and_paces(schedule)
    if known is None:
        raise InputError(
            f"schedule {schedule.name!r}: is no rule with one pace per local rank; exact_mixing_matrix works for it"
        )
    return known


def _class_matrix(phase: RulePhase, merged: MergedClass, size: int) -> Matrix:
    rows = [[Fraction(int(i == j)) for j in range(size)] for i in range(size)]
    for block in phase:
        share = Fraction(0) if tuple(sorted(block.across)) in merged.met else block.relax / len(block.local)
        for i in block.local:
            rows[i][i] = 1 - block.relax
            for j in block.local:
                rows[i][j] += share
    return tuple(tuple(row) for row in rows)


def _class_trace(cls: ExactClass, rule: RuleView, paces: tuple[int, ...], schedule: Schedule) -> Fraction | None:
    """The average over instants of tr Σ on one class; None if Σ ← PΣPᵀ has a fixed point besides 0."""
    size, instants = rule.workers_per_node, max(paces)
    centre = Fraction(1, size) if cls.holds_mean else Fraction(0)
    matrices = [_shifted(matrix, centre) for matrix in cls.matrices]
    noises = [_off_mean(diagonal, centre) for diagonal in _noise(rule, paces, schedule)]
    overlap = schedule.mixing.overlap
    product, pushed = _identity(size), _zero(size)
    for matrix, noise in zip(matrices, noises, strict=True):
        product, pushed = _multiply(matrix, product), _advance(pushed, matrix, noise, overlap=overlap)
    covariance = _solve_stein(product, pushed)
    if covariance is None:
        return None
    inner = sum((Fraction(s * pace // instants) for s in range(1, instants) for pace in paces), Fraction(0)) * (
        1 - centre
    )
    total = Fraction(0)
    for matrix, noise in zip(matrices, noises, strict=True):
        total += (instants - 1) * _trace(covariance) + inner
        covariance = _advance(covariance, matrix, noise, overlap=overlap)
        total += _trace(covariance)
    return total / (len(matrices) * instants)


def _noise(rule: RuleView, paces: tuple[int, ...], schedule: Schedule) -> list[list[Fraction]]:
    result = []
    for phase in rule.phases:
        diagonal = [Fraction(pace) for pace in paces]
        if schedule.mixing.averaging is Averaging.STEP_NORMALISED:
            for block in phase:
                mean = Fraction(sum(paces[rank] for rank in block.local), len(block.local))
                for rank in block.local:
                    diagonal[rank] = mean * mean / paces[rank]
        result.append(diagonal)
    return result


def _solve_stein(product: Matrix, right: Matrix) -> Matrix | None:
    """The symmetric Σ with Σ = PΣPᵀ + R, by elimination over its upper triangle; None if there is not exactly one.

    The system is singular iff two eigenvalues of P have product 1: for ‖P‖ ≤ 1 that is, iff its radius is 1.
    """
    size = len(product)
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    rows = []
    for i, j in pairs:
        row = []
        for k, m in pairs:
            image = product[i][k] * product[j][m]
            if k != m:
                image += product[i][m] * product[j][k]
            row.append(Fraction(int((i, j) == (k, m))) - image)
        rows.append([*row, right[i][j]])
    values = _eliminate(rows)
    if values is None:
        return None
    found = dict(zip(pairs, values, strict=True))
    return tuple(tuple(found[min(i, j), max(i, j)] for j in range(size)) for i in range(size))


def _eliminate(rows: list[list[Fraction]]) -> list[Fraction] | None:
    count = len(rows)
    for column in range(count):
        pivot = next((r for r in range(column, count) if rows[r][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column][column]
        rows[column] = [value / lead if value else value for value in rows[column]]
        for r in range(count):
            factor = rows[r][column]
            if r != column and factor:
                rows[r] = [a - factor * b if b else a for a, b in zip(rows[r], rows[column], strict=True)]
    return [row[-1] for row in rows]


def _advance(covariance: Matrix, matrix: Matrix, noise: Matrix, *, overlap: bool) -> Matrix:
    if overlap:
        return _add(_conjugate(matrix, covariance), noise)
    return _conjugate(matrix, _add(covariance, noise))


def _conjugate(matrix: Matrix, inner: Matrix) -> Matrix:
    transposed = tuple(zip(*matrix, strict=True))
    return _multiply(_multiply(matrix, inner), transposed)


def _multiply(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right, strict=True))
    return tuple(
        tuple(sum((a * b for a, b in zip(row, column, strict=True) if a and b), Fraction(0)) for column in columns)
        for row in left
    )


def _add(left: Matrix, right: Matrix) -> Matrix:
    return tuple(tuple(a + b for a, b in zip(x, y, strict=True)) for x, y in zip(left, right, strict=True))


def _shifted(matrix: Matrix, centre: Fraction) -> Matrix:
    return tuple(tuple(value - centre for value in row) for row in matrix)


def _off_mean(diagonal: list[Fraction], centre: Fraction) -> Matrix:
    """(I − cE) diag(d) (I − cE) with E all ones."""
    size, total = len(diagonal), sum(diagonal, Fraction(0))
    return tuple(
        tuple(
            (diagonal[i] if i == j else Fraction(0)) - centre * (diagonal[i] + diagonal[j]) + centre * centre * total
            for j in range(size)
        )
        for i in range(size)
    )


def _identity(size: int) -> Matrix:
    return tuple(tuple(Fraction(int(i == j)) for j in range(size)) for i in range(size))


def _zero(size: int) -> Matrix:
    return tuple((Fraction(0),) * size for _ in range(size))


def _trace(matrix: Matrix) -> Fraction:
    return sum((matrix[i][i] for i in range(len(matrix))), Fraction(0))
