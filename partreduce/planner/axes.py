"""Choose the settings that every candidate has: transport of its all-reduces, delay, and steps per round k.

Transport changes no metric, so it is chosen by cost alone (`measuring.transports_of`). The metrics of all delays and k
follow from those at k = 1 (`topo.metrics.late_distance`), the seconds from stages costed once for each algorithm and
codec. The best k is exact at fixed speeds. Where step times vary, the settings that are good at mean speeds are sampled
(`planner.options`). All-Reduce's gradients at k = 1 may also arrive late, on all workers, which changes no metric and
costs extra steps; or be sent layer by layer. If workers take different numbers of steps per round, delay and k stay
unchanged, because the metrics of other settings cannot be derived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from partreduce.planner.job import Data, Delay, PlanRequest
from partreduce.planner.measuring import (
    CostedTransport,
    Seconds,
    Traffic,
    assemble,
    coded_words,
    cost_of,
    metrics_of,
    paying,
    reprice,
    seconds_of,
    transports_of,
    traveling,
    with_timing,
)
from partreduce.planner.option import NOTHING, CandidateSchedule, Costs, added_by_delay, known, merit, preference
from partreduce.planner.steps_model import StepsModel
from partreduce.schedulers.synthesis.problem import Limits, Objective
from partreduce.topo.metrics.evaluate import Convergence, retime
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, GradientBuckets, Transport
from partreduce.topo.timing.event_graph import TimedPeriod

ALWAYS, MOST = 24, 48
"""Steps per round up to which all are considered, and the maximum; between these two numbers, those are considered
whose metrics lie in the range that the steps model was fitted to."""


class Setting(NamedTuple):
    """One setting of a schedule: delay, steps per round, and whether gradients are sent in one piece or by layers.

    The delay is that between an average and its use.

    For a schedule whose workers take unequal numbers of steps, `steps_per_round` is 1 and the schedule's numbers are
    kept.
    """

    sync: Delay
    steps_per_round: int
    gradient_buckets: GradientBuckets = GradientBuckets.SINGLE

    def of(self, schedule: Schedule) -> Schedule:
        own = schedule.strategy.steps_per_round
        return with_timing(schedule, self.sync.sync, self.steps_per_round if isinstance(own, int) else own)

    @property
    def is_late(self) -> bool:
        return self.sync is not Delay.SYNCHRONOUS

    @property
    def is_layered(self) -> bool:
        return self.gradient_buckets is GradientBuckets.PER_LAYER


class Timings:
    """The seconds per step of a synchronous schedule with one algorithm and codec, in every setting; cached."""

    def __init__(self, schedule: Schedule, job: PlanRequest, costed: CostedTransport) -> None:
        self.schedule, self.job, self.costed, self.times = schedule, job, costed, job.compute_times()
        self.is_equal = isinstance(schedule.strategy.steps_per_round, int)
        runs, algorithm = traveling(schedule, costed.transport), costed.transport.algorithm
        self.period = TimedPeriod.of(runs, job.hardware, self.times, algorithm=algorithm).merged()
        self.seconds, self.steps, self.round_seconds = cache(self._seconds), cache(self._steps), cache(self._one_round)

    def transport(self, setting: Setting) -> Transport:
        return replace(self.costed.transport, gradient_buckets=setting.gradient_buckets)

    def sent(self, setting: Setting) -> Traffic:
        cost = self.costed.cost
        if setting.is_layered:
            cost = cost_of(self.schedule, self.job, self.transport(setting))
        return Traffic(cost.per_step / setting.steps_per_round, cost.nic_bytes_per_step / setting.steps_per_round)

    def _seconds(self, setting: Setting) -> Seconds:
        if setting.is_layered:
            runs = traveling(setting.of(self.schedule), self.transport(setting))
            return seconds_of(runs, self.job, self.costed.transport.algorithm)
        if not self.is_equal:
            return Seconds(self.period.cycle(sync=setting.sync.sync).per_step, self.times.base)
        if setting.steps_per_round == 1:
            return Seconds(self.round_seconds(setting.sync, 1), self.times.base)
        return Seconds(self.steps(setting.sync)[setting.steps_per_round - 1], self.times.base)

    def _one_round(self, delay: Delay, count: int) -> float:
        return self.period.cycle(steps_per_round=count, sync=delay.sync).per_round

    def _steps(self, delay: Delay) -> list[float]:
        """Return the seconds per step for each number of steps per round from 1 to `MOST`.

        The seconds of a round are the largest mean of a cycle of waiting workers, so they are convex in the steps:
        where the middle of a range lies on its chord, so does all of it.
        """
        first, base = self.round_seconds(delay, 1), self.times.base
        if delay is Delay.SYNCHRONOUS and self.period.steps.max() == self.period.steps.min():
            # All workers compute equally long, so every path through a period gains equally from a longer round.
            return [(first + (count - 1) * base) / count for count in range(1, MOST + 1)]
        found = {1: first, MOST: self.round_seconds(delay, MOST)}
        ranges = [(1, MOST)]
        while ranges:
            low, high = ranges.pop()
            slope = (found[high] - found[low]) / max(1, high - low)
            between = {count: found[low] + slope * (count - low) for count in range(low + 1, high)}
            middle = (low + high) // 2
            if between and not math.isclose(exact := self.round_seconds(delay, middle), between[middle], rel_tol=1e-9):
                found[middle] = exact
                ranges += [(low, middle), (middle, high)]
            else:
                found |= between
        return [found[count] / count for count in range(1, MOST + 1)]


class Measurements:
    """The seconds and metrics of one schedule in all its settings (delay, steps per round, algorithm, codec).

    `schedule` is made synchronous, with one step per round unless workers take unequal steps. `timings` holds one entry
    for each algorithm and codec, the finest codec first; `metrics` covers every number of steps per round, None if
    workers take unequal steps. Nothing here depends on the optimizer, the objective or limits.
    """

    def __init__(self, schedule: Schedule, job: PlanRequest) -> None:
        own = schedule.strategy.steps_per_round
        self.schedule, self.job = with_timing(schedule, SYNCHRONOUS, 1 if isinstance(own, int) else own), job
        self.timings = tuple(Timings(self.schedule, job, one) for one in transports_of(self.schedule, job))
        self.metrics = retime(self.schedule, job.push) if isinstance(own, int) else None
        self.at, self.numbers, self.option = cache(self._metrics_at), cache(self._numbers), cache(self._option)

    def _metrics_at(self, sync: Delay, count: int) -> Convergence:
        if self.metrics is None:
            return metrics_of(Setting(sync, count).of(self.schedule), self.job.push)
        late = sync is Delay.LATE
        spread, pushed = (at(count, late=late) for at in (self.metrics.consensus_distance_at, self.metrics.drift_at))
        return Convergence(
            spread, pushed, self.metrics.contraction, self.metrics.late_distance_at(count) if late else 0.0
        )

    def _numbers(self, delay: Delay, count: int) -> tuple[float, float, float]:
        metrics = self.at(delay, count)
        return known(metrics.consensus_distance), known(metrics.drift), metrics.late_distance

    def _option(self, setting: Setting, name: str, timing: Timings, status: str) -> CandidateSchedule:
        schedule, transport, count = setting.of(self.schedule), timing.transport(setting), setting.steps_per_round
        words = [name]
        if count > 1 and schedule.strategy.averages_everyone:
            schedule = replace(schedule, name=f"{schedule.name}(every={count})")
            words = [f"{name}(every={count})"]
        elif count > 1:
            words.append(f"every {count}")
        words += [setting.sync.label] * setting.is_late
        if self.job.algorithm is None and transport.algorithm is not self.job.algorithms[0]:
            words.append(str(transport.algorithm))
        return assemble(
            traveling(schedule, transport),
            self.job,
            " ".join([*words, *coded_words(transport)]),
            algorithm=transport.algorithm,
            sent=timing.sent(setting),
            seconds=timing.seconds(setting),
            metrics=self.at(setting.sync, count),
            status=status,
        )


measured = lru_cache(maxsize=256)(Measurements)
"""Return the measurements of a schedule, cached so that plans for other optimizers and data share them."""


class Axes:
    """The settings of one schedule (delay, steps per round, codec, layers), and the choice among them for a job.

    Raises:
        PartreduceError: the schedule has no fixed phases, or a metric could not be found within its limit.
    """

    def __init__(self, schedule: Schedule, job: PlanRequest) -> None:
        self.measured = measured(schedule, job.as_measured)
        self.schedule, self.timings, self.metrics = self.measured.schedule, self.measured.timings, self.measured.metrics
        self.job, self.usual, self.timing = job, job.steps_model, cache(self._timing)

    def options(
        self,
        name: str,
        rounds: Sequence[int] = (),
        *,
        pays: Callable[[], bool] = lambda: True,
        status: str = "catalogue",
    ) -> list[CandidateSchedule]:
        """Return candidates: synchronous with 1 and with each of `rounds` steps per round, delayed with 1, the best.

        `name` begins their names. The first is synchronous if the job allows that; each later one is added only while
        `pays()` is true.
        """
        allowed = [delay for delay in self.job.sync_types if delay.suits(self.schedule.strategy)]
        if not allowed:
            return []
        most = self.most()
        always = [Setting(allowed[0], count) for count in _lengths(allowed[0], (1, *rounds), most)]
        always += [Setting(late, 1) for late in allowed if most]
        if self.job.sends_layers and Delay.SYNCHRONOUS in allowed and self.schedule.strategy.sends_layers and most:
            always.append(Setting(Delay.SYNCHRONOUS, 1, GradientBuckets.PER_LAYER))
        kept = {setting: self.timing(setting) for setting in always}
        models = _models(self.usual, self.job.objective is not Objective.BALANCED)
        for late in allowed:
            counts = _lengths(late, range(1, most + 1), most)
            safe = [count for count in counts if not self._may_fail(Setting(late, count))]
            for model in models:
                if (best := self.best(late, counts, model)) is not None:
                    kept.setdefault(*best)
                    if best[0].steps_per_round not in safe and (second := self.best(late, safe, model)) is not None:
                        kept.setdefault(*second)
        ordered = sorted(kept, key=lambda one: (allowed.index(one.sync), one.steps_per_round, one.is_layered))
        return [self.option(one, name, kept[one], status) for i, one in enumerate(ordered) if not i or pays()]

    def most(self) -> int:
        """Return the most steps per round to consider: `ALWAYS` or the steps model's range, limited by `max_gap`."""
        if self.metrics is None:
            return int(within_gap(self.schedule, self.job.limits))
        gap, most = most_steps_per_round(self.schedule, self.job.limits), ALWAYS
        while most < MOST and not self.extrapolates(Setting(Delay.SYNCHRONOUS, most + 1)):
            most += 1
        return most if gap is None else min(most, gap)

    def best(self, delay: Delay, counts: Sequence[int], model: StepsModel) -> tuple[Setting, Timings] | None:
        """Return the best setting of a delay by the objective, within the limits on metrics; None if none keeps them.

        `counts` are the steps per round to try. A coarser codec is chosen only if its best setting saves enough
        compared with those of the finer codecs.
        """
        found = [(Setting(delay, best), one) for one in self.timings if (best := self._best(delay, counts, one, model))]
        if not found:
            return None
        costs = [self.reached(*one, model) for one in found]
        return found[paying(costs, self.job, overlaps=delay is not Delay.SYNCHRONOUS)]

    def _best(self, delay: Delay, counts: Sequence[int], timing: Timings, model: StepsModel) -> int | None:
        if not counts:
            return None
        goal, costs = self.job.objective, dict[int, Costs]()
        for count in counts:
            one = self.reached(Setting(delay, count), timing, model)
            if one.keep(self.job.limits):
                costs[count] = one
        least = min((merit(one, goal) for one in costs.values()), default=(0.0,))
        near = [count for count, one in costs.items() if merit(one, goal)[0] <= least[0] * (1 + 1e-8) + NOTHING]
        return min(near, key=lambda count: preference(costs[count], goal), default=None)

    def _timing(self, setting: Setting) -> Timings:
        """Return the timings with the finest codec, or with a coarser one that saves enough seconds in this setting."""
        if len(self.timings) == 1:
            return self.timings[0]
        costs = [self.reached(setting, timing, self.usual) for timing in self.timings]
        return self.timings[paying(costs, self.job, overlaps=setting.is_late)]

    def reached(self, setting: Setting, timing: Timings, model: StepsModel) -> Costs:
        spread, drift, late = self.measured.numbers(setting.sync, setting.steps_per_round)
        gradients = self._averages_gradients(setting)
        pushed = 0.0 if self.job.data is Data.SHUFFLED else drift
        delayed = self.usual.delay * (setting.sync is Delay.PIPELINE)
        ratio = model.steps_ratio(spread, pushed, late=late, delayed=delayed, gradients=gradients)
        return Costs(timing.sent(setting).seconds, timing.seconds(setting).step, spread, drift, ratio)

    def _averages_gradients(self, setting: Setting) -> bool:
        """Return whether gradients are averaged: by All-Reduce in every step, unless its parameters are late."""
        is_every_step = setting.steps_per_round == 1 and setting.sync is not Delay.LATE
        return is_every_step and self.schedule.strategy.averages_gradients

    def _may_fail(self, setting: Setting) -> bool:
        """Return whether training may fail in this setting: by its drift, or averages rarer than any measured ones."""
        if self._averages_gradients(setting) or setting.sync is Delay.PIPELINE:
            return False
        if self.usual.is_unpriced_beyond and self.extrapolates(setting):
            return True
        metrics = self.measured.at(setting.sync, setting.steps_per_round)
        if not self.job.bears_drift(metrics.drift.value or 0.0):
            return True
        own = self.schedule.strategy.steps_per_round
        steps = setting.steps_per_round if isinstance(own, int) else own
        added = added_by_delay(steps, self.schedule.num_workers) if setting.sync is Delay.LATE else 0.0
        return self.usual.lost.includes(known(metrics.consensus_distance) - added, metrics.late_distance)

    def extrapolates(self, setting: Setting) -> bool:
        spread, drift, _ = self.measured.numbers(setting.sync, setting.steps_per_round)
        return self.usual.extrapolates(spread, 0.0 if self.job.data is Data.SHUFFLED else drift)

    def option(self, setting: Setting, name: str, timing: Timings, status: str = "catalogue") -> CandidateSchedule:
        """Return the candidate of this setting, with all its costs."""
        return reprice(self.measured.option(setting, name, timing, status), self.job)


@lru_cache(maxsize=16)
def _models(usual: StepsModel, is_alone: bool) -> list[StepsModel]:
    """Return the steps model, and unless `is_alone` its cases (tasks) with the lowest and highest price of distance."""
    cases = sorted(usual.cases, key=lambda case: case.a)
    return [usual] if is_alone else [usual, *dict.fromkeys((cases[0], cases[-1]))]


def _lengths(late: Delay, rounds: Sequence[int], most: int) -> list[int]:
    """Return those of `rounds`, numbers of steps per round, that a delay allows, up to `most`.

    A pipeline averages gradients in every step.
    """
    most = min(most, 1) if late is Delay.PIPELINE else most
    return [steps for steps in rounds if steps <= most]


def within_limits(schedule: Schedule, limits: Limits) -> bool:
    """Return whether a schedule keeps the limits on period, group size, distinct phases and `max_gap`."""
    if schedule.period > limits.max_period:
        return False
    if limits.max_distinct_phases is not None and schedule.num_distinct_phases() > limits.max_distinct_phases:
        return False
    if limits.max_group is not None and _largest_group(schedule) > limits.max_group:
        return False
    return within_gap(schedule, limits)


def within_gap(schedule: Schedule, limits: Limits) -> bool:
    """Return whether some group crosses nodes in any `max_gap` + 1 consecutive steps."""
    most = most_steps_per_round(schedule, limits)
    return most is None or schedule.largest_steps_per_round <= most


def most_steps_per_round(schedule: Schedule, limits: Limits) -> int | None:
    """Return the most steps per round that keep `max_gap` (most consecutive steps in which no group crosses nodes).

    0 if no number does, None without that limit.
    """
    if limits.max_gap is None:
        return None
    crossing = [t for t in range(schedule.period) if _crosses_nodes(schedule, t)]
    if not crossing:
        return 0
    return (limits.max_gap + 1) // int(np.diff([*crossing, crossing[0] + schedule.period]).max())


def _largest_group(schedule: Schedule) -> int:
    """Return the most workers that one worker's parameters depend on after one round, itself included."""
    if graphs := schedule.strategy.graphs:
        return 1 + max(int(np.bincount(edges.targets).max(initial=0)) for edges in graphs)
    return max((int(schedule.phase(t).sizes.max(initial=0)) for t in range(schedule.period)), default=0)


def _crosses_nodes(schedule: Schedule, t: int) -> bool:
    node_of = schedule.cluster.node_of()
    if graphs := schedule.strategy.graphs:
        return bool((node_of[graphs[t].sources] != node_of[graphs[t].targets]).any())
    phase = schedule.phase(t)
    first = np.repeat(phase.members[phase.offsets[:-1]], phase.sizes)  # the first member of each member's group
    return bool((node_of[phase.members] != node_of[first]).any())
