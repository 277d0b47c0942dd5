"""Runs of quorums: how long their rounds take in virtual time, what is in them, and what that comes to.

A round under a quorum is no step of All-Reduce: fewer gradients are in it, and some are late. Divided by the number of
workers, as the paper does, each weighs what it weighs in All-Reduce, so as many of them are needed, and predicted steps
are rounds: All-Reduce's, times workers over gradients in a round, times the price of lateness. That price is what
gradients that come a step late cost in a pipeline (`steps_model`), for each whole step, of as many gradients as there
are workers, that they are late on average. It was measured for pipelines, where all are late alike, not for quorums.

In groups models are averaged with the schedule's own matrices, each with as much progress as came
(docs/theory/quorum-groups.md). So the same recursion, with the calls that the run had in each round, says how far
models are apart, and the steps model what that costs. Averages that come r rounds late, of as many calls as there are
workers, count r times what is known of averages that come one round late to all alike, in their consensus distance and
in their price.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.planner.job import Job
from partreduce.planner.measuring import pushed_by
from partreduce.planner.option import Facts, LongerRun, Option
from partreduce.planner.trials.kit import PER_EVENT, error_of, memory_bytes
from partreduce.topo.figures.base import Figure, Kind, absent
from partreduce.topo.figures.late_distance import late_distance_like
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.quorum import balance

LEAST_ROUNDS, MOST_ROUNDS = 120, 480
SLOW_STEPS = 12
"""Of the slowest worker, in a run."""
WARM_UP = 4
"""One part of so many of a run is left out."""
MOST_LATE = 64
"""The longest queue that is proposed."""
PER_WORKER, PER_ENTRY = 3e-8, 5e-8
"""Nominal seconds of a message for each worker that it knows of, and of a round for each of the n² of its figures."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run in virtual time: seconds of a round, their relative error, waiting, bytes, and what was in the rounds.

    `calls` (num_rounds, num_workers) is how many each worker had in every round, the first ones as well, `ages` how
    many rounds each of them was late, and `came` the round that it was in; `oldest` is the most that any was late.
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
    ages: npt.NDArray[np.int64] = field(repr=False, compare=False)
    came: npt.NDArray[np.int64] = field(repr=False, compare=False)

    def first(self, num_rounds: int) -> Run:
        """What was in the first rounds of the run; its seconds and bytes stay those of the whole."""
        kept, ages = self.calls[num_rounds // WARM_UP : num_rounds], self.ages[self.came < num_rounds]
        counted = self.came[self.came < num_rounds] >= num_rounds // WARM_UP
        return replace(
            self,
            gradients=float(kept.sum()) / len(kept),
            age=float(ages[counted].mean()),
            calls=self.calls[:num_rounds],
        )


class Costs(NamedTuple):
    """What rounds cost whoever starts them: seconds that word is on its way, and of a sum."""

    word: float
    sum_seconds: float


class Figures(NamedTuple):
    """How far models are apart in a run: mean squares, as the figures of a schedule."""

    consensus_distance: float
    drift_worker: float
    drift_node: float


def sizes_of(schedule: Schedule) -> tuple[int, ...]:
    """The different numbers of members of its groups, ascending."""
    return tuple(sorted({int(size) for phase in phases_of(schedule) for size in phase.sizes}))


def phases_of(schedule: Schedule) -> list[Phase]:
    """The phases of a period."""
    return [schedule.phase(index) for index in range(schedule.phased.period)]


def pace_of(base: Option) -> int:
    """Steps of a round, the same for all."""
    return int(base.schedule.paces()[0])


def of_calls(seconds: npt.NDArray[np.float64], pace: int) -> npt.NDArray[np.float64]:
    """Seconds (samples, num_workers) of calls of `pace` steps each, from those of steps; each step is in one call."""
    whole = len(seconds) // pace
    return seconds[: whole * pace].reshape(whole, pace, -1).sum(axis=1) if whole else seconds * pace


def costs_of(base: Option, job: Job) -> Costs:
    """Of rounds that sum as the schedule does in lockstep."""
    return Costs(max(job.hardware.inside.latency, job.hardware.nic.latency), base.communication * pace_of(base))


def period_of(seconds: npt.NDArray[np.float64], schedule: Schedule, setting: Quorum, costs: Costs) -> float:
    """About how long a round takes: in each phase as the group whose quorum comes last would take by itself.

    Args:
        seconds: of calls, (samples, num_workers).
        schedule: of groups.
        setting: their quorum.
        costs: of word, and of a round's sums.
    """
    means, periods = seconds.mean(axis=0), []
    for phase in {(phase.members.tobytes(), phase.offsets.tobytes()): phase for phase in phases_of(schedule)}.values():
        groups = [np.array(group.members) for group in phase]
        if groups:
            last = max(groups, key=lambda group: float(np.sort(means[group])[setting.needed(len(group)) - 1]))
            found = balance(seconds[:, last], setting, word=costs.word, sum_seconds=costs.sum_seconds)
            periods.append(found.seconds)
    return float(np.mean(periods)) if periods else float(means.max())


def setting_of(base: Option, start: QuorumStart | int, job: Job, seconds: npt.NDArray[np.float64]) -> Quorum:
    """With a queue that holds the rounds which pass during the longest call, so that nobody waits for it.

    It is shorter where memory does not allow that. `seconds` (samples, num_workers) are those of steps; so in
    `rounds_of`.
    """
    made, calls = Quorum(quorum=start), of_calls(seconds, pace_of(base))
    period = period_of(calls, base.schedule, made, costs_of(base, job))
    longest = float(np.quantile(calls, 1 - 1 / (4 * calls.shape[1])))  # of which each worker has one in 4n
    wanted = min(MOST_LATE, ceil(longest / period) + 1) if period else 1
    if job.max_queues is not None:
        while wanted > 1 and held_by(by(base, replace(made, staleness=wanted)), job) > job.max_queues:
            wanted -= 1
    return replace(made, staleness=max(1, wanted))


def rounds_of(base: Option, setting: Quorum, job: Job, seconds: npt.NDArray[np.float64]) -> int:
    """Rounds of a run in which the slowest worker has some calls."""
    calls = of_calls(seconds, pace_of(base))
    period = period_of(calls, base.schedule, setting, costs_of(base, job))
    wanted = SLOW_STEPS * float(calls.mean(axis=0).max()) / period if period else 0.0
    return int(min(MOST_ROUNDS, max(LEAST_ROUNDS, wanted)))


def work_of_run(schedule: Schedule, setting: Quorum, num_rounds: int) -> float:
    """Nominal seconds: under a number all members of a group tell all, else one tells all.

    In groups a state says something of every worker, and there are figures.
    """
    count = schedule.num_workers
    told = [phase.sizes if isinstance(setting.quorum, QuorumStart) else phase.sizes**2 for phase in phases_of(schedule)]
    events = float(np.mean([sizes.sum() for sizes in told])) + 4 * count
    if schedule.strategy.averages_everyone:
        return num_rounds * PER_EVENT * events
    return num_rounds * ((PER_EVENT + PER_WORKER * count) * events + PER_ENTRY * count**2)


def held_by(option: Option, job: Job) -> float:
    """Bytes that a worker keeps beside its parameters."""
    return memory_bytes(option.schedule.strategy, job)


def figures_of(schedule: Schedule, calls: npt.NDArray[np.int64], node_of: npt.NDArray[np.int32]) -> Figures:
    """How far the models of a run are apart, after its warm-up. O(num_rounds · n²).

    b(k + 1) = W_k b(k) + u(k + 1) of docs/theory/quorum-groups.md, with noise of unit variance for every step, and with
    one push a worker, of which the mean is taken out as those that made no progress in a round would else count as
    pushed.

    Args:
        schedule: of groups, at one pace for all.
        calls: of each worker in every round, (num_rounds, num_workers).
        node_of: the node of each worker, (num_workers,).
    """
    count, pace = calls.shape[1], int(schedule.paces()[0])
    on_node = np.eye(int(node_of.max()) + 1)[node_of]  # (num_workers, num_nodes)
    noise, pushed = np.zeros((2, count, count))
    phases, first, squares = phases_of(schedule), len(calls) // WARM_UP, []
    if (after := len(calls) - first) > len(phases):
        first += after % len(phases)  # whole periods
    for index, came in enumerate(calls):
        phase, made = phases[index % len(phases)], np.diag(came * float(pace))
        noise = phase.apply(phase.apply(noise + made).T).T
        pushed = phase.apply(pushed + made)
        if index >= first:
            off = pushed - pushed.mean(axis=0)
            off -= off.mean(axis=1, keepdims=True)
            apart = float(np.trace(noise)) - float(noise.sum()) / count
            squares.append((apart, float((off**2).sum()), float(((off @ on_node) ** 2).sum())))
    inner = (count - 1) / count * (pace - 1) / 2  # steps of one's own within a round, as in `topo.figures.retimed`
    spread, by_worker, by_node = (np.mean(squares, axis=0) / count).tolist()
    return Figures(spread + inner, by_worker, by_node)


def words_of(setting: Quorum, base: Option) -> str:
    """A setting as tables call it."""
    is_number = not isinstance(setting.quorum, QuorumStart)
    if base.is_plain:
        return f"{setting.quorum} of {base.schedule.num_workers}" if is_number else str(setting.quorum)
    return f"{f'{setting.quorum} of' if is_number else 'solo in'} each group of {base.name}"


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
        oldest=int(record.ages.max()),
        calls=record.gradients,
        ages=record.ages,
        came=record.rounds,
    )


def price_of(delay: float, job: Job) -> float:
    """What it costs that gradients are late by so many whole steps on average; between whole numbers in proportion."""
    model, whole = job.steps_model, floor(delay)
    below, above = (model.delayed(1 + late, job.curvature) for late in (whole, whole + 1))
    return below + (delay - whole) * (above - below) if isfinite(above) else above


def measured(base: Option, setting: Quorum, job: Job, found: Run) -> Option:
    """A schedule under a quorum, as one run of it is."""
    option, count, pace = by(base, setting), job.cluster.num_workers, pace_of(base)
    option.schedule.strategy.check(job.cluster)
    assert setting.bound is not None, "each keeps one"
    option = _with_price(option, late_of(found), job) if base.is_plain else _with_figures(option, job, found)
    late = late_of(found)
    words = words_of(setting, base)
    name = f"quorum: {words}, up to {setting.staleness} late"
    model = job.steps_model
    return replace(
        option,
        name=name,
        schedule=replace(option.schedule, name=name),
        nic_bytes=found.nic_bytes / pace,
        step_seconds=found.seconds / pace,
        step_error=found.error,
        waiting=found.waiting / pace,
        steps_ratio=count / found.gradients * option.steps_ratio,
        model=model,
        facts=Facts(
            kind="quorum",
            words=words,
            memory_bytes=held_by(option, job),
            least_share=found.least_share,
            more=count / found.gradients * (late * model.delay_more if base.is_plain else option.averages_more),
            of="" if base.is_plain else base.name,
            active=found.active,
            gradients=found.gradients * pace,
            gradients_per_second=found.gradients * pace / found.seconds if found.seconds else float("inf"),
            age=found.age,
            delay=late,
            bound=setting.bound,
        ),
    )


def late_of(found: Run) -> float:
    """How many rounds of as many calls as there are workers its calls are late on average."""
    return found.age * found.gradients / len(found.calls[0])


def longer_of(base: Option, setting: Quorum, job: Job, num_rounds: int) -> LongerRun | None:
    """How a schedule of groups under a quorum is run for longer; None of All-Reduce, which keeps replicas equal."""
    if base.is_plain:
        return None

    def longer(rounds: int) -> tuple[Option, tuple[float, float, float]]:
        found = run(by(base, setting), job, job.compute_times(), rounds)
        option = measured(base, setting, job, found)
        parts = [found.first(rounds // part) for part in (4, 2)]
        figures = [figures_of(base.schedule, part.calls, job.cluster.node_of()) for part in parts]
        quarter, half = (distance_of(*one, pace_of(base)) for one in zip(figures, parts, strict=True))
        return option, (quarter, half, float(option.consensus_distance))

    whole = 4 * base.schedule.phased.period  # so that each part ends with a period
    rounds = whole * ceil(max(num_rounds, 2 * whole) / whole)
    return LongerRun(rounds, lambda rounds: work_of_run(base.schedule, setting, rounds), longer)


def distance_of(figures: Figures, found: Run, pace: int) -> float:
    """The consensus distance of groups in a run: of what came, and of the rounds that it came late."""
    count = len(found.calls[0])
    # What comes a round late to all alike adds a round's steps (`topo.figures.retimed`).
    return figures.consensus_distance + late_of(found) * pace * (count - 1) / count


def _with_price(option: Option, late: float, job: Job) -> Option:
    """All-Reduce, with the price of gradients that are late by so many steps."""
    return replace(
        option,
        contraction=absent("whose gradients are in a round is decided while the job runs"),
        steps_ratio=1 + price_of(late, job),
        extrapolated=False,
    )


def _with_figures(option: Option, job: Job, found: Run) -> Option:
    """Groups, with the figures of what came in a run, and the price of averages that come so many rounds late."""
    count, pace, model = job.cluster.num_workers, pace_of(option), job.steps_model
    figures, late = figures_of(option.schedule, found.calls, job.cluster.node_of()), late_of(found)
    how = f"by a run of {len(found.calls)} rounds"
    noise = Figure(distance_of(figures, found, pace), Kind.ESTIMATE, how)
    drift = Figure(figures.drift_node if job.push == "node" else figures.drift_worker, Kind.ESTIMATE, how)
    counted = (float(noise), pushed_by(drift, job))
    apart = late * late_distance_like(float(noise), pace, 1 - 1 / count)
    return replace(
        option,
        consensus_distance=noise,
        drift=drift,
        contraction=absent("of the shadow models it is the schedule's own; models are never all of one round"),
        late_distance=apart,
        steps_ratio=model.steps_ratio(*counted, late=apart),
        extrapolated=model.extrapolates(*counted),
        corrected=False,
    )
