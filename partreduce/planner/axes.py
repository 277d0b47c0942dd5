"""The axes that belong to every candidate: how its sums travel, what may be late, and k, the steps of a round.

How sums travel changes no metric (`planner.travel`), so the choice needs no search.

What may be late, and k, the steps per round, change metrics and seconds. The metrics of all of them follow from those
at k = 1 (`topo.metrics.late_distance`), the seconds from stages costed once for each algorithm and codec. The best k
is exact at fixed speeds: the settings are tried in the order of a lower bound on what the objective minimizes, until
the bound passes the best. Where step times vary, what is good at mean speeds is sampled (`planner.options`). Gradients
of All-Reduce at k = 1 may also come late, to all workers, which changes no metric and costs steps of its own; or be
sent layer by layer. Where workers take different numbers of steps these stay as they are: nothing follows from them.
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
from partreduce.topo.metrics.evaluate import retimed
from partreduce.topo.metrics.late_distance import Retimed
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, GradientBuckets, Transport
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.event_graph import TimedPeriod

ALWAYS, MOST = 24, 48
"""Steps of a round that are considered in any case, and at most; between them as far as the steps model was fitted."""


class Setting(NamedTuple):
    """What may be late, the steps of a round, and whether gradients go in one piece or layer by layer.

    Where workers take different numbers of steps `steps_per_round` is 1: theirs stay as they are.
    """

    sync: Delay
    steps_per_round: int
    gradient_buckets: GradientBuckets = GradientBuckets.SINGLE

    def of(self, schedule: Schedule) -> Schedule:
        """A synchronous schedule of one step per round, or of unequal steps, in this setting."""
        own = schedule.strategy.steps_per_round
        return timed(schedule, self.sync.sync, self.steps_per_round if isinstance(own, int) else own)

    @property
    def is_late(self) -> bool:
        return self.sync is not Delay.SYNCHRONOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The stages of a synchronous schedule by one algorithm and codec; it keeps what it has computed."""

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
        """How the sums of a setting travel."""
        return replace(self.costed.transport, gradient_buckets=setting.gradient_buckets)

    def sent(self, setting: Setting) -> Sent:
        """What a step of a setting sends."""
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
            # Everybody computes as long, so every way through a period gains the same from a longer round.
            return Seconds(
                (self.first(setting.sync) + (steps_per_round - 1) * times.base) / steps_per_round, times.base
            )
        if steps_per_round == 1:
            return Seconds(self.first(setting.sync), times.base)
        return Seconds(self.period.cycle(steps_per_round=steps_per_round, sync=setting.sync.sync).per_step, times.base)

    @property
    def is_equal(self) -> bool:
        """Whether all workers take the same number of steps per round."""
        return isinstance(self.schedule.strategy.steps_per_round, int)

    def first(self, sync: Delay) -> float:
        """Seconds of a round of one step, at fixed speeds."""
        if sync not in self._first:
            self._first[sync] = self.period.cycle(steps_per_round=1, sync=sync.sync).per_round
        return self._first[sync]

    def least_step(self, setting: Setting) -> float:
        """No step is shorter, at fixed speeds: every worker computes and communicates, and longer rounds take longer.

        A longer round adds to every cycle of workers that wait for one another at least the fastest one's computing
        for each step; late, where communication may fill the time, it adds nothing for sure.
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
    """A synchronous schedule of one step per round, or of unequal steps, with what all its settings have in common.

    `timings` are those of each algorithm and codec by which its sums may travel, the finest codec first. `metrics` are
    those for every number of steps per round, where all workers take the same.
    """

    schedule: Schedule
    job: PlanRequest
    timings: tuple[Timings, ...]
    metrics: Retimed | None
    usual: StepsModel
    _chosen: dict[Setting, Timings] = field(default_factory=dict)
    _metrics: dict[tuple[Delay, int], ScheduleMetrics] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Schedule, job: PlanRequest) -> Axes:
        """Cost, metrics and stages of the schedule; its delay, and equal steps per round, are ignored.

        Raises:
            PartreduceError: the schedule has no fixed phases, or a metric could not be found within its limit.
        """
        is_equal = isinstance(schedule.strategy.steps_per_round, int)
        base = timed(schedule, SYNCHRONOUS, 1 if is_equal else schedule.strategy.steps_per_round)
        timings = tuple(Timings.of(base, job, costed) for costed in transports_of(base, job))
        metrics = retimed(base, job.push) if is_equal else None
        return cls(schedule=base, job=job, timings=timings, metrics=metrics, usual=job.steps_model)

    def options(
        self, label: Label, rounds: Sequence[int] = (), go_on: Callable[[], bool] = lambda: True
    ) -> list[CandidateSchedule]:
        """Synchronous rounds of one and of `rounds` steps, late ones of one step, and what the objective likes best.

        After the first, which is synchronous where that is allowed, each only if there is time to `go_on`.
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
        """How many steps a round may have; gradients are averaged in every step."""
        most = min(most, 1) if late is Delay.PIPELINE else most
        return [steps for steps in rounds if steps <= most]

    def most(self) -> int:
        """The most steps per round to consider: `ALWAYS`, or as far as the steps model reaches, within `max_gap`."""
        if self.metrics is None:
            return int(within_gap(self.schedule, self.job.limits))
        gap, most = most_steps_per_round(self.schedule, self.job.limits), ALWAYS
        while most < MOST and not self.extrapolates(Setting(Delay.SYNCHRONOUS, most + 1)):
            most += 1
        return most if gap is None else min(most, gap)

    def _models(self) -> list[StepsModel]:
        """The job's, and where the time to a loss counts its cases in which consensus distance costs least and most."""
        if self.job.fastest or self.job.objective is not Objective.BALANCED:
            return [self.usual]
        cases = sorted(self.usual.cases, key=lambda case: case.a)
        return [self.usual, *dict.fromkeys((cases[0], cases[-1]))]

    def best(self, settings: Sequence[Setting], model: StepsModel) -> tuple[Setting, Timings] | None:
        """What the objective likes best among these, within the limits on metrics; None if none keeps them.

        A coarser codec is taken if its best is enough better than that of the finer ones.
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
        """By the algorithm and codec that pay for this setting: the finest codec, unless a coarser one saves enough."""
        if setting not in self._chosen:
            known = (
                [self.reached(setting, timing, self.usual) for timing in self.timings] if len(self.timings) > 1 else []
            )
            self._chosen[setting] = self.timings[paying(known, self.job, beside=setting.is_late) if known else 0]
        return self._chosen[setting]

    def reached(self, setting: Setting, timing: Timings, model: StepsModel) -> Costs:
        """What the objective looks at, once the seconds of a step are known."""
        return self.costs(setting, timing, timing.seconds(setting).step, model)

    def costs(self, setting: Setting, timing: Timings, step_seconds: float, model: StepsModel) -> Costs:
        """What the objective looks at, for given seconds of a step."""
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
        """What it costs that gradients come late."""
        if sync is not Delay.PIPELINE:
            return 0.0
        return self.job.delayed(sync.sync)

    def _averages_gradients(self, setting: Setting) -> bool:
        """All-Reduce does, in every step, unless its parameters come late."""
        return (
            self.schedule.strategy.averages_gradients
            and setting.steps_per_round == 1
            and setting.sync is not Delay.LATE
        )

    def at(self, setting: Setting) -> ScheduleMetrics:
        """The metrics of a setting; gradients that come equally late to all keep the workers together."""
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
        """As `CandidateSchedule.may_fail`, by its drift, or because nobody measured what averages as little."""
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
        """Whether the steps model was not fitted to such metrics."""
        metrics = self.at(setting)
        return self.usual.extrapolates(known(metrics.consensus_distance), pushed_by(metrics.drift, self.job))

    def option(self, setting: Setting, label: Label, timing: Timings | None = None) -> CandidateSchedule:
        """The schedule as this setting runs it, with everything that decides."""
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
    """Whether a schedule keeps the limits on its shape."""
    if not limits.min_period <= schedule.period <= limits.max_period:
        return False
    if limits.max_distinct_phases is not None and schedule.num_distinct_phases() > limits.max_distinct_phases:
        return False
    if limits.max_group is not None and _largest_group(schedule) > limits.max_group:
        return False
    return within_gap(schedule, limits)


def within_gap(schedule: Schedule, limits: Limits) -> bool:
    """Whether never more than `max_gap` steps in a row pass without a group that crosses nodes."""
    most = most_steps_per_round(schedule, limits)
    return most is None or schedule.largest_steps_per_round <= most


def most_steps_per_round(schedule: Schedule, limits: Limits) -> int | None:
    """The most steps per round with which the schedule keeps `max_gap`; 0 for none, None without that limit."""
    if limits.max_gap is None:
        return None
    crossing = [t for t in range(schedule.period) if _crosses_nodes(schedule, t)]
    if not crossing:
        return 0
    rounds_between = np.diff([*crossing, crossing[0] + schedule.period]).max()
    return (limits.max_gap + 1) // int(rounds_between)


def _largest_group(schedule: Schedule) -> int:
    """The most workers that one worker's parameters depend on after one round, itself included."""
    if graphs := schedule.strategy.graphs:
        return 1 + max(int(np.bincount(edges.targets).max(initial=0)) for edges in graphs)
    return max((int(schedule.phase(t).sizes.max(initial=0)) for t in range(schedule.period)), default=0)


def _crosses_nodes(schedule: Schedule, t: int) -> bool:
    node_of = schedule.cluster.node_of()
    if graphs := schedule.strategy.graphs:
        return bool((node_of[graphs[t].sources] != node_of[graphs[t].targets]).any())
    phase = schedule.phase(t)
    # Every member's node with that of its group's first member.
    first = np.repeat(phase.members[phase.offsets[:-1]], phase.sizes)
    return bool((node_of[phase.members] != node_of[first]).any())
