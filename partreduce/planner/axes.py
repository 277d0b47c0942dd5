"""Choose the axes that every candidate has: transport of its sums, delay, and k, the steps per round.

The transport changes no metric (`planner.travel`), so it is chosen without a search.

Delay and k change metrics and seconds. The metrics of all settings follow from those at k = 1
(`topo.metrics.late_distance`), the seconds from stages costed once for each algorithm and codec. The best k is exact at
fixed speeds: settings are tried in the order of a lower bound on the objective, until the bound exceeds the best value.
Where step times vary, the settings that are good at mean speeds are sampled (`planner.options`). All-Reduce's gradients
at k = 1 may also arrive late, on all workers, which changes no metric and costs extra steps; or be sent layer by layer.
Where workers take different numbers of steps, delay and k are kept, since the metrics of other settings do not follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.planner.delay import Delay
from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import (
    Label,
    ScheduleMetrics,
    Seconds,
    Sent,
    assembled,
    metrics_of,
    pushed_by,
    seconds_of,
)
from partreduce.planner.option import CandidateSchedule, added_by_delay, known
from partreduce.planner.preference import Costs, preference
from partreduce.planner.steps_model import StepsModel
from partreduce.planner.travel import CostedTransport, coded_words, cost_of, paying, timed, transports_of, traveling
from partreduce.schedulers.synthesis.problem import Limits, Objective
from partreduce.topo.metrics.evaluate import retime
from partreduce.topo.metrics.late_distance import RetimedMetrics
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, GradientBuckets, Transport
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.event_graph import TimedPeriod

ALWAYS, MOST = 24, 48
"""Steps per round that are always considered, and the maximum; between them the range that the steps model was fitted
to decides."""


class Setting(NamedTuple):
    """Delay, steps per round, and whether gradients are sent in one piece or layer by layer.

    Where workers take different numbers of steps, `steps_per_round` is 1: the schedule's own numbers are kept.
    """

    sync: Delay
    steps_per_round: int
    gradient_buckets: GradientBuckets = GradientBuckets.SINGLE

    def of(self, schedule: Schedule) -> Schedule:
        """Return a synchronous schedule of one step per round, or of unequal steps, in this setting."""
        own = schedule.strategy.steps_per_round
        return timed(schedule, self.sync.sync, self.steps_per_round if isinstance(own, int) else own)

    @property
    def is_late(self) -> bool:
        return self.sync is not Delay.SYNCHRONOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The stages of a synchronous schedule with one algorithm and codec; results are cached."""

    schedule: Schedule
    job: PlanRequest
    costed: CostedTransport
    times: ComputeTimes
    period: TimedPeriod
    _seconds: dict[Setting, Seconds] = field(default_factory=dict)
    _first: dict[Delay, float] = field(default_factory=dict)
    _own: list[npt.NDArray[np.float64]] = field(default_factory=list)

    @classmethod
    def of(cls, schedule: Schedule, job: PlanRequest, costed: CostedTransport) -> Timings:
        """Cost the stages of a synchronous schedule."""
        runs, times = traveling(schedule, costed.transport), job.compute_times()
        period = TimedPeriod.of(runs, job.hardware, times, algorithm=costed.transport.algorithm).merged()
        return cls(schedule=schedule, job=job, costed=costed, times=times, period=period)

    def transport(self, setting: Setting) -> Transport:
        """Return the transport of a setting."""
        return replace(self.costed.transport, gradient_buckets=setting.gradient_buckets)

    def sent(self, setting: Setting) -> Sent:
        """Return the traffic of a step in a setting."""
        cost = self.costed.cost
        if setting.gradient_buckets is GradientBuckets.PER_LAYER:
            cost = cost_of(self.schedule, self.job, self.transport(setting))
        return Sent(cost.per_step / setting.steps_per_round, cost.nic_bytes_per_step / setting.steps_per_round)

    def seconds(self, setting: Setting) -> Seconds:
        if setting not in self._seconds:
            self._seconds[setting] = self._timed(setting)
        return self._seconds[setting]

    def _timed(self, setting: Setting) -> Seconds:
        times, steps_per_round = self.times, setting.steps_per_round
        if setting.gradient_buckets is GradientBuckets.PER_LAYER:
            runs = traveling(setting.of(self.schedule), self.transport(setting))
            return seconds_of(runs, self.job, self.costed.transport.algorithm)
        if not self.is_equal:
            return Seconds(self.period.cycle(sync=setting.sync.sync).per_step, times.base)
        if not setting.is_late and self.period.steps.max() == self.period.steps.min():
            # All workers compute equally long, so every path through a period gains equally from a longer round.
            return Seconds(
                (self.first(setting.sync) + (steps_per_round - 1) * times.base) / steps_per_round, times.base
            )
        if steps_per_round == 1:
            return Seconds(self.first(setting.sync), times.base)
        return Seconds(self.period.cycle(steps_per_round=steps_per_round, sync=setting.sync.sync).per_step, times.base)

    @property
    def is_equal(self) -> bool:
        """Return whether all workers take the same number of steps per round."""
        return isinstance(self.schedule.strategy.steps_per_round, int)

    def first(self, sync: Delay) -> float:
        """Return the seconds of a round of one step at fixed speeds."""
        if sync not in self._first:
            self._first[sync] = self.period.cycle(steps_per_round=1, sync=sync.sync).per_round
        return self._first[sync]

    def least_step(self, setting: Setting) -> float:
        """Return a lower bound on the step time at fixed speeds: every worker computes and communicates.

        A longer round lengthens every cycle of workers that wait for one another by at least the computing time of its
        fastest worker for each step. With delay, where communication may fill that time, the bound does not grow.
        """
        if not self.is_equal:
            return self.seconds(setting).step
        steps, steps_per_round = self.period.steps, setting.steps_per_round
        if setting.sync is Delay.PIPELINE:
            return max(float(steps.max()), self.first(setting.sync) / steps_per_round)
        if not self._own:
            self._own.append(np.array([stage.after() for stage in self.period.stages]))  # (stages, workers)
        own, computing = self._own[0], steps * steps_per_round
        if setting.is_late:
            round_ = np.maximum(own, computing).mean(axis=0).max()
            return max(float(round_), self.first(setting.sync)) / steps_per_round
        added = (steps_per_round - 1) * float(steps.min())
        return max(float((own.mean(axis=0) + computing).max()), self.first(setting.sync) + added) / steps_per_round


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A synchronous schedule of one step per round, or of unequal steps, and the data shared by all its settings.

    `timings` holds one entry for each algorithm and codec of its sums, the finest codec first. `metrics` holds those
    for every number of steps per round, where all workers take the same number.
    """

    schedule: Schedule
    job: PlanRequest
    timings: tuple[Timings, ...]
    metrics: RetimedMetrics | None
    usual: StepsModel
    _chosen: dict[Setting, Timings] = field(default_factory=dict)
    _metrics: dict[tuple[Delay, int], ScheduleMetrics] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Schedule, job: PlanRequest) -> Axes:
        """Cost and measure the schedule; its delay and equal steps per round are ignored.

        Raises:
            PartreduceError: the schedule has no fixed phases, or a metric could not be found within its limit.
        """
        is_equal = isinstance(schedule.strategy.steps_per_round, int)
        base = timed(schedule, SYNCHRONOUS, 1 if is_equal else schedule.strategy.steps_per_round)
        timings = tuple(Timings.of(base, job, costed) for costed in transports_of(base, job))
        metrics = retime(base, job.push) if is_equal else None
        return cls(schedule=base, job=job, timings=timings, metrics=metrics, usual=job.steps_model)

    def options(
        self, label: Label, rounds: Sequence[int] = (), go_on: Callable[[], bool] = lambda: True
    ) -> list[CandidateSchedule]:
        """Return synchronous rounds of one and of `rounds` steps, late ones of one step, and the best by the objective.

        The first option is synchronous where that is allowed; each later one is added only while `go_on()` is true.
        """
        allowed = [delay for delay in self.job.sync_types if delay.suits(self.schedule.strategy)]
        if not allowed:
            return []
        most = self.most()
        always = [
            Setting(allowed[0], steps_per_round) for steps_per_round in self._lengths(allowed[0], (1, *rounds), most)
        ]
        always += [Setting(late, 1) for late in allowed if most]
        if self.job.sends_layers and Delay.SYNCHRONOUS in allowed and self.schedule.strategy.sends_layers and most:
            always.append(Setting(Delay.SYNCHRONOUS, 1, GradientBuckets.PER_LAYER))
        kept = {setting: self.timing(setting) for setting in always}
        for late in allowed:
            settings = [Setting(late, steps) for steps in self._lengths(late, range(1, most + 1), most)]
            borne = [setting for setting in settings if not self._may_fail(setting)]
            for model in self._models():
                best = self.best(settings, model)
                if best is not None:
                    kept.setdefault(*best)
                if best is not None and best[0] not in borne and (safe := self.best(borne, model)) is not None:
                    kept.setdefault(*safe)
        ordered = sorted(
            kept,
            key=lambda one: (
                allowed.index(one.sync),
                one.steps_per_round,
                one.gradient_buckets is GradientBuckets.PER_LAYER,
            ),
        )
        return [self.option(setting, label, kept[setting]) for i, setting in enumerate(ordered) if not i or go_on()]

    @staticmethod
    def _lengths(late: Delay, rounds: Sequence[int], most: int) -> list[int]:
        """Return the allowed steps per round; gradients are averaged in every step."""
        most = min(most, 1) if late is Delay.PIPELINE else most
        return [steps for steps in rounds if steps <= most]

    def most(self) -> int:
        """Return the most steps per round to consider: `ALWAYS`, or the steps model's range, within `max_gap`."""
        if self.metrics is None:
            return int(within_gap(self.schedule, self.job.limits))
        gap, most = most_steps_per_round(self.schedule, self.job.limits), ALWAYS
        while most < MOST and not self.extrapolates(Setting(Delay.SYNCHRONOUS, most + 1)):
            most += 1
        return most if gap is None else min(most, gap)

    def _models(self) -> list[StepsModel]:
        """Return the job's model, and for time to loss its cases with the lowest and highest distance price."""
        if self.job.fastest or self.job.objective is not Objective.BALANCED:
            return [self.usual]
        cases = sorted(self.usual.cases, key=lambda case: case.a)
        return [self.usual, *dict.fromkeys((cases[0], cases[-1]))]

    def best(self, settings: Sequence[Setting], model: StepsModel) -> tuple[Setting, Timings] | None:
        """Return the setting that the objective prefers within the limits on metrics; None if none keeps them.

        A coarser codec is chosen if its best setting is sufficiently better than that of the finer codecs.
        """
        found = [(setting, one) for one in self.timings if (setting := self._best(settings, one, model)) is not None]
        if not found:
            return None
        beside = settings[0].is_late
        return found[paying([self.reached(*one, model) for one in found], self.job, beside=beside)]

    def _best(self, settings: Sequence[Setting], timing: Timings, model: StepsModel) -> Setting | None:
        goal, limits = self.job.objective, self.job.limits
        bounds = [(self.costs(setting, timing, timing.least_step(setting), model), setting) for setting in settings]
        ordered = sorted((preference(costs, goal), setting) for costs, setting in bounds if costs.keep(limits))
        chosen: tuple[tuple[float, ...], Setting] | None = None
        for least, setting in ordered:
            if chosen is not None and least >= chosen[0]:
                break
            reached = preference(self.reached(setting, timing, model), goal)
            if chosen is None or reached < chosen[0]:
                chosen = reached, setting
        return None if chosen is None else chosen[1]

    def timing(self, setting: Setting) -> Timings:
        """Return the timings of the finest codec, unless a coarser one saves enough in this setting."""
        if setting not in self._chosen:
            known = (
                [self.reached(setting, timing, self.usual) for timing in self.timings] if len(self.timings) > 1 else []
            )
            self._chosen[setting] = self.timings[paying(known, self.job, beside=setting.is_late) if known else 0]
        return self._chosen[setting]

    def reached(self, setting: Setting, timing: Timings, model: StepsModel) -> Costs:
        """Return the costs of a setting, computing its step seconds from the timings."""
        return self.costs(setting, timing, timing.seconds(setting).step, model)

    def costs(self, setting: Setting, timing: Timings, step_seconds: float, model: StepsModel) -> Costs:
        """Return the costs of a setting for given seconds per step."""
        metrics = self.at(setting)
        noise, pushed = known(metrics.consensus_distance), pushed_by(metrics.drift, self.job)
        return Costs(
            communication=timing.sent(setting).seconds,
            step_seconds=step_seconds,
            consensus_distance=noise,
            drift=known(metrics.drift),
            steps_ratio=model.steps_ratio(
                noise,
                pushed,
                late=metrics.late_distance,
                delayed=self._delayed(setting.sync),
                gradients=self._averages_gradients(setting),
            ),
        )

    def _delayed(self, sync: Delay) -> float:
        """Return the price of late gradients."""
        if sync is not Delay.PIPELINE:
            return 0.0
        return self.job.delayed(sync.sync)

    def _averages_gradients(self, setting: Setting) -> bool:
        """Return whether gradients are averaged: by All-Reduce in every step, unless its parameters are late."""
        return (
            self.schedule.strategy.averages_gradients
            and setting.steps_per_round == 1
            and setting.sync is not Delay.LATE
        )

    def at(self, setting: Setting) -> ScheduleMetrics:
        """Return the metrics of a setting; gradients equally late on all workers keep the models identical."""
        place = setting.sync, setting.steps_per_round
        if place not in self._metrics:
            self._metrics[place] = self._metrics_at(setting)
        return self._metrics[place]

    def _metrics_at(self, setting: Setting) -> ScheduleMetrics:
        if self.metrics is None:
            return metrics_of(setting.of(self.schedule), self.job)
        late = setting.sync is Delay.LATE
        spread = self.metrics.consensus_distance_at(setting.steps_per_round, late=late)
        pushed = self.metrics.drift_at(setting.steps_per_round, late=late)
        apart = self.metrics.late_distance_at(setting.steps_per_round) if late else 0.0
        return ScheduleMetrics(spread, pushed, self.metrics.contraction, apart)

    def _may_fail(self, setting: Setting) -> bool:
        """Return `CandidateSchedule.may_fail`: by its drift, or because no measured schedule averages as rarely."""
        if self.job.fastest or self._averages_gradients(setting) or setting.sync is Delay.PIPELINE:
            return False
        if self.usual.is_unpriced_beyond and self.extrapolates(setting):
            return True
        metrics = self.at(setting)
        if not self.job.bears_drift(metrics.drift.value or 0.0):
            return True
        distance = known(metrics.consensus_distance)
        if setting.sync is Delay.LATE:
            distance -= added_by_delay(setting.of(self.schedule))
        return self.usual.lost.includes(distance, metrics.late_distance)

    def extrapolates(self, setting: Setting) -> bool:
        """Return whether the metrics lie outside the range that the steps model was fitted to."""
        metrics = self.at(setting)
        return self.usual.extrapolates(known(metrics.consensus_distance), pushed_by(metrics.drift, self.job))

    def option(self, setting: Setting, label: Label, timing: Timings | None = None) -> CandidateSchedule:
        """Return the option of this setting with all its costs."""
        timing = timing or self.timing(setting)
        schedule = setting.of(self.schedule)
        words = [label.name]
        if setting.steps_per_round > 1:
            if schedule.strategy.averages_everyone:
                schedule = replace(schedule, name=f"{schedule.name}(every={setting.steps_per_round})")
                words = [f"{label.name}(every={setting.steps_per_round})"]
            else:
                words.append(f"every {setting.steps_per_round}")
        if setting.is_late:
            words.append(setting.sync.label)
        transport = timing.transport(setting)
        if self.job.algorithm is None and transport.algorithm is not self.job.algorithms[0]:
            words.append(str(transport.algorithm))
        words += coded_words(transport)
        return assembled(
            traveling(schedule, transport),
            self.job,
            replace(label, name=" ".join(words)),
            algorithm=transport.algorithm,
            sent=timing.sent(setting),
            seconds=timing.seconds(setting),
            metrics=self.at(setting),
        )


def within_limits(schedule: Schedule, limits: Limits) -> bool:
    """Return whether a schedule keeps the limits on its shape."""
    if not limits.min_period <= schedule.period <= limits.max_period:
        return False
    if limits.max_distinct_phases is not None and schedule.num_distinct_phases() > limits.max_distinct_phases:
        return False
    if limits.max_group is not None and _largest_group(schedule) > limits.max_group:
        return False
    return within_gap(schedule, limits)


def within_gap(schedule: Schedule, limits: Limits) -> bool:
    """Return whether a group crosses nodes at least once in any `max_gap` consecutive steps."""
    most = most_steps_per_round(schedule, limits)
    return most is None or schedule.largest_steps_per_round <= most


def most_steps_per_round(schedule: Schedule, limits: Limits) -> int | None:
    """Return the most steps per round that keep `max_gap`; 0 if no number does, None without that limit."""
    if limits.max_gap is None:
        return None
    crossing = [t for t in range(schedule.period) if _crosses_nodes(schedule, t)]
    if not crossing:
        return 0
    rounds_between = np.diff([*crossing, crossing[0] + schedule.period]).max()
    return (limits.max_gap + 1) // int(rounds_between)


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
    # The node of every member, and the node of its group's first member.
    first = np.repeat(phase.members[phase.offsets[:-1]], phase.sizes)
    return bool((node_of[phase.members] != node_of[first]).any())
