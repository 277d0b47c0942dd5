"""The metrics of a schedule, each by the cheapest method that fits its form and size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError, ScheduleError, UndecidedError
from partreduce.topo.metrics.base import Drift, Kind, Metric, ScheduleMetrics, absent
from partreduce.topo.metrics.decomposition import DEFAULT, MetricLimits, sectors_of
from partreduce.topo.metrics.growth import check_growth
from partreduce.topo.metrics.hop_gap import hop_gap
from partreduce.topo.metrics.large import large_contraction
from partreduce.topo.metrics.late_distance import is_small, late_distance_like, late_distance_of
from partreduce.topo.metrics.pipeline import pipeline_metrics
from partreduce.topo.metrics.retimed import Retimed
from partreduce.topo.metrics.sectors import Sectors, contraction_of, contraction_per_start, radius_of, spectral_norms
from partreduce.topo.metrics.steady_state import consensus_distance_of, drift_of
from partreduce.topo.mixing import is_doubly_stochastic, period_product
from partreduce.topo.schedule import Schedule

MAX_START_WORK = 2**30
"""Up to this many multiplications `metrics` also lists the contraction from every start."""
LARGE = absent(
    f"not found: explicit schedules have this metric up to {DEFAULT.dense_workers} workers; write the schedule as a "
    "rule"
)


def contraction(schedule: Schedule, *, start: int = 0, limit: MetricLimits = DEFAULT) -> Metric:
    """‖W_T … W_1 − J‖₂ over the period that starts at phase `start`: 0 is exact consensus, below 1 means convergence.

    Raises:
        ScheduleError: overlapping groups, or a strategy without fixed phases.
    """
    return _contraction(schedule, _prepare(schedule, limit), start)


def radius(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> Metric:
    """The spectral radius of the period product off the mean; the same for every start, at most the contraction.

    Raises:
        ScheduleError: overlapping groups, or a strategy without fixed phases.
    """
    return _radius(_prepare(schedule, limit))


def consensus_distance(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> Metric:
    """Steady-state mean squared distance to the mean under unit noise in every step; infinite if never converging.

    Raises:
        ScheduleError: overlapping groups, or a strategy without fixed phases.
    """
    return _consensus_distance(_prepare(schedule, limit))


def drift(schedule: Schedule, push: Literal["worker", "node"], *, limit: MetricLimits = DEFAULT) -> Metric:
    """The same under a constant random push: one per worker, or one shared by the workers of each node.

    Raises:
        InputError: another word than worker or node.
        ScheduleError: overlapping groups, or a strategy without fixed phases.
    """
    if push not in ("worker", "node"):
        raise InputError(f"drift {push!r}: there is no such push; choose worker or node")
    return _drift(_prepare(schedule, limit), push)


def late_distance(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> float:
    """How far apart averagings that come late leave workers in a curved direction; 0 where none are late.

    At unequal steps per round estimated from the consensus distance; infinite where that is not found.

    Raises:
        ScheduleError: overlapping groups, or a strategy without fixed phases.
    """
    if not schedule.strategy.mixes_late:
        return 0.0
    sectors, worker_steps = _prepare(schedule, limit), schedule.worker_steps()
    if sectors is not None and is_small(sectors) and worker_steps.min() == worker_steps.max():
        return late_distance_of(sectors, int(worker_steps[0]))
    flat = _consensus_distance(sectors).value
    return math.inf if flat is None else late_distance_like(flat, float(worker_steps.mean()), 1 - 1 / len(worker_steps))


def retimed(schedule: Schedule, push: Literal["worker", "node"], *, limit: MetricLimits = DEFAULT) -> Retimed:
    """What the metrics with 1 step per round, synchronous, say about any other steps_per_round and late averages.

    Raises:
        InputError: steps_per_round is not 1, or it is late already.
        ScheduleError: overlapping groups, or a strategy without fixed phases.
    """
    if schedule.strategy.steps_per_round != 1 or schedule.strategy.mixes_late:
        raise InputError(
            "retimed: the schedule has steps_per_round 1 and is synchronous, so that other numbers of steps follow"
        )
    n, sectors = schedule.num_workers, _prepare(schedule, limit)
    shared = float((schedule.cluster.node_sizes().astype(float) ** 2).sum()) / n**2
    return Retimed(
        contraction=_contraction(schedule, sectors, 0),
        consensus_distance=_consensus_distance(sectors),
        drift=_drift(sectors, push),
        late_drift=_drift(None if sectors is None else replace(sectors, is_delayed=True), push),
        noise=1 - 1 / n,
        push=1 - 1 / n if push == "worker" else 1 - shared,
        sectors=sectors if sectors is not None and is_small(sectors) else None,
    )


@check_arguments
def metrics(schedule: Schedule, *, limit: MetricLimits = DEFAULT) -> ScheduleMetrics:
    """All metrics. What cannot be computed has value None and says why; nothing is refused.

    Rules cost the same for any number of nodes; explicit schedules have all metrics up to `limit.dense_workers`
    workers, and above an estimate of their contraction.
    """
    period, distinct = _if_defined(lambda: schedule.period), _if_defined(schedule.num_distinct_phases)
    try:
        sectors = _prepare(schedule, limit)
    except (ScheduleError, UndecidedError) as error:
        nothing = absent(f"not {'defined' if isinstance(error, ScheduleError) else 'found'}: {error}")
        drifts = Drift(nothing, nothing)
        return ScheduleMetrics(period, schedule.num_workers, distinct, nothing, nothing, nothing, drifts, nothing)
    first = _contraction(schedule, sectors, 0)
    return ScheduleMetrics(
        period=period,
        num_workers=schedule.num_workers,
        num_distinct_phases=distinct,
        contraction=first,
        radius=_radius(sectors),
        consensus_distance=_consensus_distance(sectors),
        drift=Drift(_drift(sectors, "worker"), _drift(sectors, "node")),
        hop_gap=_hop(schedule),
        contraction_per_start=_per_start(sectors),
        pipeline=pipeline_metrics(schedule),
    )


def _prepare(schedule: Schedule, limit: MetricLimits) -> Sectors | None:
    check_growth(schedule)
    return sectors_of(schedule, limit)


def _if_defined(count: Callable[[], int]) -> int | None:
    try:
        return count()
    except ScheduleError:
        return None


def _contraction(schedule: Schedule, sectors: Sectors | None, start: int) -> Metric:
    keeps_mean = all(map(is_doubly_stochastic, set(schedule.strategy.graphs)))
    if sectors is None:
        found = large_contraction(schedule, start)
    elif keeps_mean:
        found = Metric(contraction_of(sectors, start), Kind.EXACT, sectors.how)
    else:
        difference = period_product(schedule, start) - 1 / schedule.num_workers
        found = Metric(float(spectral_norms(difference[None])[0]), Kind.EXACT, sectors.how)
    if keeps_mean:
        return found
    return replace(found, how=f"{found.how}; a round is not doubly stochastic, so P tends to another mean than J")


def _radius(sectors: Sectors | None) -> Metric:
    if sectors is None:
        return LARGE
    return Metric(radius_of(sectors), Kind.EXACT, sectors.how)


def _consensus_distance(sectors: Sectors | None) -> Metric:
    if sectors is None:
        return LARGE
    return _steady(consensus_distance_of(sectors), sectors)


def _drift(sectors: Sectors | None, push: Literal["worker", "node"]) -> Metric:
    if sectors is None:
        return LARGE
    if push == "node" and any(batch.node_columns is None for batch in sectors.batches):
        return absent("not found: too many pairs of workers share a node")
    return _steady(drift_of(sectors, push), sectors)


def _steady(value: float, sectors: Sectors) -> Metric:
    if math.isinf(value):
        return Metric(value, Kind.EXACT, f"{sectors.how}; infinite: the radius is 1 or more, workers never agree")
    return Metric(value, Kind.EXACT, sectors.how)


def _hop(schedule: Schedule) -> Metric:
    """Hop defines its gap for one fixed graph; a schedule whose partners change has none."""
    graphs = schedule.strategy.graphs
    if len(graphs) != 1:
        return absent("not defined: the hop gap belongs to a fixed graph, and here the partners change with the phase")
    try:
        return Metric(hop_gap(graphs[0]), Kind.EXACT, "eigenvalues of the graph")
    except InputError as error:
        return absent(f"not found: {error}")


def _per_start(sectors: Sectors | None) -> tuple[float, ...]:
    if sectors is None:
        return ()
    period = sectors.batches[0].period
    work = sum(period**2 * len(b.multiplicity) * b.size**3 for b in sectors.batches)
    return contraction_per_start(sectors) if work <= MAX_START_WORK else ()
