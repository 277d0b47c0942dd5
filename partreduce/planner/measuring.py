"""Compute the costs of one schedule on the job's cluster: transport, seconds, bytes, metrics and predicted steps.

The all-reduce algorithm changes no metric, so only the cheapest is kept; ties take the ring, which every backend has. A
codec rounds numbers, so only codecs that communicate less than every finer one are kept, and `paying` chooses among
them. The work of measuring is estimated in nominal seconds, so that an effort does not depend on the machine's load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import inf, isfinite
from statistics import geometric_mean
from typing import NamedTuple

from partreduce.planner.calibration import trained_sha256
from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule, Costs, Facts, known, preference
from partreduce.planner.steps_model import Optimizer
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.errors import PartreduceError
from partreduce.topo.metrics.decomposition import num_entries
from partreduce.topo.metrics.evaluate import Convergence, convergence
from partreduce.topo.pilot import Probe
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, GradientBuckets, Sync, Transport
from partreduce.topo.strategies.base import StepsPerRound
from partreduce.topo.timing.cost import Communication, communication
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.stages import sample

WORTH, WORTH_OVERLAPPED = 0.1, 1 / 3
"""A coarser codec must save more than this fraction of the objective: in synchronous rounds; if averaging overlaps
computing. In the lab, steps with coded sums took 8 to 16 % longer than predicted, 44 % if they were late, and steps
without a codec up to 7 % (benchmarks/results/lab-recommendation.md, lab-codec.md)."""
DIGITS = 12
"""Costs that are equal to this many significant digits are ties."""
MAX_SAMPLED_WORKERS = 4096
SAMPLED_STEPS, LEAST_ROUNDS = 200, 32
"""Steps to sample for random step times, and the minimum number of rounds in which workers take them."""
MAX_GRAPH_WORKERS = 256
"""Weighted graphs and explicit groups need dense n×n work, so larger clusters use rules only."""
PER_OPTION = 1e-2
"""Nominal seconds for the metrics of a rule, or of few workers; half as much again for each codec beyond the first."""
PER_ENTRY = 1e-8
"""Nominal seconds for each of the n³ · period products of dense metrics."""
PER_CLASS, PER_RANK = 5e-7, 1.5e-5
"""Nominal seconds of a rule's metrics: for each of the g³ numbers of a g×g matrix (eigenvalues and tens of products),
and for each local rank and phase. `PER_OPTION` covers small rules."""
PER_SETTING = 5e-4
"""Nominal seconds for one more setting (steps per round, delay) of a measured schedule, at fixed speeds."""
PER_SAMPLE, PER_WORKER = 6e-3, 2e-4
"""Nominal seconds to sample the waiting of one setting: a constant, and a part for each worker."""
PAIRS_AT_WORST = 0.63
"""Extra steps of AD-PSGD at worst, as a fraction of All-Reduce's, as measured in the lab, where groups on request
needed 0.93 to 1.03 times All-Reduce's steps (benchmarks/results/lab-baselines.md)."""
GAPS, GAPS_UNDER_MOMENTUM = (1.0, 0.06), (1.6, 0.7)
"""What the predicted steps of iteration gaps are multiplied by, and their extra steps at worst, as a fraction.

11 of 12 settings under SGD needed no more. Under momentum four workers, one of them 5 times slower, needed 0.7 to 2.2
times the steps of averages of all with unequal steps, where 0.8 was predicted (benchmarks/results/unequal_steps.md)."""
SETTINGS = 4
"""Number of settings to measure of a schedule from the search: synchronous, late, and the best of each."""


class CostedSchedule(NamedTuple):
    """A schedule with one transport of its all-reduces (algorithm, codec, layers), and its communication cost."""

    schedule: Schedule
    cost: Communication

    @property
    def transport(self) -> Transport:
        return self.schedule.strategy.transport

    @property
    def cheapness(self) -> float:
        return float(f"{self.cost.per_round:.{DIGITS}g}")


def transports_of(schedule: Schedule, job: PlanRequest) -> list[CostedSchedule]:
    """Return for each codec the cheapest transport, if it costs less than those of all finer codecs; finest first."""
    chosen: list[CostedSchedule] = []
    for costed in cheapest_transports(schedule, job):
        if all(costed.cheapness < finer.cheapness for finer in chosen):
            chosen.append(costed)
    return chosen


def cheapest_transports(schedule: Schedule, job: PlanRequest) -> list[CostedSchedule]:
    """Return the cheapest transport for each codec that the job and the strategy allow, the finest codec first.

    If the strategy allows no codec, only the cheapest transport without a codec is returned.
    """
    is_plain = job.codecs == (Codec.NONE,) or schedule.strategy.codec_unsupported_reason(schedule.cluster)
    algorithms = [one for one in job.algorithms if one in schedule.strategy.algorithms] or [AllReduceAlgorithm.RING]
    cheapest = []
    for codec in (Codec.NONE,) if is_plain else job.codecs:
        listed = [
            costed_with(schedule, job, Transport(algorithm=algorithm, codec=codec, where=where))
            for algorithm in algorithms
            for where in (CodecScope.ALL, CodecScope.ACROSS_NODES)
            if where is CodecScope.ALL or (codec is not Codec.NONE and algorithm is AllReduceAlgorithm.HIERARCHICAL)
        ]
        cheapest.append(min(listed, key=lambda one: one.cheapness))
    return cheapest


def costed_with(schedule: Schedule, job: PlanRequest, transport: Transport) -> CostedSchedule:
    """Return the schedule with this transport, and its communication cost."""
    runs = traveling(schedule, transport)
    return CostedSchedule(runs, communication(runs, job.hardware))


def traveling(schedule: Schedule, transport: Transport) -> Schedule:
    """Return the schedule with this transport; ring replaces an algorithm that its strategy does not support."""
    algorithm = transport.algorithm if transport.algorithm in schedule.strategy.algorithms else AllReduceAlgorithm.RING
    runs = replace(transport, algorithm=algorithm)
    if runs == schedule.strategy.transport:
        return schedule
    return replace(schedule, strategy=replace(schedule.strategy, transport=runs), certificate=None)


def with_timing(
    schedule: Schedule,
    sync: Sync,
    steps_per_round: StepsPerRound,
    transport: Transport | None = None,
    *,
    name: str | None = None,
) -> Schedule:
    """Return a schedule with other timing, transport (None: ring without a codec) and name (None: unchanged)."""
    strategy = replace(
        schedule.strategy, sync=sync, steps_per_round=steps_per_round, transport=transport or Transport()
    )
    name = schedule.name if name is None else name
    if strategy == schedule.strategy and name == schedule.name and schedule.certificate is None:
        return schedule  # a new one would be checked again
    return replace(schedule, name=name, strategy=strategy, certificate=None)


def coded_words(transport: Transport) -> list[str]:
    """Return the words that name a codec, and sending by layers, in a schedule's name; empty for neither."""
    words = [] if transport.codec is Codec.NONE else [str(transport.codec)]
    words += ["across nodes"] * (transport.where is CodecScope.ACROSS_NODES)
    return words + ["by layers"] * (transport.gradient_buckets is GradientBuckets.PER_LAYER)


def worth(schedule: Schedule) -> float:
    """Return the fraction of the cost to minimize that the schedule's codec must save to be chosen; 0 without codec."""
    if schedule.strategy.transport.codec is Codec.NONE:
        return 0.0
    return WORTH_OVERLAPPED if schedule.strategy.is_delayed else WORTH


def paying(costs: Sequence[Costs], job: PlanRequest, *, overlaps: bool) -> int:
    """Return the index of the finest codec whose costs are as good as the best, up to the fraction `WORTH`.

    `costs` are ordered finest first; those that keep the limits are preferred. `overlaps`: averaging overlaps
    computing, so that the fraction is `WORTH_OVERLAPPED`.
    """
    able = [i for i, one in enumerate(costs) if one.keep(job.limits)] or list(range(len(costs)))
    is_balanced = job.objective is Objective.BALANCED
    merits = [(one.time,) if is_balanced else preference(one, job.objective) for one in costs]
    best, part = min(merits[i] for i in able), 1 - (WORTH_OVERLAPPED if overlaps else WORTH)
    return next(i for i in able if all(own * part <= least for own, least in zip(merits[i], best, strict=True)))


class Seconds(NamedTuple):
    """Mean seconds of a step, and of its computing on the fastest workers; `error` is relative, 0 if exact."""

    step: float
    computing: float
    error: float = 0.0

    def waiting(self, communicating: float) -> float:
        """Return the seconds of a step that remain beyond computing and `communicating` seconds: waiting."""
        left = self.step - self.computing - communicating
        return left if left > 1e-9 * self.step else 0.0


class Traffic(NamedTuple):
    """Per step: seconds of communication, and bytes out of the busiest node's NICs."""

    seconds: float
    nic_bytes: float


def measure(schedule: Schedule, job: PlanRequest, *, algorithm: AllReduceAlgorithm | None = None) -> CandidateSchedule:
    """Return a schedule as a candidate with all its costs and metrics.

    Args:
        schedule: a schedule with fixed phases; its delay and steps per round are kept.
        job: the request, with the cluster, its hardware, and the allowed codecs.
        algorithm: the all-reduce algorithm to use, with the schedule's own codec; None: the best algorithm and codec.

    Raises:
        PartreduceError: the schedule has no fixed phases, or a metric was not found within its limit.
    """
    options = [reprice(option, job) for option in _measure_transports(schedule, job.as_measured, algorithm)]
    return options[paying([option.costs for option in options], job, overlaps=schedule.strategy.is_delayed)]


@lru_cache(maxsize=256)
def _measure_transports(
    schedule: Schedule, job: PlanRequest, algorithm: AllReduceAlgorithm | None
) -> tuple[CandidateSchedule, ...]:
    """Return a candidate for each transport, the finest codec first, with `steps_ratio` still infinite (`reprice`)."""
    metrics = metrics_of(schedule, job.push)
    if algorithm is None:
        transports = transports_of(schedule, job)
    else:
        transport = replace(schedule.strategy.transport, algorithm=algorithm)
        transports = [costed_with(schedule, job, transport)]
    options = []
    for runs, cost in transports:
        words = [] if algorithm else coded_words(runs.strategy.transport)
        sent, seconds = Traffic(cost.per_step, cost.nic_bytes_per_step), seconds_of(runs, job)
        name = " ".join([schedule.name, *words])
        options.append(assemble(runs, job, name, sent=sent, seconds=seconds, metrics=metrics))
    return tuple(options)


metrics_of = lru_cache(maxsize=256)(convergence)
"""Return the metrics of (schedule, `PlanRequest.push`) with the schedule's own delay and steps per round; cached."""


@lru_cache(maxsize=256)
def seconds_of(schedule: Schedule, job: PlanRequest) -> Seconds:
    """Return the seconds per step of a schedule with its own delay: exact at fixed speeds, sampled otherwise; cached.

    Pass `PlanRequest.as_measured`, so that requests which differ elsewhere share the cache.

    Raises:
        PartreduceError: too many workers to sample.
    """
    times = job.compute_times
    if times.is_fixed:
        return Seconds(cycle_time(schedule, job.hardware, times).per_step, times.base)
    if schedule.num_workers > MAX_SAMPLED_WORKERS:
        raise PartreduceError(
            f"jitter: {schedule.num_workers} workers are too many to sample (at most {MAX_SAMPLED_WORKERS})"
        )
    rounds = max(LEAST_ROUNDS, SAMPLED_STEPS // schedule.largest_steps_per_round)
    sampled = sample(schedule, job.hardware, times, num_rounds=rounds, seed=job.seed)
    return Seconds(sampled.per_step, sampled.compute, sampled.error / sampled.per_step if sampled.per_step else 0.0)


def sample_option(option: CandidateSchedule, job: PlanRequest) -> CandidateSchedule:
    """Replace the seconds of a candidate, measured at mean speeds, by a mean over the job's random step times."""
    if job.compute_times.is_fixed:
        return option
    seconds = seconds_of(option.schedule, job.as_measured)
    waiting = seconds.waiting(0.0 if option.late else option.communication)
    return replace(option, step_seconds=seconds.step, step_error=seconds.error, waiting=waiting)


def assemble(
    schedule: Schedule,
    job: PlanRequest,
    name: str,
    *,
    sent: Traffic,
    seconds: Seconds,
    metrics: Convergence,
    status: str = "catalogue",
    facts: Facts | None = None,
) -> CandidateSchedule:
    """Build a `CandidateSchedule` from values of its fields; its `steps_ratio` is infinite until `reprice`."""
    return CandidateSchedule(
        name=name,
        schedule=schedule,
        period=schedule.period if facts is None else 1,
        communication=sent.seconds,
        nic_bytes=sent.nic_bytes,
        step_seconds=seconds.step,
        step_error=seconds.error,
        waiting=seconds.waiting(0.0 if schedule.strategy.is_delayed else sent.seconds),
        **metrics._asdict(),
        steps_ratio=inf,
        model=job.steps_model,
        extrapolated=False,
        status=status,
        facts=facts,
    )


def reprice(option: CandidateSchedule, job: PlanRequest) -> CandidateSchedule:
    """Return a candidate with the steps ratio that the job's steps model predicts from its metrics and delays."""
    model, facts = job.steps_model, option.facts
    spread, pushed = known(option.consensus_distance), job.pushed_by(known(option.drift))
    ratio = model.steps_ratio(
        spread,
        pushed,
        late=option.late_distance,
        delayed=job.delayed(option.schedule.strategy.sync) if facts is None else facts.delay * model.delay,
        gradients=option.sums_gradients,
        progress=option.progress,
    )
    if facts is not None:
        ratio *= _gap_prices(job)[0] if option.gap else 1.0
        facts = replace(facts, more=_more(option, facts, ratio, job))
    return replace(option, steps_ratio=ratio, model=model, extrapolated=model.extrapolates(spread, pushed), facts=facts)


def _gap_prices(job: PlanRequest) -> tuple[float, float]:
    return GAPS_UNDER_MOMENTUM if job.optimizer is Optimizer.MOMENTUM else GAPS


def _more(option: CandidateSchedule, facts: Facts, ratio: float, job: PlanRequest) -> float:
    """Return the possible extra steps of a simulated candidate beyond its steps ratio, as a fraction of All-Reduce's.

    `ratio` is this steps ratio.
    """
    model = job.steps_model
    if facts.kind in ("dynamic_groups", "pairwise"):
        worst = 1 + PAIRS_AT_WORST - ratio if facts.kind == "pairwise" else 0.0
        return max(ratio * model.error(job.data), worst)
    more = model.late_more(option.late_distance)
    more += facts.delay * model.delay_more if facts.delay else 0.0  # the price may be infinite
    return more / option.progress + (_gap_prices(job)[1] * ratio if option.gap else 0.0)


def as_ran(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[CandidateSchedule]:
    """Return the candidates, correcting the steps ratios of those that ran in the job's pilot by their own runs.

    The corrected ratio is the mean of the predicted and the measured one, weighted by the inverse squares of their
    errors. If the runs of a kind took more steps than predicted, so do the other candidates of that kind, by the same
    factor: no candidate wins because less is known about it.
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


def work_of(schedule: Schedule, job: PlanRequest, settings: int = 1, *, most: float = inf) -> float:
    """Return the estimated work, in nominal seconds, of measuring one schedule in a number of settings.

    Of a rule that exceeds `most` by its local ranks alone the classes, which take long to count, are left out.
    """
    work, per_option = settings * work_of_setting(job), PER_OPTION * (1 + len(job.codecs)) / 2
    if (rule := schedule.rule()) is None or not isinstance(schedule.strategy.steps_per_round, int):
        return work + per_option + PER_ENTRY * schedule.num_workers**3 * max(1, schedule.period)
    metrics = PER_RANK * rule.workers_per_node * max(1, schedule.period)
    if not schedule.strategy.averages_everyone and metrics <= most:  # 0 if every round averages all workers
        with suppress(PartreduceError):  # metrics that cannot be computed cost nothing
            metrics += PER_CLASS * num_entries(schedule)
    return work + max(per_option, metrics)


def work_of_setting(job: PlanRequest) -> float:
    """Return the estimated work, in nominal seconds, of one more setting of a schedule."""
    return PER_SETTING if job.compute_times.is_fixed else PER_SAMPLE + PER_WORKER * job.cluster.num_workers


def payer(clock: Clock, until: float) -> Callable[[float], bool]:
    """Return a function that charges nominal seconds of work to the clock if they fit before position `until`.

    The function returns whether they fit.
    """

    def pay(work: float) -> bool:
        if not clock.fits(work, until):
            return False
        clock.charge(work)
        return True

    return pay
