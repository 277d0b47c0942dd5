"""The consensus distance of rule schedules as a fraction."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix
from partreduce.topo.arithmetic.lyapunov import exact_steady_state
from partreduce.topo.errors import InputError
from partreduce.topo.metrics.classes import MergedClass, merged_classes, rule_and_worker_steps, rule_sectors
from partreduce.topo.metrics.sectors import NEVER, radius_of
from partreduce.topo.rule import RulePhase, RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging

MAX_LOCAL = 8
"""Local ranks up to which the exact consensus distance is solved: its system has g(g+1)/2 unknown fractions."""


def exact_consensus_distance(schedule: Schedule) -> Fraction | None:
    """The consensus distance of a rule schedule as a fraction, None if the workers never converge.

    O(classes · G⁶) fraction operations, so for at most 8 local ranks; `consensus_distance` has no such limit.

    Raises:
        InputError: the schedule is no rule, or has more than 8 local ranks.
    """
    known = rule_and_worker_steps(schedule)
    if known is None:
        raise InputError(
            f"schedule {schedule.name!r}: is no rule with one number of steps per local rank; exact_product works "
            "for it"
        )
    rule, worker_steps = known
    if rule.workers_per_node > MAX_LOCAL:
        raise InputError(
            f"exact consensus distance: {rule.workers_per_node} workers per node; at most {MAX_LOCAL} are solved in "
            "fractions; use consensus distance"
        )
    if any(not 0 <= block.relaxation <= 2 for phase in rule.phases for block in phase):
        # Only such factors can make a norm exceed 1; then the linear system alone would not notice divergence.
        sectors = rule_sectors(schedule)
        if sectors is None or radius_of(sectors) >= NEVER:
            return None
    total = Fraction(0)
    for merged in merged_classes(rule):
        trace = _class_trace(merged, rule, worker_steps, schedule)
        if trace is None:
            return None
        total += merged.multiplicity * trace
    return total / (rule.num_nodes * rule.workers_per_node)


def class_matrix(phase: RulePhase, digits: Collection[int], size: int) -> ExactMatrix:
    """The matrix of a phase on characters not trivial on these digits, (size, size), the mean not removed."""
    met = set(digits)
    return ExactMatrix.identity(size).averaged(
        (b.local, b.relaxation, not met & set(b.across)) for b in phase if b.makes_groups
    )


def _class_trace(
    merged: MergedClass, rule: RuleView, worker_steps: tuple[int, ...], schedule: Schedule
) -> Fraction | None:
    """The average over instants of tr Σ on one class; None if Σ ← PΣPᵀ has a fixed point besides 0."""
    size, instants = rule.workers_per_node, max(worker_steps)
    center = Fraction(1, size) if merged.holds_mean else Fraction(0)
    off_mean = ExactMatrix.identity(size).plus(-center)
    matrices = [class_matrix(phase, merged.digits, size).plus(-center) for phase in rule.phases]
    noises = [off_mean @ ExactMatrix.diagonal(diagonal) @ off_mean for diagonal in _noise(rule, worker_steps, schedule)]
    is_delayed = schedule.mixing.mixes_late
    product, pushed = ExactMatrix.identity(size), ExactMatrix.identity(size).scaled(Fraction(0))
    for matrix, noise in zip(matrices, noises, strict=True):
        product, pushed = (matrix @ product).reduced(), _advance(pushed, matrix, noise, is_delayed=is_delayed)
    covariance = exact_steady_state(product, pushed)
    if covariance is None:
        return None
    inner = sum(
        (Fraction(s * steps_per_round // instants) for s in range(1, instants) for steps_per_round in worker_steps),
        Fraction(0),
    ) * (1 - center)
    total = Fraction(0)
    for matrix, noise in zip(matrices, noises, strict=True):
        total += (instants - 1) * covariance.trace() + inner
        covariance = _advance(covariance, matrix, noise, is_delayed=is_delayed)
        total += covariance.trace()
    return total / (len(matrices) * instants)


def _noise(rule: RuleView, worker_steps: tuple[int, ...], schedule: Schedule) -> list[list[Fraction]]:
    """The variance that every local rank adds in a round, for each phase."""
    result = []
    for phase in rule.phases:
        diagonal = [Fraction(steps_per_round) for steps_per_round in worker_steps]
        if schedule.mixing.averaging is Averaging.STEP_NORMALIZED:
            for block in phase:
                mean = Fraction(sum(worker_steps[rank] for rank in block.local), len(block.local))
                for rank in block.local:
                    diagonal[rank] = mean * mean / worker_steps[rank]
        result.append(diagonal)
    return result


def _advance(covariance: ExactMatrix, matrix: ExactMatrix, noise: ExactMatrix, *, is_delayed: bool) -> ExactMatrix:
    before = covariance if is_delayed else covariance + noise
    after = matrix @ before @ matrix.transposed
    return (after + noise if is_delayed else after).reduced()
