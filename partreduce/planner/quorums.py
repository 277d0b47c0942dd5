"""Quorums as options: All-Reduce of those that have come, under settings that answer what slows workers down.

A round under a quorum is no step of All-Reduce: fewer gradients are in it, and some are late. Divided by the number of
workers, as the paper does, each weighs what it weighs in All-Reduce, so as many of them are needed, and predicted steps
are rounds: All-Reduce's, times workers over gradients in a round, times the price of lateness. That price is what
gradients that come a step late cost in a pipeline (`steps_model`), for each whole step, of as many gradients as there
are workers, that they are late on average. It was measured for pipelines, where all are late alike, not for quorums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, isfinite
from typing import TYPE_CHECKING

import numpy as np

from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import measure
from partreduce.planner.option import QuorumFacts
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.work import payer
from partreduce.schedulers import registry
from partreduce.topo.figures.base import absent
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.timing.quorum import balance, sampled

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from partreduce.planner.job import Job
    from partreduce.planner.option import Option
    from partreduce.schedulers.synthesis.clock import Clock
    from partreduce.topo.timing.compute import ComputeTimes

LEAST_ROUNDS, MOST_ROUNDS = 120, 480
SLOW_STEPS = 12
"""Of the slowest worker, in a run."""
WARM_UP = 4
"""One part of so many of a run is left out."""
PARTS = 4
"""Of the rest, which say how much its seconds vary."""
MOST_LATE = 64
"""The longest queue that is proposed."""
PER_MESSAGE = 1.7e-5
"""Nominal seconds of a run for each message and each event of a worker."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run in virtual time: seconds of a round, their relative error, waiting, bytes, and what was in the rounds.

    `calls` (num_rounds, num_workers) is how many each worker had in every round, the first ones as well, and `oldest`
    the most rounds that any was late.
    """

    seconds: float
    error: float
    waiting: float
    nic_bytes: float
    active: float
    gradients: float
    age: float
    least_share: float
    oldest: int
    calls: npt.NDArray[np.int64] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Costs:
    """What rounds cost whoever starts them: seconds that word is on its way, and of a sum."""

    word: float
    sum_seconds: float


def quorum_options(job: Job, clock: Clock, until: float, left_out: Callable[[str], None]) -> list[Option]:
    """All-Reduce under a few quorums, each run in virtual time; none where the job does not weigh them, or All-Reduce.

    The names of those that the time did not reach go to `left_out`; one is measured in any case if nothing else is
    asked for.
    """
    if not job.weighs_quorums:
        return []
    base, pay = all_reduce(job), payer(clock, until)
    if not within_limits(base.schedule, job.limits):
        return []
    seconds = sampled(job.compute_times(), job.cluster.num_workers, seed=job.seed)
    costs = costs_of(base, job)
    count, options = job.cluster.num_workers, []
    runs = [(one, rounds_of(seconds, one, costs)) for one in settings(job, seconds, costs)]
    cheapest = min(runs, key=lambda one: work_of_run(one[0], count, one[1]))
    affordable = [one for one in runs if pay(work_of_run(one[0], count, one[1]))] or [cheapest] * bool(job.quorum)
    for setting, rounds in runs:
        if (setting, rounds) in affordable:
            options.append(_option(base, setting, job, run(by(base, setting), job, job.compute_times(), rounds)))
        else:
            left_out(words_of(setting, count))
    return options


def all_reduce(job: Job) -> Option:
    """All-Reduce in every step, in lockstep, as numbers are, in its cheapest form."""
    return measure(registry.build("allreduce", job.cluster), replace(job, codec=Codec.NONE))


def costs_of(base: Option, job: Job) -> Costs:
    """Of rounds that sum as All-Reduce does."""
    return Costs(max(job.hardware.inside.latency, job.hardware.nic.latency), base.communication)


def settings(job: Job, seconds: npt.NDArray[np.float64], costs: Costs) -> list[Quorum]:
    """All but the slow workers or one, half of them, majority, and solo; each with a queue that suits it.

    A queue holds the rounds that pass during the longest step, as far as memory allows, so that nobody waits for it.
    """
    count, slow = job.cluster.num_workers, len(Slowdown.of(job).slow)
    numbers = [number for number in (count - max(1, slow), count - 1, count // 2) if 2 <= number < count]
    starts: list[QuorumStart | int] = [*dict.fromkeys(numbers), QuorumStart.MAJORITY, QuorumStart.SOLO]
    made = [Quorum(quorum=start) for start in starts]
    return [replace(one, staleness=_queue(one, job, seconds, costs)) for one in made]


def _queue(setting: Quorum, job: Job, seconds: npt.NDArray[np.float64], costs: Costs) -> int:
    wanted = queue_for(seconds, balance(seconds, setting, word=costs.word, sum_seconds=costs.sum_seconds).seconds)
    if job.max_queues is not None:
        while wanted > 1 and _memory(replace(setting, staleness=wanted), job) > job.max_queues:
            wanted -= 1
    return max(1, wanted)


def queue_for(seconds: npt.NDArray[np.float64], period: float) -> int:
    """Results that come during the longest of such calls (samples, num_workers), rounds taking `period` each."""
    longest = float(np.quantile(seconds, 1 - 1 / (4 * seconds.shape[1])))  # of which each worker has one in 4n
    return min(MOST_LATE, ceil(longest / period) + 1) if period else 1


def _memory(setting: Quorum, job: Job) -> float:
    """Bytes that a worker keeps beside its parameters."""
    from partreduce.runtime.virtual_time.predict import ARRAYS

    plain = registry.build("allreduce", job.cluster).strategy
    arrays = ARRAYS[setting.protocol](replace(plain, when=setting), job.cluster.num_workers)
    return arrays * (job.hardware.model_bytes or 0)


def words_of(setting: Quorum, num_workers: int) -> str:
    """A setting as tables call it."""
    if isinstance(setting.quorum, QuorumStart):
        return str(setting.quorum)
    return f"{setting.quorum} of {num_workers}"


def rounds_of(seconds: npt.NDArray[np.float64], setting: Quorum, costs: Costs) -> int:
    """Rounds of a run in which the slowest worker has some steps."""
    return rounds_for(seconds, balance(seconds, setting, word=costs.word, sum_seconds=costs.sum_seconds).seconds)


def rounds_for(seconds: npt.NDArray[np.float64], period: float) -> int:
    """The same where rounds take `period` each."""
    wanted = SLOW_STEPS * float(seconds.mean(axis=0).max()) / period if period else 0.0
    return int(min(MOST_ROUNDS, max(LEAST_ROUNDS, wanted)))


def work_of_run(setting: Quorum, num_workers: int, num_rounds: int) -> float:
    """Nominal seconds: for a number all tell all, else one tells all."""
    messages = num_workers if isinstance(setting.quorum, QuorumStart) else num_workers**2
    return PER_MESSAGE * num_rounds * (messages + 4 * num_workers)


def by(base: Option, setting: Quorum) -> Option:
    """The same schedule under a quorum, before anything is known of it."""
    strategy = replace(base.schedule.strategy, when=setting)
    return replace(base, schedule=replace(base.schedule, strategy=strategy, certificate=None))


def run(option: Option, job: Job, times: ComputeTimes, num_rounds: int) -> Run:
    """One run in virtual time."""
    from partreduce.runtime.virtual_time.simulate import simulate

    timeline = simulate(
        option.schedule, job.hardware, compute=times, num_rounds=num_rounds, seed=job.seed, form=option.form
    )
    observed = timeline.observed
    assert observed is not None, "a run under a quorum is observed"
    record = observed.quorum
    assert record is not None, "likewise"
    first, end = num_rounds // WARM_UP, record.summed[1]  # (num_rounds,)
    marks = np.linspace(first - 1, num_rounds - 1, PARTS + 1).astype(int)
    parts = np.diff(end[marks]) / np.diff(marks)
    seconds = float(end[-1] - end[first - 1]) / (num_rounds - first)
    kept, counted = record.gradients[first:], record.rounds >= first
    return Run(
        seconds=seconds,
        error=float(parts.std(ddof=1)) / len(parts) ** 0.5 / seconds if seconds else 0.0,
        waiting=float(timeline.waiting().mean()) / num_rounds,
        nic_bytes=float(observed.nic_bytes.max()) / num_rounds,
        active=float(record.active[first:].mean()),
        gradients=float(kept.sum()) / len(kept),
        age=float(record.ages[counted].mean()),
        least_share=float(kept.sum(axis=0).min() / kept.sum() * kept.shape[1]),
        oldest=int(record.ages.max()),
        calls=record.gradients,
    )


def steps_ratio_of(found: Run, job: Job) -> float:
    """Rounds to a loss, over All-Reduce's steps."""
    count = job.cluster.num_workers
    return count / found.gradients * (1 + price_of(found.age * found.gradients / count, job))


def price_of(delay: float, job: Job) -> float:
    """What it costs that gradients are late by so many whole steps on average; between whole numbers in proportion."""
    model, whole = job.steps_model, floor(delay)
    below, above = (model.delayed(1 + late, job.curvature) for late in (whole, whole + 1))
    return below + (delay - whole) * (above - below) if isfinite(above) else above


def _option(base: Option, setting: Quorum, job: Job, found: Run) -> Option:
    """All-Reduce under a quorum, as its run was."""
    count = job.cluster.num_workers
    words, delay = words_of(setting, count), found.age * found.gradients / count
    name = f"quorum: {words}, up to {setting.staleness} late"
    schedule = replace(
        base.schedule, name=name, strategy=replace(base.schedule.strategy, when=setting), certificate=None
    )
    schedule.strategy.check(job.cluster)
    bound = setting.bound
    assert bound is not None, "each keeps one"
    return replace(
        base,
        name=name,
        schedule=schedule,
        nic_bytes=found.nic_bytes,
        step_seconds=found.seconds,
        step_error=found.error,
        waiting=found.waiting,
        contraction=absent("whose gradients are in a round is decided while the job runs"),
        steps_ratio=steps_ratio_of(found, job),
        model=job.steps_model,
        extrapolated=False,
        quorum=QuorumFacts(
            words=words,
            active=found.active,
            gradients=found.gradients,
            gradients_per_second=found.gradients / found.seconds if found.seconds else float("inf"),
            age=found.age,
            delay=delay,
            bound=bound,
            least_share=found.least_share,
            memory_bytes=_memory(setting, job),
        ),
    )
