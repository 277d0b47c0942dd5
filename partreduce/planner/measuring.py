"""Measure one schedule unchanged on the job's cluster: seconds, bytes and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import geometric_mean
from typing import NamedTuple

from partreduce.planner.calibration import trained_sha256
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.option import CandidateSchedule, known
from partreduce.planner.travel import CostedTransport, coded_words, cost_of, paying, transports_of, traveling
from partreduce.topo.errors import PartreduceError
from partreduce.topo.metrics import consensus_distance, contraction, drift, late_distance
from partreduce.topo.metrics.base import Metric
from partreduce.topo.pilot import Probe
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.stages import sample

MAX_SAMPLED_WORKERS = 4096

SAMPLED_STEPS, LEAST_ROUNDS = 200, 32
"""Steps to sample, for any number of steps per round, and the minimum number of rounds."""


class Seconds(NamedTuple):
    """Seconds per step: total, computing of the fastest workers, and the relative standard error if sampled."""

    step: float
    computing: float
    error: float = 0.0


class Sent(NamedTuple):
    """Per step: seconds of communication, and bytes out of the busiest node."""

    seconds: float
    nic_bytes: float


class ScheduleMetrics(NamedTuple):
    """The metrics that an option shows."""

    consensus_distance: Metric
    drift: Metric
    contraction: Metric
    late_distance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The name of a candidate and the search's status of it."""

    name: str
    status: str = "catalogue"


def measure(
    schedule: Schedule, job: PlanRequest, *, label: Label | None = None, algorithm: AllReduceAlgorithm | None = None
) -> CandidateSchedule:
    """Return all metrics of one schedule unchanged, with its delay, by the best algorithm and codec.

    With an `algorithm`, the schedule uses that one and its own codec.

    Raises:
        PartreduceError: the schedule has no fixed phases, or a metric was not found within its limit.
    """
    metrics = metrics_of(schedule, job)
    if algorithm is None:
        costed_transports = transports_of(schedule, job)
    else:
        transport = replace(schedule.strategy.transport, algorithm=algorithm)
        costed_transports = (CostedTransport(transport=transport, cost=cost_of(schedule, job, transport)),)
    options = []
    for costed in costed_transports:
        named = label or Label(name=schedule.name)
        if algorithm is None and (words := coded_words(costed.transport)):
            named = replace(named, name=" ".join([named.name, *words]))
        options.append(_measured(schedule, job, named, costed, metrics))
    return options[paying([option.costs for option in options], job, beside=schedule.strategy.is_delayed)]


def metrics_of(schedule: Schedule, job: PlanRequest) -> ScheduleMetrics:
    """Return the metrics of a schedule unchanged.

    Raises:
        PartreduceError: it has no fixed phases, or a metric was not found within its limit.
    """
    spread, pushed = consensus_distance(schedule), drift(schedule, job.push)
    return ScheduleMetrics(spread, pushed, contraction(schedule), late_distance(schedule))


def _measured(
    schedule: Schedule, job: PlanRequest, label: Label, costed: CostedTransport, metrics: ScheduleMetrics
) -> CandidateSchedule:
    runs, algorithm = traveling(schedule, costed.transport), costed.transport.algorithm
    sent = Sent(costed.cost.per_step, costed.cost.nic_bytes_per_step)
    # The schedule file of this transport says how to run it.
    return assembled(
        runs, job, label, algorithm=algorithm, sent=sent, seconds=seconds_of(runs, job, algorithm), metrics=metrics
    )


def seconds_of(schedule: Schedule, job: PlanRequest, algorithm: AllReduceAlgorithm) -> Seconds:
    """Return the seconds per step of a schedule unchanged: exact at fixed speeds, sampled otherwise.

    Raises:
        PartreduceError: too many workers to sample.
    """
    times = job.compute_times()
    if times.is_fixed:
        return Seconds(cycle_time(schedule, job.hardware, times, algorithm=algorithm).per_step, times.base)
    return sampled_seconds(schedule, job, algorithm)


def assembled(
    schedule: Schedule,
    job: PlanRequest,
    label: Label,
    *,
    algorithm: AllReduceAlgorithm,
    sent: Sent,
    seconds: Seconds,
    metrics: ScheduleMetrics,
) -> CandidateSchedule:
    """Build the option of a schedule that is already measured."""
    noise, pushed = known(metrics.consensus_distance), pushed_by(metrics.drift, job)
    late, delayed = metrics.late_distance, job.delayed(schedule.strategy.sync)
    model = job.steps_model
    return CandidateSchedule(
        name=label.name,
        schedule=schedule,
        algorithm=algorithm,
        period=schedule.period,
        communication=sent.seconds,
        nic_bytes=sent.nic_bytes,
        step_seconds=seconds.step,
        step_error=seconds.error,
        waiting=_waiting(seconds, 0.0 if schedule.strategy.is_delayed else sent.seconds),
        consensus_distance=metrics.consensus_distance,
        drift=metrics.drift,
        contraction=metrics.contraction,
        late_distance=late,
        steps_ratio=model.steps_ratio(
            noise, pushed, late=late, delayed=delayed, gradients=schedule.strategy.averages_gradients
        ),
        model=model,
        extrapolated=model.extrapolates(noise, pushed),
        status=label.status,
    )


def _waiting(seconds: Seconds, communicating: float) -> float:
    """Return the waiting time of a step, without the rounding error of the three terms."""
    left = seconds.step - seconds.computing - communicating
    return left if left > 1e-9 * seconds.step else 0.0


def pushed_by(drift: Metric, job: PlanRequest) -> float:
    """Return the drift that counts for the job's data: 0 where every worker sees the same mixture."""
    return 0.0 if job.data is Data.SHUFFLED else known(drift)


def sampled_seconds(schedule: Schedule, job: PlanRequest, algorithm: AllReduceAlgorithm) -> Seconds:
    """Sample the seconds per step under random step times.

    Raises:
        PartreduceError: too many workers to sample.
    """
    if schedule.num_workers > MAX_SAMPLED_WORKERS:
        raise PartreduceError(
            f"jitter: {schedule.num_workers} workers are too many to sample (at most {MAX_SAMPLED_WORKERS})"
        )
    rounds = max(LEAST_ROUNDS, SAMPLED_STEPS // schedule.largest_steps_per_round)
    sampled = sample(schedule, job.hardware, job.compute_times(), algorithm=algorithm, num_rounds=rounds, seed=job.seed)
    return Seconds(sampled.per_step, sampled.compute, sampled.error / sampled.per_step if sampled.per_step else 0.0)


def sampled_option(option: CandidateSchedule, job: PlanRequest) -> CandidateSchedule:
    """Return an option measured at mean speeds with sampled seconds under the job's step times."""
    if job.compute_times().is_fixed:
        return option
    seconds = sampled_seconds(option.schedule, job, option.algorithm)
    waiting = _waiting(seconds, 0.0 if option.late else option.communication)
    return replace(option, step_seconds=seconds.step, step_error=seconds.error, waiting=waiting)


def as_ran(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[CandidateSchedule]:
    """Return the options; for those that ran in the job's pilot, their own runs also predict the steps.

    Their steps ratio is the mean of the model's and the measured one, weighted by the inverse squares of the errors.
    Where the runs of a kind took more steps than the prices predict, options of that kind that did not run are scaled
    by the same factor, so that none wins because less is known about it.
    """
    ran = () if job.pilot is None else (*job.pilot.probes, *job.pilot.unstable)
    by_hash = {probe.sha256: probe for probe in ran if probe.sha256}
    if job.pilot is None or not by_hash:
        return list(options)
    probes = [by_hash.get(trained_sha256(one.schedule)) if one.facts is None else None for one in options]
    more: dict[object, list[float]] = {}
    for option, probe in zip(options, probes, strict=True):
        if probe is not None and probe.steps_ratios and isfinite(option.steps_ratio):
            more.setdefault(option.kind, []).append(probe.steps_ratio / option.steps_ratio)
    factors = {kind: max(1.0, geometric_mean(found)) for kind, found in more.items()}
    return [
        replace(one, steps_ratio=one.steps_ratio * factors.get(one.kind, 1.0))
        if probe is None
        else _as_ran(one, probe, job.pilot.prices.error)
        for one, probe in zip(options, probes, strict=True)
    ]


def _as_ran(option: CandidateSchedule, probe: Probe, error: float) -> CandidateSchedule:
    if not probe.steps_ratios or not isfinite(option.steps_ratio):
        return replace(option, steps_ratio=inf, surprise=inf)
    # The model's error is its stated one, or the deviation of this run if that is larger.
    off = max(error * option.steps_ratio, abs(probe.steps_ratio - option.steps_ratio))
    noise = probe.standard_error
    weight = 1.0 if off == noise == 0 else off**2 / (off**2 + noise**2)
    surprise = weight * (probe.steps_ratio - option.steps_ratio)
    return replace(option, steps_ratio=option.steps_ratio + surprise, surprise=surprise)
