"""Runs of quorums: how long their rounds take in virtual time, what is in them, and what that comes to.

A round under a quorum is no step of All-Reduce: fewer gradients are in it, and some are late. Divided by the number of
workers, as the paper does, each weighs what it weighs in All-Reduce, so as many of them are needed, and predicted steps
are rounds: All-Reduce's, times workers over gradients in a round, times the price of delay. That price is what
gradients that come a step late cost in a pipeline (`steps_model`), for each whole step, of as many gradients as there
are workers, that they are late on average. It was measured for pipelines, where all are late alike, not for quorums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, isfinite

import numpy as np
import numpy.typing as npt

from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule, Facts
from partreduce.planner.trials.kit import PER_EVENT, error_of, memory_bytes
from partreduce.topo.metrics.base import absent
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.quorum import balance

LEAST_ROUNDS, MOST_ROUNDS = 120, 480
SLOW_STEPS = 12
"""Of the slowest worker, in a run."""
WARM_UP = 4
"""One part of so many of a run is left out."""
MOST_LATE = 64
"""The longest queue that is proposed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run in virtual time: seconds of a round, their relative error, waiting, bytes, and what was in the rounds."""

    seconds: float
    error: float
    waiting: float
    nic_bytes: float
    active: float
    gradients: float
    age: float
    least_share: float


def period_of(
    base: CandidateSchedule, setting: PartialAllReduce, job: PlanRequest, seconds: npt.NDArray[np.float64]
) -> float:
    """About how long a round takes; `seconds` (samples, num_workers) are those of gradients."""
    word = max(job.hardware.inside.latency, job.hardware.nic.latency)
    return balance(seconds, setting, word=word, sum_seconds=base.communication).seconds


def setting_of(
    base: CandidateSchedule, start: QuorumStart | int, job: PlanRequest, seconds: npt.NDArray[np.float64]
) -> PartialAllReduce:
    """With a queue that holds the rounds which pass during the longest step, so that nobody waits for it.

    It is shorter where memory does not allow that. `seconds` (samples, num_workers) are those of steps; so in
    `rounds_of`.
    """
    made = PartialAllReduce(quorum=start)
    period = period_of(base, made, job, seconds)
    longest = float(np.quantile(seconds, 1 - 1 / (4 * seconds.shape[1])))  # of which each worker has one in 4n
    wanted = min(MOST_LATE, ceil(longest / period) + 1) if period else 1
    if job.max_queues is not None:
        while wanted > 1 and held_by(by(base, replace(made, staleness=wanted)), job) > job.max_queues:
            wanted -= 1
    return replace(made, staleness=max(1, wanted))


def rounds_of(
    base: CandidateSchedule, setting: PartialAllReduce, job: PlanRequest, seconds: npt.NDArray[np.float64]
) -> int:
    """Rounds of a run in which the slowest worker has some calls."""
    period = period_of(base, setting, job, seconds)
    wanted = SLOW_STEPS * float(seconds.mean(axis=0).max()) / period if period else 0.0
    return int(min(MOST_ROUNDS, max(LEAST_ROUNDS, wanted)))


def work_of_run(setting: PartialAllReduce, count: int, num_rounds: int) -> float:
    """Nominal seconds of a run of `count` workers: under a number all tell all, else one tells all."""
    told = count if isinstance(setting.quorum, QuorumStart) else count**2
    return num_rounds * PER_EVENT * (told + 4 * count)


def held_by(option: CandidateSchedule, job: PlanRequest) -> float:
    """Bytes that a worker keeps beside its parameters."""
    return memory_bytes(option.schedule.strategy, job)


def words_of(setting: PartialAllReduce, count: int) -> str:
    """A setting as tables call it."""
    return str(setting.quorum) if isinstance(setting.quorum, QuorumStart) else f"{setting.quorum} of {count}"


def by(base: CandidateSchedule, setting: PartialAllReduce) -> CandidateSchedule:
    """All-Reduce under a quorum, before anything is known of it."""
    strategy = replace(base.schedule.strategy, sync=setting)
    return replace(base, schedule=replace(base.schedule, strategy=strategy, certificate=None))


def run(option: CandidateSchedule, job: PlanRequest, times: ComputeTimes, num_rounds: int) -> Run:
    """One run in virtual time."""
    from partreduce.schedulers.simulator.simulate import simulate

    timeline = simulate(
        option.schedule, job.hardware, compute=times, num_rounds=num_rounds, seed=job.seed, algorithm=option.algorithm
    )
    observed = timeline.observed
    assert observed is not None, "a run under a quorum is observed"
    record = observed.quorum
    assert record is not None, "likewise"
    first, end = num_rounds // WARM_UP, record.summed[1]  # (num_rounds,)
    seconds = float(end[-1] - end[first - 1]) / (num_rounds - first)
    kept, counted = record.gradients[first:], record.rounds >= first
    return Run(
        seconds=seconds,
        error=error_of(end, first) / seconds if seconds else 0.0,
        waiting=float(timeline.waiting().mean()) / num_rounds,
        nic_bytes=float(observed.nic_bytes.max()) / num_rounds,
        active=float(record.active[first:].mean()),
        gradients=float(kept.sum()) / len(kept),
        age=float(record.ages[counted].mean()),
        least_share=float(kept.sum(axis=0).min() / kept.sum() * kept.shape[1]),
    )


def price_of(delay: float, job: PlanRequest) -> float:
    """What it costs that gradients are late by so many whole steps on average; between whole numbers in proportion."""
    model, whole = job.steps_model, floor(delay)
    below, above = (model.delayed(1 + late, job.curvature) for late in (whole, whole + 1))
    return below + (delay - whole) * (above - below) if isfinite(above) else above


def measured(base: CandidateSchedule, setting: PartialAllReduce, job: PlanRequest, found: Run) -> CandidateSchedule:
    """All-Reduce under a quorum, as one run of it is."""
    option, count = by(base, setting), job.cluster.num_workers
    option.schedule.strategy.check(job.cluster)
    assert setting.bound is not None, "each keeps one"
    late = found.age * found.gradients / count  # rounds of as many calls as there are workers
    words = words_of(setting, count)
    name = f"quorum: {words}, up to {setting.staleness} late"
    return replace(
        option,
        name=name,
        schedule=replace(option.schedule, name=name),
        nic_bytes=found.nic_bytes,
        step_seconds=found.seconds,
        step_error=found.error,
        waiting=found.waiting,
        contraction=absent("whose gradients are in a round is decided while the job runs"),
        steps_ratio=count / found.gradients * (1 + price_of(late, job)),
        extrapolated=False,
        model=job.steps_model,
        facts=Facts(
            kind="partial",
            words=words,
            memory_bytes=held_by(option, job),
            least_share=found.least_share,
            more=count / found.gradients * (late * job.steps_model.delay_more),
            active=found.active,
            gradients=found.gradients,
            gradients_per_second=found.gradients / found.seconds if found.seconds else float("inf"),
            age=found.age,
            delay=late,
            bound=setting.bound,
        ),
    )
