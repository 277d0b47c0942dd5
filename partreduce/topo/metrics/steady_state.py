"""Steady-state metrics of a schedule: consensus distance, in floats or as a fraction, and drift.

All instants of a period count equally. In the whole package, `off the mean` means with the mean's direction projected
out. Stacks have the shape (C, g, g) or (C, g, k) for the C sectors of size g of one batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic import lyapunov
from partreduce.topo.arithmetic.exact_matrices import ExactMatrix
from partreduce.topo.errors import InputError
from partreduce.topo.metrics.decomposition import merged_classes, rule_and_worker_steps, rule_sectors
from partreduce.topo.metrics.sectors import NEVER, Batch, Sectors, adjoint, group_worker_steps, traces
from partreduce.topo.mixing import Operators, may_lengthen
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Averaging

Push = Literal["worker", "node"]

NEGLIGIBLE = 1e-18
"""A power of a period's matrix counts as zero if all its entries are at most this."""
MAX_LOCAL = 8
"""The most local ranks g for which `exact_consensus_distance` solves its system of g(g+1)/2 unknown fractions."""


def consensus_distance_of(sectors: Sectors) -> float:
    """Return the consensus distance: tr Σ / n averaged over all instants; infinite if workers never converge.

    Σ is the steady-state covariance of the workers' distances to their mean. Every worker adds independent unit noise
    in every step, D in a round; Σ solves the periodic Lyapunov equation Σ ← W(Σ + D)Wᵀ, or with delayed averages
    Σ ← WΣWᵀ + D, with the mean projected out. O(Σ C g³ log(1/gap)) for gap = 1 − `sectors.radius`.
    """
    if sectors.radius >= NEVER:
        return math.inf
    total = 0.0
    for batch in sectors.batches:
        made = after_period(batch, np.zeros_like(batch.matrices[0]), is_delayed=sectors.is_delayed)
        steady = lyapunov.steady_state(batch.product(), made, negligible=NEGLIGIBLE)
        assert np.abs(steady.remainder).max() <= NEGLIGIBLE, "the radius was checked to be below 1"
        total += noise_traces(batch, steady.covariance, is_delayed=sectors.is_delayed)
    return max(0.0, total) / sectors.num_workers  # rounding may leave a slightly negative mean square


def noise_traces(batch: Batch, covariance: npt.NDArray[Any], *, is_delayed: bool) -> float:
    """Return tr Σ averaged over a period's instants and summed over the batch's C sectors, times their multiplicity.

    Σ is the covariance of the workers' differences; `covariance` (C, g, g) is that before phase 0.
    """
    inner = traces(batch.off_mean_diagonal(batch.round_steps.partial))
    instants = batch.round_steps.instants
    total, before = np.zeros(len(batch.multiplicity)), traces(covariance)
    for after in map(traces, _covariances(batch, covariance, is_delayed=is_delayed)):
        # Inside the round W has not acted yet: its instants have the covariance before it plus the steps made so far.
        total += (instants - 1) * before + inner + after
        before = after
    return float(batch.multiplicity @ total) / (batch.period * instants)


def after_period(batch: Batch, covariance: npt.NDArray[Any], *, is_delayed: bool) -> npt.NDArray[Any]:
    """Return the covariance (C, g, g) after one period with its noise, from the covariance before phase 0."""
    for after in _covariances(batch, covariance, is_delayed=is_delayed):
        covariance = after
    return covariance


def _covariances(batch: Batch, covariance: npt.NDArray[Any], *, is_delayed: bool) -> Iterator[npt.NDArray[Any]]:
    """Yield the covariance after each round of a period, from that before phase 0; noise acts off the mean."""
    for matrix, noise in zip(batch.matrices, map(batch.off_mean_diagonal, batch.round_steps.noise), strict=True):
        covariance = after_noise(covariance, matrix, adjoint(matrix), noise, is_delayed=is_delayed)
        yield covariance


def after_noise(covariance: Any, matrix: Any, turned: Any, noise: Any, *, is_delayed: bool) -> Any:  # noqa: ANN401
    """Return the covariance after one round: W(Σ + D)Wᴴ or, if `is_delayed`, WΣWᴴ + D; float stacks or ExactMatrix.

    Σ = `covariance` before the round, D = `noise`, W = `matrix`, and `turned` is its adjoint Wᴴ.
    """
    return matrix @ covariance @ turned + noise if is_delayed else matrix @ (covariance + noise) @ turned


def drift_of(sectors: Sectors, push: Push) -> float:
    """Return the drift: E‖z − mean‖²/n averaged over instants; infinite if workers never converge. O(Σ C g³).

    Heterogeneous data push each worker constantly: z ← W(z + steps_per_round·b) (delayed: z ← Wz + steps_per_round·b)
    for a constant random b of mean zero and unit variance, for `push` "worker" independent per worker, for "node" equal
    for all workers of a node.
    """
    if sectors.radius >= NEVER:
        return math.inf
    total = sum(_push_squares(batch, push, is_delayed=sectors.is_delayed) for batch in sectors.batches)
    return max(0.0, total) / sectors.num_workers  # rounding, see `consensus_distance_of`


def _push_squares(batch: Batch, push: Push, *, is_delayed: bool) -> float:
    count, size = len(batch.multiplicity), batch.size
    columns: npt.NDArray[Any] | None = batch.node_columns
    if push == "worker":
        columns = np.broadcast_to(np.eye(size), (count, size, size))
    assert columns is not None, "asked for where they are known"
    pushes = [batch.off_mean(push[:, None] * columns) for push in batch.round_steps.push]

    def rounds(state: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        for matrix, move in zip(batch.matrices, pushes, strict=True):
            state = matrix @ state + move if is_delayed else matrix @ (state + move)
            yield state

    state = np.zeros_like(batch.matrices[0] @ pushes[0])
    for after in rounds(state):
        state = after
    state = np.linalg.solve(np.eye(size) - batch.product(), state)
    instants = batch.round_steps.instants
    inner = batch.off_mean(batch.round_steps.partial[:, None] * columns)
    constant = _inner_squares(batch, columns)
    total = np.zeros(count)
    for after in rounds(state):
        total += (instants - 1) * _squares(state) + 2 * (state.conj() * inner).sum(axis=(-2, -1)).real + constant
        total += _squares(after)
        state = after
    return float(batch.multiplicity @ total) / (batch.period * instants)


def _inner_squares(batch: Batch, columns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return Σ_s ‖Π F_s U‖² over the inner instants s of a round, per sector, from `RoundSteps.gram`.

    F_s = diag(steps taken by instant s), U = `columns`, and Π projects the mean out.
    """
    gram = batch.round_steps.gram
    whole = (np.abs(columns) ** 2).sum(axis=-1) @ np.diag(gram)
    along = batch.mean.conj()[:, :, None] * columns
    return np.asarray(whole - (along.conj() * (gram @ along)).sum(axis=(-2, -1)).real)


def _squares(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray((np.abs(stack) ** 2).sum(axis=(-2, -1)), dtype=np.float64)


def exact_consensus_distance(schedule: Schedule) -> Fraction | None:
    """Return the consensus distance of a rule (groups given by node digits) exactly; None if workers never converge.

    O(classes · G⁶) operations on fractions for G local ranks. Raises InputError for schedules that are no rules, and
    for more than 8 local ranks; `consensus_distance` has neither limit.
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
    if may_lengthen(schedule):
        # Only such factors can make a norm exceed 1; then the linear system alone would not detect divergence.
        sectors = rule_sectors(schedule)
        if sectors is None or sectors.radius >= NEVER:
            return None
    classes = merged_classes(rule)
    operators = Operators.of_rule(rule, [merged.digits for merged in classes])
    steps = np.array([Fraction(count) for count in worker_steps], dtype=object)
    noise = np.tile(steps, (len(rule.phases), 1))
    if schedule.mixing.averaging is Averaging.STEP_NORMALIZED:
        noise = group_worker_steps(operators.rounds, steps) ** 2 / steps
    most, total = max(worker_steps), Fraction(0)
    inner = [Fraction(s * count // most) for s in range(1, most) for count in worker_steps]
    for which, merged in enumerate(classes):
        size, center = operators.size, Fraction(int(merged.holds_mean), operators.size)
        off_mean = ExactMatrix.identity(size).plus(-center)
        matrices = [operators.exact(t, which).plus(-center) for t in range(len(noise))]
        noises = [off_mean @ ExactMatrix.diagonal(row) @ off_mean for row in noise]
        trace = _exact_traces(matrices, noises, sum(inner, Fraction(0)) * (1 - center), most, schedule)
        if trace is None:
            return None
        total += merged.multiplicity * trace
    return total / (len(noise) * most * rule.num_nodes * rule.workers_per_node)


def _exact_traces(
    matrices: list[ExactMatrix], noises: list[ExactMatrix], inner: Fraction, instants: int, schedule: Schedule
) -> Fraction | None:
    """Return the sum of tr Σ over a period's instants for one class of functions of a rule; None if no Σ is unique.

    Σ is the stationary covariance of the workers' differences; a round has `instants` instants.

    `matrices` are the rounds' W on the class, `noises` the noise of each round, `inner` the sum of tr D over the
    `instants` − 1 instants inside a round, D the noise up to each. Σ is not unique if some differences never decay.
    """
    is_delayed, size = schedule.mixing.mixes_late, matrices[0].size
    product, covariance = ExactMatrix.identity(size), ExactMatrix.identity(size).scaled(Fraction(0))
    for matrix, noise in zip(matrices, noises, strict=True):
        product = (matrix @ product).reduced()
        covariance = after_noise(covariance, matrix, matrix.transposed, noise, is_delayed=is_delayed).reduced()
    found = lyapunov.exact_steady_state(product, covariance)
    if found is None:
        return None
    total = Fraction(0)
    for matrix, noise in zip(matrices, noises, strict=True):
        total += (instants - 1) * found.trace() + inner
        found = after_noise(found, matrix, matrix.transposed, noise, is_delayed=is_delayed).reduced()
        total += found.trace()
    return total
