"""Compute the metrics of a schedule, each by the cheapest method for the schedule's form and size.

All functions raise ScheduleError for overlapping groups and for a strategy without fixed phases, and UndecidedError if
a rule has too many character classes or differences grow too much in a period; `metrics` reports the reason instead.

Group means with 0 ≤ relaxation ≤ 2 and rounds without negative weights never enlarge differences between workers.
Other rounds do, and the rounding errors of large differences may exceed the final difference: a relaxation of 10¹⁵
followed by an all-reduce is exact consensus, but floats give a contraction of a hundredth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError, ScheduleError, UndecidedError
from partreduce.topo.metrics.base import Drift, Kind, Metric, ScheduleMetrics, absent
from partreduce.topo.metrics.decomposition import DEFAULT, MetricLimits, hop_gap, sectors_of
from partreduce.topo.metrics.late_distance import RetimedMetrics, is_small, late_distance_like, late_distance_of
from partreduce.topo.metrics.sectors import ZERO, Sectors, contraction_of, contraction_per_start, spectral_norms
from partreduce.topo.metrics.stability import pipeline_metrics
from partreduce.topo.metrics.steady_state import Push, consensus_distance_of, drift_of
from partreduce.topo.mixing import (
    Operators,
    has_negative_entries,
    is_doubly_stochastic,
    mixing_matrix,
    mixing_sparse,
    period_product,
)
from partreduce.topo.phase import Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.schedule import Schedule

MOST_BITS = 24.0
"""The largest `growth_bits` of a schedule for which metrics are computed in floats, with eight digits left."""

LARGEST_NORM = 512
"""The most workers for which `growth_bits` computes the 2-norm of a round with negative weights, not only row sums.
"""

ACCURACY = 1e-4
"""The relative residual of the squared singular value at which scipy's `svds` stops."""
MAX_RESTARTS = 200
SOLVED = f"scipy's svds on sparse factors, to a relative residual of {ACCURACY:g}; the contraction is at least that"

MAX_START_WORK = 2**30
"""The most multiplications for which `metrics` also lists the contraction from every start."""
LARGE = absent(
    f"not found: explicit schedules have this metric up to {DEFAULT.dense_workers} workers; write the schedule as a "
    "rule"
)


def contraction(schedule: Schedule, *, start: int = 0, limit: MetricLimits = DEFAULT) -> Metric:
    """Return ‖W_T … W_1 − J‖₂ over the period from phase `start`: 0 is exact consensus, below 1 converges.

    W_t is the mixing matrix of a round, J the matrix that replaces every value by the mean of all workers. Beyond
    `limit` the result is a lower estimate.
    """
    return _contraction(schedule, _prepare(schedule, limit), start)


def radius(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> Metric:
    """Return the spectral radius of the product of a period's mixing matrices, with the mean projected out.

    It does not depend on the phase with which the period starts, and is at most the contraction.
    """
    return _exact(lambda found: found.radius, _prepare(schedule, limit))


def consensus_distance(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> Metric:
    """Return the steady-state mean squared distance to the mean under unit noise per step; infinite if divergent."""
    return _exact(consensus_distance_of, _prepare(schedule, limit))


def drift(schedule: Schedule, push: Literal["worker", "node"], *, limit: MetricLimits = DEFAULT) -> Metric:
    """Return the steady-state mean squared distance to the mean under a constant random push (heterogeneous data).

    The push is the constant bias that a worker's data add in every step, relative to the mean of all workers. `push` is
    "worker" if it is independent for each worker, "node" if the workers of a node share it; others raise InputError.
    """
    if push not in ("worker", "node"):
        raise InputError(f"drift {push!r}: there is no such push; choose worker or node")
    return _drift(_prepare(schedule, limit), push)


def late_distance(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> float:
    """Return the consensus distance under late averages, in a direction in which the loss is curved.

    It is defined in `topo.metrics.late_distance`, and 0 if no average is late. For large sectors or unequal steps per
    round it is estimated from the consensus distance, and infinite if that is unknown.
    """
    if not schedule.strategy.mixes_late:
        return 0.0
    sectors = _prepare(schedule, limit)
    return _late_distance(schedule, sectors, _exact(consensus_distance_of, sectors))


def _late_distance(schedule: Schedule, sectors: Sectors | None, flat: Metric) -> float:
    worker_steps = schedule.worker_steps()
    if sectors is not None and is_small(sectors) and worker_steps.min() == worker_steps.max():
        return late_distance_of(sectors, int(worker_steps[0]))
    if flat.value is None:
        return math.inf
    return late_distance_like(flat.value, float(worker_steps.mean()), 1 - 1 / len(worker_steps))


class Convergence(NamedTuple):
    """The metrics that decide how fast a schedule trains; `late_distance` is 0 if no average is a round late."""

    consensus_distance: Metric
    drift: Metric
    contraction: Metric
    late_distance: float = 0.0


def convergence(schedule: Schedule, push: Push, *, limit: MetricLimits = DEFAULT) -> Convergence:
    """Return the metrics in `Convergence` from one decomposition into sectors; `push` and `limit` as in `drift`."""
    sectors = _prepare(schedule, limit)
    spread = _exact(consensus_distance_of, sectors)
    late = _late_distance(schedule, sectors, spread) if schedule.strategy.mixes_late else 0.0
    return Convergence(spread, _drift(sectors, push), _contraction(schedule, sectors, 0), late)


def retime(schedule: Schedule, push: Literal["worker", "node"], *, limit: MetricLimits = DEFAULT) -> RetimedMetrics:
    """Return a schedule's metrics at 1 synchronous step per round.

    The result's methods compute from them, by formula, the metrics of the same groups with more steps per round or with
    averages one round late.

    Args:
        schedule: a synchronous schedule with steps_per_round 1.
        push: "worker" if every worker has its own bias, "node" if every node has, as in `drift`.
        limit: the sizes up to which explicit schedules have all metrics.

    Returns:
        The metrics; a metric that cannot be computed has value None and a reason.

    Raises:
        InputError: the schedule has other steps per round, or is not synchronous.
    """
    if schedule.strategy.steps_per_round != 1 or schedule.strategy.mixes_late:
        raise InputError(
            "retime: the schedule has steps_per_round 1 and is synchronous, so that other numbers of steps follow"
        )
    n, sectors = schedule.num_workers, _prepare(schedule, limit)
    shared = float((schedule.cluster.node_sizes().astype(float) ** 2).sum()) / n**2
    return RetimedMetrics(
        contraction=_contraction(schedule, sectors, 0),
        consensus_distance=_exact(consensus_distance_of, sectors),
        drift=_drift(sectors, push),
        late_drift=_drift(None if sectors is None else replace(sectors, is_delayed=True), push),
        noise=1 - 1 / n,
        push=1 - 1 / n if push == "worker" else 1 - shared,
        sectors=sectors if sectors is not None and is_small(sectors) else None,
    )


@check_arguments
def metrics(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> ScheduleMetrics:
    """Return all metrics of a schedule; a metric that cannot be computed has value None and a reason.

    Rules cost the same for any number of nodes; explicit schedules have all metrics up to `limit.dense_workers`
    workers, and beyond that an estimate of their contraction.

    Args:
        schedule: any Schedule.
        limit: the sizes up to which explicit schedules have all metrics.

    Returns:
        ScheduleMetrics, in which each Metric has a value or the reason for its absence.
    """
    period, distinct = _if_defined(lambda: schedule.period), _if_defined(schedule.num_distinct_phases)
    try:
        sectors = _prepare(schedule, limit)
    except (ScheduleError, UndecidedError) as error:
        nothing = absent(f"not {'defined' if isinstance(error, ScheduleError) else 'found'}: {error}")
        drifts = Drift(nothing, nothing)
        return ScheduleMetrics(period, schedule.num_workers, distinct, nothing, nothing, nothing, drifts, nothing)
    per_start: tuple[float, ...] = ()
    if sectors is not None:
        work = sum(b.period**2 * len(b.multiplicity) * b.size**3 for b in sectors.batches)
        per_start = contraction_per_start(sectors) if work <= MAX_START_WORK else ()
    return ScheduleMetrics(
        period=period,
        num_workers=schedule.num_workers,
        num_distinct_phases=distinct,
        contraction=_contraction(schedule, sectors, 0),
        radius=_exact(lambda found: found.radius, sectors),
        consensus_distance=_exact(consensus_distance_of, sectors),
        drift=Drift(_drift(sectors, "worker"), _drift(sectors, "node")),
        hop_gap=_hop(schedule),
        contraction_per_start=per_start,
        pipeline=pipeline_metrics(schedule),
    )


def growth_bits(schedule: Schedule) -> float:
    """Return an upper bound on log2 of the factor by which differences between workers may grow in a period.

    O(groups or edges), plus norms of rounds with negative weights.
    """
    if (rule := schedule.rule()) is not None:
        return sum(_of_groups(block.relaxation for block in phase if block.makes_groups) for phase in rule.phases)
    steps = schedule.steps()
    known = {step: _of_step(step) for step in set(steps)}
    return sum(known[step] for step in steps)


def _of_groups(factors: Iterable[Fraction]) -> float:
    """Return log2 of the 2-norm of a phase whose groups have these relaxations; 0 if all lie between 0 and 2.

    A group mean has the eigenvalues 1 and 1 − relaxation, and groups are disjoint: the norm is the largest modulus.
    """
    return max((math.log2(abs(1 - factor)) for factor in set(factors) if not 0 <= factor <= 2), default=0.0)


def _of_step(step: MixingStep) -> float:
    """Return an upper bound on log2 of the factor by which one phase or round may enlarge differences; 0 for none.

    For a round with negative weights W it is the smaller of ‖W − JW‖₂, with J the mean, and the largest row sum of |W|.
    """
    if isinstance(step, Phase):
        return _of_groups(step.relaxation or ())
    if not has_negative_entries(step):
        return 0.0
    largest, norm = float(abs(mixing_sparse(step)).sum(axis=1).max()), math.inf
    if step.num_workers <= LARGEST_NORM and largest < 2.0**MOST_BITS:
        matrix = mixing_matrix(step)
        norm = float(np.linalg.norm(matrix - matrix.mean(axis=0), 2))
    return math.log2(max(1.0, min(largest, norm)))


def _prepare(schedule: Schedule, limit: MetricLimits) -> Sectors | None:
    if (bits := growth_bits(schedule)) > MOST_BITS:
        raise UndecidedError(
            f"differences may grow by 2^{bits:.0f} in a period (a relaxation outside 0..2, or negative weights), where "
            "floats round away what is left of them; at most 2^24 are followed"
        )
    return sectors_of(schedule, limit)


def _if_defined(count: Callable[[], int]) -> int | None:
    try:
        return count()
    except ScheduleError:
        return None


def _contraction(schedule: Schedule, sectors: Sectors | None, start: int) -> Metric:
    keeps_mean = all(map(is_doubly_stochastic, set(schedule.strategy.graphs)))
    if sectors is None:
        found = _large_contraction(schedule, start)
    elif keeps_mean:
        found = Metric(contraction_of(sectors, start), Kind.EXACT, sectors.how)
    else:
        difference = period_product(schedule, start) - 1 / schedule.num_workers
        found = Metric(float(spectral_norms(difference[None])[0]), Kind.EXACT, sectors.how)
    if keeps_mean:
        return found
    return replace(found, how=f"{found.how}; a round is not doubly stochastic, so P tends to another mean than J")


def _large_contraction(schedule: Schedule, start: int) -> Metric:
    """Return a lower estimate of the contraction ‖P − J‖₂, P the product of the period's matrices from phase `start`.

    Lanczos applies the T factors of P one by one. The metric is absent if it does not converge. O(steps · T · n).
    """
    from scipy.sparse.linalg import ArpackNoConvergence, aslinearoperator, svds

    n = schedule.num_workers
    mean = aslinearoperator(np.full((n, 1), 1 / n)) @ aslinearoperator(np.ones((1, n)))
    off_mean = Operators(schedule.steps()).period_operator(start) - mean
    probe = np.random.default_rng(0).standard_normal(n)
    if np.linalg.norm(off_mean @ probe) <= ZERO * np.linalg.norm(probe):  # svds needs a largest value above rounding
        return Metric(0.0, Kind.ESTIMATE, SOLVED)
    try:
        norms = svds(off_mean, k=1, tol=ACCURACY, v0=probe, maxiter=MAX_RESTARTS, return_singular_vectors=False)
    except ArpackNoConvergence:
        return absent(f"not found: scipy's svds did not converge in {MAX_RESTARTS} restarts")
    return Metric(float(norms[0]), Kind.ESTIMATE, SOLVED)


def _exact(find: Callable[[Sectors], float], sectors: Sectors | None) -> Metric:
    """Return `find(sectors)` as an exact metric; an absent one if `sectors` is None, for a schedule too large."""
    if sectors is None:
        return LARGE
    value, how = find(sectors), sectors.how
    if math.isinf(value):
        how += "; infinite: the radius is 1 or more to rounding, so workers agree too slowly or never"
    return Metric(value, Kind.EXACT, how)


def _drift(sectors: Sectors | None, push: Push) -> Metric:
    if sectors is not None and push == "node" and any(batch.node_columns is None for batch in sectors.batches):
        return absent("not found: too many pairs of workers share a node")
    return _exact(partial(drift_of, push=push), sectors)


def _hop(schedule: Schedule) -> Metric:
    """Return `hop_gap` of a schedule with a single graph as a metric; for others an absent one, with a reason."""
    graphs = schedule.strategy.graphs
    if len(graphs) != 1:
        return absent("not defined: the hop gap belongs to a fixed graph, and here the partners change with the phase")
    try:
        return Metric(hop_gap(graphs[0]), Kind.EXACT, "eigenvalues of the graph")
    except InputError as error:
        return absent(f"not found: {error}")
