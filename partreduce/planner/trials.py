"""Simulate strategies without common rounds in virtual time, and predict their training steps from the simulation.

The simulation runs the runtime's own protocol code on a model of the shared links. If the order of averages is not
known in advance, it also averages vectors of noise, from which it estimates the consensus distance and the drift that
the steps model prices; if a step moves the mean less, proportionally more steps are needed. Training on digits needed
within 6 % of the predicted steps under 11 of 12 settings of neighbors (benchmarks/results/steps_to_loss_gaps.json).

A round under a quorum is not a step of All-Reduce: it has fewer gradients, each with the same weight, so the same
number of gradients is needed. Gradients that are late by some steps on average, in a quorum and at an asynchronous
server, pay the pipeline's price of a step in proportion.

A short run hides workers that drift apart without bound: updates that never arrive cost no seconds. So a candidate from
a run is run for longer before it is recommended or shown (`SteadyCheck`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

import numpy as np

from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import Seconds, Traffic, assemble, metrics_of, payer, reprice, seconds_of
from partreduce.planner.option import SUMMING, CandidateSchedule, Facts
from partreduce.planner.predict import ARRAYS
from partreduce.planner.recommend import TIE, allowed_options, decisive_time, front, is_outer, recommend
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.replay import Meetings, Replay
from partreduce.schedulers.simulator.simulate import PROTOCOLS
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.errors import PartreduceError, UndecidedError
from partreduce.topo.metrics.base import Kind as MetricKind
from partreduce.topo.metrics.base import Metric, absent
from partreduce.topo.metrics.evaluate import Convergence
from partreduce.topo.metrics.late_distance import late_distance_like
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.strategies.server import Server

ROUNDS, LONGER = 60, {"iteration_gap": 240, "dynamic_groups": 160, "pairwise": 160}
"""Rounds to simulate of iteration gaps; and, by kind, rounds of the first longer simulation, which tests whether the
consensus distance is steady."""
MEETING_ROUNDS = 80
"""Rounds of a run of groups on request, pairs and servers."""
WARM_UP, PARTS = 4, 4
"""The first 1/WARM_UP of a run is not measured; the rest is cut into PARTS to estimate the error of its seconds."""
PER_EVENT = 1.7e-5
"""Nominal seconds of simulation for each event of a worker and each message."""
NO_SHARE = 0.05
"""Workers whose gradients have less than this fraction of an even weight contribute nothing."""
STEADY_SHARE = 0.3
"""Fraction of the time for longer simulations, if a kind that needs them is considered."""
WITHIN = 0.1
"""Largest relative difference of the consensus distances of n, 2n and 4n rounds that counts as steady."""
DOUBLINGS = 2
"""Most doublings of a run whose consensus distance grows ever more slowly and may still converge."""
GROWTH = 1.5
"""Growth by this factor with each doubling is not convergence."""
UNDECIDED = absent("what is averaged is decided while the job runs")
DEADLOCK = "its workers wait for one another for ever"
LISTED = 8
"""Most dropped candidates that are listed with their reasons."""


class Candidate(NamedTuple):
    """A schedule to simulate for `rounds` rounds, with its kind (`Facts.kind`), name, and setting in words.

    `make` replaces the simulation for outer steps, whose steps were measured; it takes `seconds` nominal seconds
    (0: counted from the events of the simulation).
    """

    kind: str
    name: str
    words: str
    schedule: Schedule
    rounds: int = MEETING_ROUNDS
    seconds: float = 0.0
    make: Callable[[], CandidateSchedule] | None = None

    def work(self, num_rounds: int | None = None) -> float:
        return self.seconds or PER_EVENT * (num_rounds or self.rounds) * _events(self.schedule)

    def option(self, job: PlanRequest) -> CandidateSchedule | None:
        if self.make is not None:
            return self.make()
        if (run := self.run(job, self.rounds)) is None:
            return None
        return replace(reprice(run.option, job), longer=self if run.distances else None)

    def run(self, job: PlanRequest, num_rounds: int) -> Run | None:
        with suppress(PartreduceError):
            return trial(self, job.as_measured, num_rounds)
        return None


class Run(NamedTuple):
    """A simulated candidate, its steps not priced yet.

    `distances` are the consensus distances of the first quarter, the first half and the whole of the run; empty if the
    candidate's consensus distance does not come from the run.
    """

    option: CandidateSchedule
    distances: tuple[float, ...]


@lru_cache(maxsize=256)
def trial(candidate: Candidate, job: PlanRequest, num_rounds: int) -> Run:
    """Simulate a schedule for `num_rounds` rounds of each worker in virtual time; cached.

    Raises:
        PartreduceError: the workers deadlock, or a queue has no limit.
    """
    schedule = candidate.schedule
    strategy, count = schedule.strategy, schedule.num_workers
    listener: Replay | Meetings | None = None
    if isinstance(strategy.sync, IterationGap):
        listener = Replay(strategy.graphs[0], strategy.sync, seed=job.seed)
    elif isinstance(strategy, DynamicGroups | Pairwise):
        listener = Meetings(job.cluster, seed=job.seed)
    timeline = PROTOCOLS[strategy.protocol](Case(
        schedule, job.hardware, job.compute_times, num_rounds, job.seed, model_bytes=None,
        algorithm=strategy.transport.algorithm, listeners=() if listener is None else (listener,),
    ))  # fmt: skip
    observed, first = timeline.observed, num_rounds // WARM_UP
    assert observed is not None, "every protocol counts what it sends"
    steps, seconds = num_rounds * float(schedule.worker_steps().mean()), timeline.per_step(warm_up=first)
    zero = Metric(0.0, MetricKind.EXACT, "one copy of the parameters, or averages over all workers")
    metrics, distances = Convergence(zero, zero, UNDECIDED), tuple[float, ...]()
    facts = Facts(
        kind=candidate.kind,
        words=candidate.words,
        memory_bytes=memory_bytes(strategy, job),
        least_share=1.0,
        gradients=float(count),
        age=observed.mean_age or 0.0,
    )
    if (record := observed.quorum) is not None:
        assert isinstance(strategy.sync, PartialAllReduce), "only quorums have a record"
        gradients, counted = record.gradients[first:], record.rounds >= first
        samples, age = float(gradients.sum()) / len(gradients), float(record.ages[counted].mean())
        shares = gradients.sum(axis=0) / gradients.sum() * count
        # A round consists of as many calls as there are workers.
        facts = replace(
            facts, gradients=samples, gradients_per_second=samples / seconds if seconds else float("inf"), age=age,
            progress=samples / count, delay=age * samples / count, active=float(record.active[first:].mean()),
            least_share=float(shares.min()), bound=strategy.sync.bound or 0,
        )  # fmt: skip
    elif isinstance(strategy, Server):
        age = 0.0 if strategy.averages_gradients else facts.age
        facts = replace(facts, age=age, delay=age * (count - 1) / count)
    elif isinstance(listener, Meetings):
        means = [listener.mean(num_rounds, part) for part in (4, 2, 1)]
        metrics = _estimates(*means[-1], job, f"by a run of {num_rounds} rounds")
        distances = tuple(distance for distance, *_ in means)
    else:
        assert isinstance(listener, Replay), "each protocol has its listener"
        last = min(listener.step)
        *parts, whole = (listener.replayed(job.cluster.node_of(), last=last // part) for part in (4, 2, 1))
        if schedule.is_mixing:  # its consensus distance follows from its matrices
            metrics = metrics_of(schedule, job.push)
        else:
            noise, how = whole.consensus_distance, f"replayed: 1 run of {num_rounds} steps"
            metrics = _estimates(noise, whole.drift_worker, whole.drift_node, job, how)
            distances = tuple(one.consensus_distance for one in (*parts, whole))
        shares = whole.shares * count
        facts = replace(
            facts, progress=whole.progress, gradients=whole.gradients / count, computed=whole.computed,
            least_share=float(shares.min()), without_share=tuple(np.flatnonzero(shares < NO_SHARE).tolist()),
        )  # fmt: skip
    comes_late = candidate.kind not in SUMMING and (strategy.is_delayed or isinstance(strategy, Pairwise))
    late = late_distance_like(float(metrics.consensus_distance), 1, 1 - 1 / count) if comes_late else 0.0
    sent = Traffic(float(timeline.communicating().mean()) / steps, float(observed.nic_bytes.max(initial=0.0)) / steps)
    option = assemble(
        schedule,
        job,
        candidate.name,
        sent=sent,
        seconds=Seconds(seconds, 0.0, _error(timeline, first) / seconds if seconds else 0.0),
        metrics=metrics._replace(late_distance=late),
        facts=facts,
    )
    return Run(replace(option, waiting=float(timeline.waiting().mean()) / steps), distances)


def _estimates(noise: float, by_worker: float, by_node: float, job: PlanRequest, how: str) -> Convergence:
    drift = by_node if job.push == "node" else by_worker
    spread, pushed = (Metric(value, MetricKind.ESTIMATE, how) for value in (noise, drift))
    return Convergence(spread, pushed, UNDECIDED)


def memory_bytes(strategy: Strategy, job: PlanRequest) -> float:
    """Return the proved memory in bytes of the busiest worker in addition to its parameters.

    Raises:
        ScheduleError: a queue without a limit.
    """
    return ARRAYS[strategy.protocol](strategy, job.cluster.num_workers) * (job.hardware.model_bytes or 0)


def _error(timeline: Timeline, warm_up: int) -> float:
    """Return the standard error of the seconds of a round, from `PARTS` parts of a run after `warm_up` rounds."""
    ends = timeline.finish.mean(axis=1)  # (num_rounds,)
    marks = np.linspace(warm_up - 1, len(ends) - 1, PARTS + 1).astype(int)
    return float((np.diff(ends[marks]) / np.diff(marks)).std(ddof=1)) / float(PARTS**0.5)


def _events(schedule: Schedule) -> float:
    """Return about how many events (of workers, and messages) the simulation of a round has."""
    strategy, count = schedule.strategy, schedule.num_workers
    if isinstance(strategy.sync, IterationGap):  # updates and tokens use each edge
        return 3 * count + len(strategy.graphs[0]) * (1 + (strategy.sync.max_ig is not None))
    if isinstance(strategy.sync, PartialAllReduce):  # under a number all notify all, else one notifies all
        return 4 * count + (count if isinstance(strategy.sync.quorum, QuorumStart) else count**2)
    return count * (8 + count / 4) * (1 + isinstance(strategy, Server))


def try_all(
    candidates: Iterable[Candidate], job: PlanRequest, pay: Callable[[float], bool], *, in_any_case: bool
) -> tuple[list[CandidateSchedule], list[str]]:
    """Return the candidates, simulated and priced, and the names of those for which there was no time.

    `pay` charges work in nominal seconds, and returns whether it fits. If nothing fits, the cheapest candidate is
    simulated `in_any_case`.
    """
    options, missed = list[CandidateSchedule](), list[Candidate]()
    for candidate in candidates:
        if not pay(candidate.work()) and candidate.name != job.take:
            missed.append(candidate)
        elif (option := candidate.option(job)) is not None:
            options.append(option)
    if missed and not options and in_any_case:
        cheapest = min(missed, key=Candidate.work)
        missed.remove(cheapest)
        options.extend(filter(None, [cheapest.option(job)]))
    return options, [candidate.name for candidate in missed]


def best_of(options: Sequence[CandidateSchedule]) -> CandidateSchedule:
    """Return the candidate with the least predicted time to a loss."""
    return min(options, key=lambda option: (option.time, option.name))


def is_steady(distances: Sequence[float]) -> bool:
    """Return whether the consensus distances of n, 2n and 4n rounds are equal within 10 %."""
    return all(map(isfinite, distances)) and max(distances) <= (1 + WITHIN) * min(distances)


@dataclass
class SteadyCheck:
    """Longer simulations of important candidates, which drop those whose consensus distance is not steady.

    Important are candidates that may be recommended, are on the front, or are the best of their kind. The quick effort
    checks only the candidate to recommend, and shows no other. `left_out` maps the name of a dropped candidate to the
    reason. Simulations end at the clock's position `until`.
    """

    job: PlanRequest
    clock: Clock
    until: float
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pay, self._tries = payer(self.clock, self.until), Counter[str]()

    def settled(self, options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
        """Run longer simulations; return the candidates that are steady in one, and those that do not need any.

        Raises:
            UndecidedError: the candidate that the job names is not steady.
        """
        kept = list(options)
        while (unsure := self._next(kept)) is not None:
            found = self._longer(unsure)
            if found is None and self.job.take is not None and unsure.name == self.job.take:
                raise UndecidedError(f"--select {unsure.name!r}: {self.left_out[unsure.name]}; take another one")
            kept = [found or one if one is unsure else one for one in kept if one is not unsure or found is not None]
        return [one for one in kept if one.longer is None]

    def words(self) -> list[str]:
        """Return one sentence on the dropped candidates and the reasons; empty if there are none."""
        if not self.left_out:
            return []
        named = [f"{name} ({why})" for name, why in list(self.left_out.items())[:LISTED]]
        more = f", and {len(self.left_out) - LISTED} more" if len(self.left_out) > LISTED else ""
        return [f"left out, because a longer run does not show a steady consensus distance: {', '.join(named)}{more}"]

    def lost(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule]) -> str:
        """Return why `chosen` is not recommended although it wins: it would lose if workers were half as slow; else "".

        Only a candidate with unequal steps or a protocol can lose; it is compared with the best one without these.
        """
        job, facts, name = self.job, chosen.facts, chosen.name
        able = allowed_options(options, job)
        fixed = [one for one in able if one.facts is None and one.schedule.has_one_steps_per_round]
        answers_slowness = not chosen.schedule.has_one_steps_per_round if facts is None else not is_outer(chosen)
        if not answers_slowness or job.gap or job.quorum or job.take is not None or not fixed:
            return ""
        slowdown = tuple((worker, (1 + factor) / 2) for worker, factor in job.hardware.slowdown)
        hardware = replace(job.hardware, slowdown=slowdown, jitter=job.hardware.jitter / 2)
        if hardware == job.hardware:
            return ""
        eased, rival = replace(job, cluster=replace(job.cluster, hardware=hardware)), recommend(fixed, job)

        def eased_time(option: CandidateSchedule) -> float:
            seconds = seconds_of(option.schedule, eased.as_measured).step
            return decisive_time(replace(option, step_seconds=seconds), eased)

        if facts is None:
            there = eased_time(chosen)
        else:
            rounds = LONGER.get(facts.kind, MEETING_ROUNDS)
            again = Candidate(facts.kind, name, facts.words, chosen.schedule)
            if not self._has_time(again.work(rounds)):
                return f"{name} (there was no time to run it with less slow workers)"
            if (run := again.run(eased, rounds)) is None:
                return f"{name} ({DEADLOCK})"
            there = decisive_time(reprice(run.option, eased), eased)
        ratio = there / max(eased_time(rival), 1e-300)
        if ratio <= 1 + TIE:
            return ""
        return f"{name} (if they were half as slow, it would take {ratio:.2f} times as long as {rival.name})"

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
        able = {id(option) for option in allowed_options(options, self.job)}
        kinds = dict.fromkeys(option.facts.kind for option in unsure if option.facts is not None)
        for kind in sorted(kinds, key=lambda one: self._tries[one]):  # share the time among the kinds
            same = [one for one in options if one.facts is not None and one.facts.kind == kind]
            best = best_of([one for one in same if id(one) in able] or same)
            if best.longer is not None:
                return best
        shown = [option for option in front(options) if option.longer is not None]
        return best_of(shown) if shown else None

    def _longer(self, option: CandidateSchedule) -> CandidateSchedule | None:
        """Return the candidate priced by a longer simulation in which its consensus distance is steady.

        None if no simulation is steady or there is no time for one; `left_out` then has the reason.
        """
        candidate, name = option.longer, option.name
        assert isinstance(candidate, Candidate), "it was chosen for that"
        self._tries[candidate.kind] += 1
        rounds = LONGER[candidate.kind]
        for _ in range(1 + DOUBLINGS):
            if not self._has_time(candidate.work(rounds)):
                self.left_out[name] = f"there was no time for {rounds} rounds"
                return None
            if (run := candidate.run(self.job, rounds)) is None:
                self.left_out[name] = DEADLOCK
                return None
            if is_steady(run.distances):
                self.left_out.pop(name, None)
                return reprice(run.option, self.job)
            quarter, half, whole = run.distances
            reached = ", ".join(f"{distance:.3g}" for distance in run.distances)
            self.left_out[name] = f"{reached} after {rounds // 4}, {rounds // 2} and {rounds} rounds"
            if not isfinite(whole) or (half >= GROWTH * quarter and whole >= GROWTH * half):
                return None
            rounds *= 2
        return None

    def _has_time(self, work: float) -> bool:
        """Charge a simulation of `work` nominal seconds and return True if there is time for it.

        If the job asks for gaps, only the limit in wall-clock seconds counts.
        """
        if work > self.clock.left(self.clock.limit):
            self.clock.capped = True
            return False
        if self._pay(work):
            return True
        if self.job.gap:
            self.clock.charge(work)
        return bool(self.job.gap)
