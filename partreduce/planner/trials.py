"""Trials: a strategy without common rounds is run in virtual time, and its steps are priced by what it did.

The objects of the run-time run it, on links that all share. Where models meet, or neighbors average what no matrix says
beforehand, the run is carried out on vectors, which gives the consensus distance and the drift that the steps model
prices; a step that brings the mean less far needs as many more steps. Digits trained along the same reduces needed
within 6 % of that under 11 of 12 settings of neighbors in serial order (benchmarks/results/steps_to_loss_gaps.json).

A round under a quorum is no step of All-Reduce: fewer gradients are in it, and some are late. Each weighs what it
weighs in All-Reduce, so as many of them are needed. Gradients that are late by some steps on average, there and at an
asynchronous server, pay what a step costs in a pipeline, in proportion.

What is not calibrated is priced pessimistically where it decides (`Facts.more`). AD-PSGD beside its computing needed
42.2 / 27.7 = 1.53 times All-Reduce's steps in rehearsal on the lab's digits, each at its best rate, and 70 / 43 = 1.63
times on the wire; groups on request 0.93 to 1.03 times (benchmarks/lab/rates.json, results/lab-baselines.md). So pairs
pay at least the second at worst, and groups the error that the steps model states.

A run that is too short hides that workers drift apart without end: updates that never arrive cost no seconds. So what
comes from a run is run for longer before it is recommended or shown: n, 2n and 4n rounds have to show the same
consensus distance (`SteadyCheck`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import floor, isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.planner.front import front
from partreduce.planner.gain import TIE, decisive_time
from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import ScheduleMetrics, metrics_of, pushed_by, seconds_of
from partreduce.planner.option import CandidateSchedule, Facts, LongerRun
from partreduce.planner.predict import ARRAYS
from partreduce.planner.recommend import permitted, recommend
from partreduce.planner.work import payer
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.replay import Meetings, Replay
from partreduce.schedulers.simulator.simulate import PROTOCOLS
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.errors import PartreduceError, UndecidedError
from partreduce.topo.metrics.base import Kind as MetricKind
from partreduce.topo.metrics.base import Metric, absent
from partreduce.topo.metrics.late_distance import late_distance_like
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.strategies.server import Server

ROUNDS, LONGER = 60, {"iteration_gap": 240, "dynamic_groups": 160, "pairwise": 160}
"""Rounds of a run of neighbors, and by kind of the first run that shows whether the consensus distance is steady."""
MEETING_ROUNDS = 80
"""Rounds of a run of groups on request, pairs and servers."""
WARM_UP, PARTS = 4, 4
"""One part of so many of a run is left out; parts of the rest say how much its seconds vary."""
PER_EVENT = 1.7e-5
"""Nominal seconds of a run for each event of a worker and each message."""
PAIRS_AT_WORST = 0.63
"""What AD-PSGD needed more than All-Reduce's steps where it was measured."""
GAPS_AT_WORST = 0.06
"""What neighbors that keep a gap needed more than predicted under 11 of 12 settings."""
UNHEARD = 0.05
"""Gradients that count less than this part of an even share count next to nothing."""
STEADY_SHARE = 0.3
"""Of the time, for longer runs where a kind that needs them is weighed."""
WITHIN = 0.1
"""The part by which the consensus distances of n, 2n and 4n rounds may differ."""
DOUBLINGS = 2
"""Times that a run is doubled whose consensus distance rises ever more slowly, so that it may still come to rest."""
GROWTH = 1.5
"""Rising by so much with each doubling is no approach to a limit."""
LISTED = 8
"""Options that the answer names with their distances."""


class Candidate(NamedTuple):
    """A schedule before it is tried: what it is called, and the setting in words; rounds where they are not the usual.

    `make` takes the place of a run in virtual time for what has fixed phases and a price of its own.
    """

    kind: str
    name: str
    words: str
    schedule: Schedule
    algorithm: AllReduceAlgorithm
    rounds: int = MEETING_ROUNDS
    work: float | None = None
    make: Callable[[], CandidateSchedule] | None = None

    def nominal(self, num_rounds: int | None = None) -> float:
        """Nominal seconds of a run, or of what is made without."""
        return self.work if self.work is not None else PER_EVENT * (num_rounds or self.rounds) * _events(self.schedule)

    def option(self, job: PlanRequest) -> CandidateSchedule | None:
        """As a run shows it; None if its workers wait for one another for ever, or it does not suit the job."""
        if self.make is not None:
            return self.make()
        try:
            tried = trial(self.schedule, job, self.rounds, self.algorithm)
        except PartreduceError:
            return None
        option = priced(self, tried, job)
        if not tried.is_sampled:
            return option
        return replace(option, longer=LongerRun(LONGER[self.kind], self.nominal, partial(self._longer, job)))

    def _longer(self, job: PlanRequest, num_rounds: int) -> tuple[CandidateSchedule, tuple[float, float, float]] | None:
        try:
            tried = trial(self.schedule, job, num_rounds, self.algorithm)
        except PartreduceError:
            return None
        return priced(self, tried, job), tried.distances


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run shows. Seconds and bytes are per step, `error` is relative.

    `samples` gradients are in a step, of as many workers, and `progress` is how far it brings the mean where a
    synchronous round gives 1. Gradients come `delay` whole steps late on average, in `age` rounds. `noise` is the
    number of workers whose gradients would leave as much noise in the mean, `shares` (num_workers,) what each one's
    count where an even share is 1, `active` how many are in a round, and `computed` the part of all steps that were
    computed. `distances` are the consensus distances of the first quarter, the first half and the whole of the run,
    which `is_sampled` says come from it.
    """

    seconds: float
    error: float
    communication: float
    waiting: float
    nic_bytes: float
    samples: float
    metrics: ScheduleMetrics
    memory_bytes: float
    shares: npt.NDArray[np.float64]
    progress: float = 1.0
    delay: float = 0.0
    age: float = 0.0
    noise: float = 0.0
    active: float = 0.0
    computed: float = 1.0
    distances: tuple[float, float, float] = (0.0, 0.0, 0.0)
    is_sampled: bool = False


def trial(
    schedule: Schedule, job: PlanRequest, num_rounds: int, algorithm: AllReduceAlgorithm | None = None
) -> Outcome:
    """One run in virtual time.

    Raises:
        PartreduceError: workers wait for one another for ever, or a queue has no limit.
    """
    strategy, count, times = schedule.strategy, schedule.num_workers, job.compute_times()
    listener: Replay | Meetings | None = None
    if isinstance(strategy.sync, IterationGap):
        listener = Replay(strategy.graphs[0], strategy.sync, seed=job.seed)
    elif isinstance(strategy, DynamicGroups | Pairwise):
        listener = Meetings(job.cluster, seed=job.seed)
    case = Case(
        schedule,
        job.hardware,
        times,
        num_rounds,
        job.seed,
        model_bytes=None,
        algorithm=algorithm or strategy.transport.algorithm,
        listeners=() if listener is None else (listener,),
    )
    timeline = PROTOCOLS[strategy.protocol](case)
    observed, first = timeline.observed, num_rounds // WARM_UP
    assert observed is not None, "every protocol counts what it sends"
    steps, seconds = num_rounds * float(schedule.worker_steps().mean()), timeline.per_step(warm_up=first)
    zero = Metric(0.0, MetricKind.EXACT, "one copy of the parameters, or averages over all workers")
    decided = absent("what is averaged is decided while the job runs")
    outcome = Outcome(
        seconds=seconds,
        error=_error(timeline, first) / seconds if seconds else 0.0,
        communication=float(timeline.communicating().mean()) / steps,
        waiting=float(timeline.waiting().mean()) / steps,
        nic_bytes=float(observed.nic_bytes.max(initial=0.0)) / steps,
        samples=float(count),
        noise=float(count),
        metrics=ScheduleMetrics(zero, zero, decided),
        memory_bytes=memory_bytes(strategy, job),
        shares=np.ones(count),
    )
    if (record := observed.quorum) is not None:
        gradients, counted = record.gradients[first:], record.rounds >= first
        samples, age = float(gradients.sum()) / len(gradients), float(record.ages[counted].mean())
        # Rounds of as many calls as there are workers.
        return replace(
            outcome, samples=samples, progress=samples / count, age=age, delay=age * samples / count,
            active=float(record.active[first:].mean()), shares=gradients.sum(axis=0) / gradients.sum() * count,
        )  # fmt: skip
    if isinstance(strategy, Server):
        age = 0.0 if strategy.averages_gradients else observed.mean_age or 0.0
        return replace(outcome, age=age, delay=age * (count - 1) / count)
    if isinstance(listener, Meetings):
        found = tuple(listener.mean(num_rounds, part)[0] for part in (4, 2, 1))
        metrics = _sampled(*listener.mean(num_rounds), job, f"by a run of {num_rounds} rounds")
        outcome = replace(outcome, age=observed.mean_age or 0.0)
        return replace(outcome, metrics=metrics, distances=found, is_sampled=True)  # type: ignore[arg-type]
    assert isinstance(listener, Replay), "each protocol has its listener"
    node_of, last = job.cluster.node_of(), min(listener.step)
    did = listener.replayed(node_of)
    quarter, half = (listener.replayed(node_of, last=last // part).consensus_distance for part in (4, 2))
    mixes = schedule.is_mixing  # its consensus distance is that of its matrices
    metrics = metrics_of(schedule, job) if mixes else _sampled(
        did.consensus_distance, did.drift_worker, did.drift_node, job, f"replayed: 1 run of {num_rounds} steps"
    )  # fmt: skip
    return replace(
        outcome, metrics=metrics, progress=did.progress, noise=did.gradients, computed=did.computed,
        shares=did.shares * count, distances=(quarter, half, did.consensus_distance), is_sampled=not mixes,
    )  # fmt: skip


def _sampled(noise: float, by_worker: float, by_node: float, job: PlanRequest, how: str) -> ScheduleMetrics:
    drift = by_node if job.push == "node" else by_worker
    spread, pushed = (Metric(value, MetricKind.ESTIMATE, how) for value in (noise, drift))
    return ScheduleMetrics(spread, pushed, absent("what is averaged is decided while the job runs"))


def priced(candidate: Candidate, tried: Outcome, job: PlanRequest) -> CandidateSchedule:
    """The option as its run was, with the price of what that does to its steps."""
    schedule, model, kind = candidate.schedule, job.steps_model, candidate.kind
    strategy, count = schedule.strategy, schedule.num_workers
    spread, drift = tried.metrics.consensus_distance, tried.metrics.drift
    metrics = float(spread), pushed_by(drift, job)
    adds = isinstance(strategy, Server) or isinstance(strategy.sync, PartialAllReduce)
    comes_late = not adds and (strategy.is_delayed or isinstance(strategy, Pairwise))
    late = late_distance_like(float(spread), 1, 1 - 1 / count) if comes_late else 0.0
    # A mean that gets less far in each step needs more steps; one that gets further has a larger learning rate, which
    # the job could have had anyway.
    progress = max(min(1.0, tried.progress), 1e-9)
    delayed = price_of(tried.delay, job)
    steps_ratio = model.steps_ratio(*metrics, late=late, delayed=delayed, gradients=adds) / progress
    more = tried.delay * model.delay_more if tried.delay else 0.0
    more = (more + (model.late_more(late) if late else 0.0)) / progress
    if kind in ("dynamic_groups", "pairwise"):
        more = max(steps_ratio * model.error(job.data), 1 + PAIRS_AT_WORST - steps_ratio if kind == "pairwise" else 0.0)
    elif kind == "iteration_gap":
        more += GAPS_AT_WORST * steps_ratio
    bound = strategy.sync.bound if isinstance(strategy.sync, PartialAllReduce) else 0
    return CandidateSchedule(
        name=candidate.name,
        schedule=schedule,
        algorithm=candidate.algorithm,
        period=1,
        communication=tried.communication,
        nic_bytes=tried.nic_bytes,
        step_seconds=tried.seconds,
        step_error=tried.error,
        waiting=tried.waiting,
        consensus_distance=spread,
        drift=drift,
        contraction=tried.metrics.contraction,
        late_distance=late if kind == "iteration_gap" else 0.0,
        steps_ratio=steps_ratio,
        model=model,
        extrapolated=not adds and model.extrapolates(*metrics),
        status="catalogue",
        facts=Facts(
            kind=kind,
            words=candidate.words,
            memory_bytes=tried.memory_bytes,
            least_share=float(tried.shares.min()),
            gradients=tried.noise / count if kind == "iteration_gap" else tried.samples,
            gradients_per_second=tried.samples / tried.seconds if tried.seconds else float("inf"),
            more=more,
            unheard=tuple(np.flatnonzero(tried.shares < UNHEARD).tolist()) if kind == "iteration_gap" else (),
            active=tried.active,
            age=tried.age,
            delay=tried.delay,
            bound=bound or 0,
            progress=tried.progress,
            computed=tried.computed,
        ),
    )


def price_of(delay: float, job: PlanRequest) -> float:
    """What it costs that gradients are late by so many whole steps on average; between whole numbers in proportion."""
    model, whole = job.steps_model, floor(delay)
    below, above = (model.delayed(1 + late, job.curvature) for late in (whole, whole + 1))
    return below + (delay - whole) * (above - below) if isfinite(above) else above if delay else 0.0


def memory_bytes(strategy: Strategy, job: PlanRequest) -> float:
    """What the busiest worker keeps beside its parameters, as proved; of a model whose size is known.

    Raises:
        ScheduleError: a queue without a limit.
    """
    return ARRAYS[strategy.protocol](strategy, job.cluster.num_workers) * (job.hardware.model_bytes or 0)


def _error(timeline: Timeline, warm_up: int) -> float:
    """The standard error of the seconds of a round, from those of the parts of a run."""
    ends = timeline.finish.mean(axis=1)  # (num_rounds,)
    marks = np.linspace(warm_up - 1, len(ends) - 1, PARTS + 1).astype(int)
    parts = np.diff(ends[marks]) / np.diff(marks)
    return float(parts.std(ddof=1)) / float(PARTS**0.5)


def _events(schedule: Schedule) -> float:
    """Events of a round: of workers, and messages; what is on the links at once grows with the square of workers."""
    strategy, count = schedule.strategy, schedule.num_workers
    if isinstance(strategy.sync, IterationGap):  # updates and tokens go along each edge
        return 3 * count + len(strategy.graphs[0]) * (1 + (strategy.sync.max_ig is not None))
    if isinstance(strategy.sync, PartialAllReduce):  # under a number all tell all, else one tells all
        return 4 * count + (count if isinstance(strategy.sync.quorum, QuorumStart) else count**2)
    return count * (8 + count / 4) * (1 + isinstance(strategy, Server))


class Tried(NamedTuple):
    """What was tried of a kind, and the names of what the time did not reach."""

    options: list[CandidateSchedule]
    left_out: list[str]


def try_all(
    candidates: Iterable[Candidate], job: PlanRequest, pay: Callable[[float], bool], *, in_any_case: bool
) -> Tried:
    """Try those that there is time for; the cheapest one if nothing was tried and one is needed `in_any_case`."""
    tried, missed = Tried([], []), list[Candidate]()
    for candidate in candidates:
        if not pay(candidate.nominal()) and candidate.name != job.take:
            missed.append(candidate)
        elif (option := candidate.option(job)) is not None:
            tried.options.append(option)
    if missed and not tried.options and in_any_case:
        cheapest = min(missed, key=Candidate.nominal)
        missed.remove(cheapest)
        tried.options.extend(filter(None, [cheapest.option(job)]))
    tried.left_out.extend(candidate.name for candidate in missed)
    return tried


def best_of(options: Sequence[CandidateSchedule]) -> CandidateSchedule:
    """The least time to a loss."""
    return min(options, key=lambda option: (option.time, option.name))


def is_steady(distances: Sequence[float]) -> bool:
    """Whether consensus distances of n, 2n and 4n rounds are the same within 10 %."""
    return all(map(isfinite, distances)) and max(distances) <= (1 + WITHIN) * min(distances)


@dataclass
class SteadyCheck:
    """Runs for longer what would be recommended, is on the front, or is the best of its kind; what fails is out.

    A quick answer does that for the first of these alone, and shows no other. `left_out` says by name why an option is
    out; runs end at the clock's position `until`.
    """

    job: PlanRequest
    clock: Clock
    until: float
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pay = payer(self.clock, self.until)
        self._tries = Counter[str]()

    def settled(self, options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
        """The options without those that are not steady, and without those that nobody needs to run for longer.

        Raises:
            UndecidedError: the job takes an option that is not steady.
        """
        kept = list(options)
        while (unsure := self._next(kept)) is not None:
            found = self._longer(unsure)
            if found is None and self.job.take is not None and unsure.name == self.job.take:
                raise UndecidedError(f"--select {unsure.name!r}: {self.left_out[unsure.name]}; take another one")
            kept = [found or one if one is unsure else one for one in kept if one is not unsure or found is not None]
        return [one for one in kept if one.longer is None]

    def words(self) -> list[str]:
        """What is out, and why, as one sentence; none where nothing is."""
        if not self.left_out:
            return []
        named = [f"{name} ({why})" for name, why in list(self.left_out.items())[:LISTED]]
        more = f", and {len(self.left_out) - LISTED} more" if len(self.left_out) > LISTED else ""
        return [f"left out, because a longer run does not show a steady consensus distance: {', '.join(named)}{more}"]

    def lost(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule]) -> str:
        """Why what answers slow workers is not recommended, though it wins: it loses if they are half as slow.

        The best of what has common rounds has to be slower there, too: how slow who is, nobody knows well.
        """
        job, facts = self.job, chosen.facts
        fixed = [one for one in permitted(options, job) if one.facts is None]
        if facts is None or facts.by_task or job.gap or job.quorum or job.take is not None or not fixed:
            return ""
        slowdown = tuple((worker, (1 + factor) / 2) for worker, factor in job.hardware.slowdown)
        hardware = replace(job.hardware, slowdown=slowdown, jitter=job.hardware.jitter / 2)
        if hardware == job.hardware:
            return ""
        eased, rival = replace(job, cluster=replace(job.cluster, hardware=hardware)), recommend(fixed, job)
        rounds = LONGER.get(facts.kind, MEETING_ROUNDS)
        again = Candidate(facts.kind, chosen.name, facts.words, chosen.schedule, chosen.algorithm)
        if not self._has_time(again.nominal(rounds)):
            return f"{chosen.name} (there was no time to run it with less slow workers)"
        try:
            there = decisive_time(priced(again, trial(again.schedule, eased, rounds, again.algorithm), eased), eased)
        except PartreduceError as error:
            return f"{chosen.name} ({error})"
        seconds = seconds_of(rival.schedule, eased, rival.algorithm).step
        ratio = there / max(decisive_time(replace(rival, step_seconds=seconds), eased), 1e-300)
        if ratio <= 1 + TIE:
            return ""
        return f"{chosen.name} (if they were half as slow, it would take {ratio:.2f} times as long as {rival.name})"

    def _next(self, options: Sequence[CandidateSchedule]) -> CandidateSchedule | None:
        unsure = [option for option in options if option.longer is not None]
        if not unsure:
            return None
        with suppress(UndecidedError):
            chosen = recommend(options, self.job)
            if chosen.longer is not None:
                return chosen
        if not self.job.searches:
            return None
        able = {id(option) for option in permitted(options, self.job)}
        kinds = dict.fromkeys(option.facts.kind for option in unsure if option.facts is not None)
        for kind in sorted(kinds, key=lambda one: self._tries[one]):  # so that no kind uses up the time of the others
            alike = [one for one in options if one.facts is not None and one.facts.kind == kind]
            best = best_of([one for one in alike if id(one) in able] or alike)
            if best.longer is not None:
                return best
        shown = [option for option in front(options) if option.longer is not None]
        return best_of(shown) if shown else None

    def _longer(self, option: CandidateSchedule) -> CandidateSchedule | None:
        """The option with the prices of a run in which it is steady; None if there is none."""
        assert option.longer is not None, "it was chosen for that"
        self._tries[option.facts.kind if option.facts else ""] += 1
        rounds = option.longer.rounds
        for _ in range(1 + DOUBLINGS):
            if not self._has_time(option.longer.work(rounds)):
                self.left_out[option.name] = f"there was no time for {rounds} rounds"
                return None
            found = option.longer.run(rounds)
            if found is None:
                self.left_out[option.name] = "its workers wait for one another for ever"
                return None
            priced_again, distances = found
            if is_steady(distances):
                self.left_out.pop(option.name, None)
                return replace(priced_again, longer=None)
            reached = ", ".join(f"{distance:.3g}" for distance in distances)
            self.left_out[option.name] = f"{reached} after {rounds // 4}, {rounds // 2} and {rounds} rounds"
            quarter, half, whole = distances
            if not isfinite(whole) or (half >= GROWTH * quarter and whole >= GROWTH * half):
                return None
            rounds *= 2
        return None

    def _has_time(self, work: float) -> bool:
        """Whether there is time for a run; where nothing else is asked for, as long as there are seconds."""
        if work > self.clock.left(self.clock.limit):
            self.clock.capped = True
            return False
        if self._pay(work):
            return True
        if self.job.gap:
            self.clock.charge(work)
        return bool(self.job.gap)
