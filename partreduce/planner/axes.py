"""Choose the axes that every candidate has: transport of its sums, delay, and k, the steps per round.

Transport changes no metric, so it is chosen by cost alone (`measuring.transports_of`). The metrics of all delays and k
follow from those at k = 1 (`topo.metrics.late_distance`), the seconds from stages costed once for each algorithm and
codec. The best k is exact at fixed speeds: settings are tried in the order of a lower bound on the objective, until the
bound exceeds the best value. Where step times vary, the settings that are good at mean speeds are sampled
(`planner.options`). All-Reduce's gradients at k = 1 may also arrive late, on all workers, which changes no metric and
costs extra steps; or be sent layer by layer. Where workers take different numbers of steps, delay and k are kept, since
the metrics of other settings do not follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.planner.job import Delay, PlanRequest
from partreduce.planner.measuring import (
    CostedTransport,
    Label,
    ScheduleMetrics,
    Seconds,
    Traffic,
    assemble,
    coded_words,
    cost_of,
    metrics_of,
    paying,
    predict_steps,
    pushed_by,
    seconds_of,
    transports_of,
    traveling,
    with_timing,
)
from partreduce.planner.option import CandidateSchedule, Costs, added_by_delay, known, preference
from partreduce.planner.steps_model import StepsModel
from partreduce.schedulers.synthesis.problem import Limits, Objective
from partreduce.topo.metrics.evaluate import retime
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, GradientBuckets, Transport
from partreduce.topo.timing.event_graph import TimedPeriod

ALWAYS, MOST = 24, 48
"""Steps per round that are always considered, and the maximum; between them the range that the steps model was fitted
to decides."""


class Setting(NamedTuple):
    """Delay, steps per round (1 keeps unequal numbers), and whether gradients are sent in one piece or by layers."""

    sync: Delay
    steps_per_round: int
    gradient_buckets: GradientBuckets = GradientBuckets.SINGLE

    def of(self, schedule: Schedule) -> Schedule:
        """Return a synchronous schedule of one step per round, or of unequal steps, in this setting."""
        own = schedule.strategy.steps_per_round
        return with_timing(schedule, self.sync.sync, self.steps_per_round if isinstance(own, int) else own)

    @property
    def is_late(self) -> bool:
        return self.sync is not Delay.SYNCHRONOUS

    @property
    def is_layered(self) -> bool:
        return self.gradient_buckets is GradientBuckets.PER_LAYER


class Timings:
    """The stages of a synchronous schedule with one algorithm and codec; results are cached."""

    def __init__(self, schedule: Schedule, job: PlanRequest, costed: CostedTransport) -> None:
        self.schedule, self.job, self.costed, self.times = schedule, job, costed, job.compute_times()
        self.is_equal = isinstance(schedule.strategy.steps_per_round, int)
        runs, algorithm = traveling(schedule, costed.transport), costed.transport.algorithm
        self.period = TimedPeriod.of(runs, job.hardware, self.times, algorithm=algorithm).merged()
        self.seconds, self.least_step = cache(self._seconds), cache(self._least_step)
        self._first = cache(self._first_round)

    def transport(self, setting: Setting) -> Transport:
        return replace(self.costed.transport, gradient_buckets=setting.gradient_buckets)

    def sent(self, setting: Setting) -> Traffic:
        """Return the traffic of a step in a setting."""
        is_usual = not setting.is_layered
        cost = self.costed.cost if is_usual else cost_of(self.schedule, self.job, self.transport(setting))
        return Traffic(cost.per_step / setting.steps_per_round, cost.nic_bytes_per_step / setting.steps_per_round)

    def _seconds(self, setting: Setting) -> Seconds:
        base, count = self.times.base, setting.steps_per_round
        if setting.is_layered:
            runs = traveling(setting.of(self.schedule), self.transport(setting))
            return seconds_of(runs, self.job, self.costed.transport.algorithm)
        if not self.is_equal:
            return Seconds(self.period.cycle(sync=setting.sync.sync).per_step, base)
        if not setting.is_late and self.period.steps.max() == self.period.steps.min():
            # All workers compute equally long, so every path through a period gains equally from a longer round.
            return Seconds((self._first(setting.sync) + (count - 1) * base) / count, base)
        if count == 1:
            return Seconds(self._first(setting.sync), base)
        return Seconds(self.period.cycle(steps_per_round=count, sync=setting.sync.sync).per_step, base)

    def _first_round(self, sync: Delay) -> float:
        """Return the seconds of a round of one step at fixed speeds."""
        return self.period.cycle(steps_per_round=1, sync=sync.sync).per_round

    @cached_property
    def _own(self) -> npt.NDArray[np.float64]:
        """Return the seconds that a worker's own communication takes (stages, workers)."""
        return np.array([stage.after() for stage in self.period.stages])

    def _least_step(self, setting: Setting) -> float:
        """Return a lower bound on the step time at fixed speeds: every worker computes and communicates.

        A longer round lengthens every cycle of workers that wait for one another by at least the computing time of its
        fastest worker for each step. With delay, where communication may fill that time, the bound does not grow.
        """
        if not self.is_equal:
            return self.seconds(setting).step
        steps, count, first = self.period.steps, setting.steps_per_round, self._first(setting.sync)
        if setting.sync is Delay.PIPELINE:
            return max(float(steps.max()), first / count)
        if setting.is_late:
            return max(float(np.maximum(self._own, steps * count).mean(axis=0).max()), first) / count
        added = (count - 1) * float(steps.min())
        return max(float((self._own.mean(axis=0) + steps * count).max()), first + added) / count


class Axes:
    """A synchronous schedule of one step per round, or of unequal steps, with the data shared by all its settings.

    Its own delay and equal steps per round are ignored. `timings` holds one entry for each algorithm and codec of its
    sums, the finest codec first; `metrics` those of every number of steps per round, None where numbers are unequal.

    Raises:
        PartreduceError: the schedule has no fixed phases, or a metric could not be found within its limit.
    """

    def __init__(self, schedule: Schedule, job: PlanRequest) -> None:
        own = schedule.strategy.steps_per_round
        self.schedule = with_timing(schedule, SYNCHRONOUS, 1 if isinstance(own, int) else own)
        self.job, self.usual = job, job.steps_model
        self.timings = tuple(Timings(self.schedule, job, one) for one in transports_of(self.schedule, job))
        self.metrics = retime(self.schedule, job.push) if isinstance(own, int) else None
        self.timing, self._at = cache(self._timing), cache(self._metrics_at)

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
        always = [Setting(allowed[0], count) for count in _lengths(allowed[0], (1, *rounds), most)]
        always += [Setting(late, 1) for late in allowed if most]
        if self.job.sends_layers and Delay.SYNCHRONOUS in allowed and self.schedule.strategy.sends_layers and most:
            always.append(Setting(Delay.SYNCHRONOUS, 1, GradientBuckets.PER_LAYER))
        kept = {setting: self.timing(setting) for setting in always}
        for late in allowed:
            settings = [Setting(late, count) for count in _lengths(late, range(1, most + 1), most)]
            safe = [setting for setting in settings if not self._may_fail(setting)]
            for model in self._models():
                if (best := self.best(settings, model)) is not None:
                    kept.setdefault(*best)
                    if best[0] not in safe and (second := self.best(safe, model)) is not None:
                        kept.setdefault(*second)
        ordered = sorted(kept, key=lambda one: (allowed.index(one.sync), one.steps_per_round, one.is_layered))
        return [self.option(setting, label, kept[setting]) for i, setting in enumerate(ordered) if not i or go_on()]

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
        return found[paying([self.reached(*one, model) for one in found], self.job, overlaps=settings[0].is_late)]

    def _best(self, settings: Sequence[Setting], timing: Timings, model: StepsModel) -> Setting | None:
        goal, limits = self.job.objective, self.job.limits
        bounds = [(self.costs(setting, timing, timing.least_step(setting), model), setting) for setting in settings]
        chosen: tuple[tuple[float, ...], Setting] | None = None
        for least, setting in sorted((preference(costs, goal), one) for costs, one in bounds if costs.keep(limits)):
            if chosen is not None and least >= chosen[0]:
                break
            reached = preference(self.reached(setting, timing, model), goal)
            if chosen is None or reached < chosen[0]:
                chosen = reached, setting
        return None if chosen is None else chosen[1]

    def _timing(self, setting: Setting) -> Timings:
        """Return the timings of the finest codec, unless a coarser one saves enough in this setting."""
        if len(self.timings) == 1:
            return self.timings[0]
        costs = [self.reached(setting, timing, self.usual) for timing in self.timings]
        return self.timings[paying(costs, self.job, overlaps=setting.is_late)]

    def reached(self, setting: Setting, timing: Timings, model: StepsModel) -> Costs:
        """Return the costs of a setting, computing its step seconds from the timings."""
        return self.costs(setting, timing, timing.seconds(setting).step, model)

    def costs(self, setting: Setting, timing: Timings, step_seconds: float, model: StepsModel) -> Costs:
        """Return the costs of a setting for given seconds per step."""
        metrics, gradients = self.at(setting), self._averages_gradients(setting)
        return Costs(
            communication=timing.sent(setting).seconds,
            step_seconds=step_seconds,
            consensus_distance=known(metrics.consensus_distance),
            drift=known(metrics.drift),
            steps_ratio=predict_steps(metrics, self.job, setting.sync.sync, gradients=gradients, model=model),
        )

    def _averages_gradients(self, setting: Setting) -> bool:
        """Return whether gradients are averaged: by All-Reduce in every step, unless its parameters are late."""
        is_every_step = setting.steps_per_round == 1 and setting.sync is not Delay.LATE
        return is_every_step and self.schedule.strategy.averages_gradients

    def at(self, setting: Setting) -> ScheduleMetrics:
        """Return the metrics of a setting; gradients equally late on all workers keep the models identical."""
        return self._at(setting.sync, setting.steps_per_round)

    def _metrics_at(self, sync: Delay, count: int) -> ScheduleMetrics:
        if self.metrics is None:
            return metrics_of(Setting(sync, count).of(self.schedule), self.job)
        late = sync is Delay.LATE
        spread, pushed = (at(count, late=late) for at in (self.metrics.consensus_distance_at, self.metrics.drift_at))
        return ScheduleMetrics(
            spread, pushed, self.metrics.contraction, self.metrics.late_distance_at(count) if late else 0.0
        )

    def _may_fail(self, setting: Setting) -> bool:
        """Return `CandidateSchedule.may_fail`: by its drift, or because no measured schedule averages as rarely."""
        if self.job.fastest or self._averages_gradients(setting) or setting.sync is Delay.PIPELINE:
            return False
        if self.usual.is_unpriced_beyond and self.extrapolates(setting):
            return True
        metrics = self.at(setting)
        if not self.job.bears_drift(metrics.drift.value or 0.0):
            return True
        added = added_by_delay(setting.of(self.schedule)) if setting.sync is Delay.LATE else 0.0
        return self.usual.lost.includes(known(metrics.consensus_distance) - added, metrics.late_distance)

    def extrapolates(self, setting: Setting) -> bool:
        """Return whether the metrics lie outside the range that the steps model was fitted to."""
        metrics = self.at(setting)
        return self.usual.extrapolates(known(metrics.consensus_distance), pushed_by(metrics.drift, self.job))

    def option(self, setting: Setting, label: Label, timing: Timings | None = None) -> CandidateSchedule:
        """Return the option of this setting with all its costs."""
        timing = timing or self.timing(setting)
        schedule, transport, count = setting.of(self.schedule), timing.transport(setting), setting.steps_per_round
        words = [label.name]
        if count > 1 and schedule.strategy.averages_everyone:
            schedule = replace(schedule, name=f"{schedule.name}(every={count})")
            words = [f"{label.name}(every={count})"]
        elif count > 1:
            words.append(f"every {count}")
        words += [setting.sync.label] * setting.is_late
        if self.job.algorithm is None and transport.algorithm is not self.job.algorithms[0]:
            words.append(str(transport.algorithm))
        return assemble(
            traveling(schedule, transport),
            self.job,
            replace(label, name=" ".join([*words, *coded_words(transport)])),
            algorithm=transport.algorithm,
            sent=timing.sent(setting),
            seconds=timing.seconds(setting),
            metrics=self.at(setting),
        )


def _lengths(late: Delay, rounds: Sequence[int], most: int) -> list[int]:
    """Return the allowed steps per round; gradients are averaged in every step."""
    most = min(most, 1) if late is Delay.PIPELINE else most
    return [steps for steps in rounds if steps <= most]


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
