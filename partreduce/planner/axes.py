"""Choose the settings that every candidate has: transport of its all-reduces, delay, and steps per round k.

Transport changes no metric, so it is chosen by cost alone (`measuring.transports_of`). The metrics of all delays and k
follow from those at k = 1 (`topo.metrics.late_distance`), the seconds from stages costed once for each algorithm and
codec. All-Reduce's gradients at k = 1 may also arrive late, on all workers, which changes no metric and costs extra
steps; or be sent layer by layer. If workers take different numbers of steps per round, delay and k stay unchanged,
because the metrics of other settings cannot be derived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from partreduce.planner.job import Delay, PlanRequest
from partreduce.planner.measuring import (
    CostedSchedule,
    Seconds,
    Traffic,
    assemble,
    coded_words,
    costed_with,
    metrics_of,
    paying,
    reprice,
    transports_of,
    with_timing,
)
from partreduce.planner.option import NOTHING, CandidateSchedule, Costs, added_by_delay, known, merit, preference
from partreduce.planner.steps_model import StepsModel, step_progress
from partreduce.schedulers.synthesis.problem import Limits, Objective
from partreduce.topo.metrics.evaluate import Convergence, retime
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, GradientBuckets, Transport
from partreduce.topo.timing.event_graph import TimedPeriod

ALWAYS, MOST = 24, 48
"""Up to `ALWAYS` steps per round, all numbers are considered; from there to `MOST`, those whose metrics lie in the
range that the steps model was fitted to."""


class Setting(NamedTuple):
    """A setting of a schedule: the delay of its averages, and steps per round.

    For a schedule whose workers take unequal numbers of steps, `steps_per_round` is 1 and its own numbers are kept.
    """

    sync: Delay
    steps_per_round: int

    def of(self, schedule: Schedule, transport: Transport | None = None, *, name: str | None = None) -> Schedule:
        own = schedule.strategy.steps_per_round
        steps = self.steps_per_round if isinstance(own, int) else own
        return with_timing(schedule, self.sync.sync, steps, transport, name=name)


class Timings:
    """Seconds of communication and of a whole step, by `Setting`, of a schedule with one transport; cached.

    `costed` is synchronous, and has the algorithm and codec; it says whether gradients are sent by layers.
    """

    def __init__(self, costed: CostedSchedule, job: PlanRequest) -> None:
        self.transport, self.cost, self.times = costed.transport, costed.cost, job.compute_times
        self.is_equal = isinstance(costed.schedule.strategy.steps_per_round, int)
        # Gradients are sent by layers in every step, so other numbers of steps per round are not asked for.
        self.is_layered = costed.transport.gradient_buckets is not GradientBuckets.SINGLE
        self.period = TimedPeriod.of(costed.schedule, job.hardware, self.times).merged()
        self.seconds, self.steps = cache(self._seconds), cache(self._steps)

    def sent(self, setting: Setting) -> Traffic:
        count = setting.steps_per_round
        return Traffic(self.cost.per_step / count, self.cost.nic_bytes_per_step / count)

    def _seconds(self, setting: Setting) -> Seconds:
        if self.is_equal and not self.is_layered and setting.sync is not Delay.PIPELINE:
            return Seconds(self.steps(setting.sync)[setting.steps_per_round - 1], self.times.base)
        return Seconds(self.period.cycle(sync=setting.sync.sync).per_step, self.times.base)

    def _steps(self, delay: Delay) -> list[float]:
        """Return the seconds per step for each number of steps per round from 1 to `MOST`.

        The seconds of a round are the largest mean of a cycle of waiting workers, so they are convex in the steps:
        where the middle of a range lies on its chord, so does all of it.
        """

        def exact(count: int) -> float:
            return self.period.cycle(steps_per_round=count, sync=delay.sync).per_round

        first, base = exact(1), self.times.base
        if delay is Delay.SYNCHRONOUS and self.period.steps.max() == self.period.steps.min():
            # All workers compute equally long, so every path through a period gains equally from a longer round.
            return [(first + (count - 1) * base) / count for count in range(1, MOST + 1)]
        found = {1: first, MOST: exact(MOST)}
        ranges = [(1, MOST)]
        while ranges:
            low, high = ranges.pop()
            slope = (found[high] - found[low]) / max(1, high - low)
            between = {count: found[low] + slope * (count - low) for count in range(low + 1, high)}
            middle = (low + high) // 2
            if between and not math.isclose(at_middle := exact(middle), between[middle], rel_tol=1e-9):
                found[middle] = at_middle
                ranges += [(low, middle), (middle, high)]
            else:
                found |= between
        return [found[count] / count for count in range(1, MOST + 1)]


class Point(NamedTuple):
    """The metrics of a schedule in one setting as numbers, infinite if unknown, and whether it averages gradients.

    `distance` is the consensus distance, `synchronous` the same without what delay adds, `late` the late distance.
    """

    distance: float
    drift: float
    late: float
    synchronous: float
    gradients: bool


class Measurements:
    """The seconds and metrics of one schedule in all its settings (delay, steps per round, algorithm, codec).

    `schedule` is made synchronous, with one step per round unless workers take unequal steps. `timings` holds one entry
    for each algorithm and codec, the finest codec first; `metrics` covers every number of steps per round, None if
    workers take unequal steps. Nothing here depends on the optimizer, the objective or limits.
    """

    def __init__(self, schedule: Schedule, job: PlanRequest) -> None:
        own = schedule.strategy.steps_per_round
        self.schedule, self.job = with_timing(schedule, SYNCHRONOUS, 1 if isinstance(own, int) else own), job
        self.timings = [Timings(one, job) for one in transports_of(self.schedule, job)]
        self.metrics = retime(self.schedule, job.push) if isinstance(own, int) else None
        self.at, self.point, self.option = cache(self._at), cache(self._point), cache(self._option)
        self.line = cache(self._line)

    @cached_property
    def layered(self) -> list[Timings]:
        """The timings if gradients are sent by layers."""
        transports = [replace(one.transport, gradient_buckets=GradientBuckets.PER_LAYER) for one in self.timings]
        return [Timings(costed_with(self.schedule, self.job, one), self.job) for one in transports]

    def _at(self, sync: Delay, count: int) -> Convergence:
        if self.metrics is None:
            return metrics_of(Setting(sync, count).of(self.schedule), self.job.push)
        late = sync is Delay.LATE
        spread, pushed = (at(count, late=late) for at in (self.metrics.consensus_distance_at, self.metrics.drift_at))
        return Convergence(
            spread, pushed, self.metrics.contraction, self.metrics.late_distance_at(count) if late else 0.0
        )

    def _point(self, sync: Delay, count: int) -> Point:
        metrics, strategy, is_late = self.at(sync, count), self.schedule.strategy, sync is Delay.LATE
        steps = count if self.metrics is not None else strategy.steps_per_round
        distance = known(metrics.consensus_distance)
        return Point(
            distance=distance,
            drift=known(metrics.drift),
            late=metrics.late_distance,
            synchronous=distance - (added_by_delay(steps, self.schedule.num_workers) if is_late else 0.0),
            gradients=count == 1 and not is_late and strategy.averages_gradients,
        )

    def _line(self, delay: Delay, timing: Timings, most: int) -> list[tuple[Point, float, float]]:
        """Return (metrics, seconds of communication, seconds of a step) for each of 1 to `most` steps per round."""
        settings = [Setting(delay, count) for count in range(1, most + 1)]
        return [(self.point(*one[:2]), timing.sent(one).seconds, timing.seconds(one).step) for one in settings]

    def _option(self, setting: Setting, name: str, timing: Timings, status: str) -> CandidateSchedule:
        transport, count = timing.transport, setting.steps_per_round
        every = f"(every={count})" if count > 1 and self.schedule.strategy.averages_everyone else ""
        words = [name + every, *([f"every {count}"] if count > 1 and not every else [])]
        if setting.sync is not Delay.SYNCHRONOUS:
            words.append("late" if setting.sync is Delay.LATE else str(setting.sync))
        if self.job.algorithm is None and transport.algorithm is not self.job.algorithms[0]:
            words.append(str(transport.algorithm))
        return assemble(
            setting.of(self.schedule, transport, name=self.schedule.name + every),
            self.job,
            " ".join([*words, *coded_words(transport)]),
            sent=timing.sent(setting),
            seconds=timing.seconds(setting),
            metrics=self.at(setting.sync, count),
            status=status,
        )


measured = lru_cache(maxsize=256)(Measurements)
"""Return the measurements of a schedule, cached so that plans for other optimizers and limits share them."""


class Axes:
    """The settings of one schedule (delay, steps per round, codec, layers), and the choice among them for a job.

    Raises:
        PartreduceError: the schedule has no fixed phases, or a metric would take too much work.
    """

    def __init__(self, schedule: Schedule, job: PlanRequest) -> None:
        self.measured = measured(schedule, job.as_measured)
        self.schedule, self.timings = self.measured.schedule, self.measured.timings
        self.job, self.usual, self.progress = job, job.steps_model, step_progress(self.schedule)

    def options(
        self,
        name: str,
        rounds: Sequence[int] = (),
        *,
        pays: Callable[[], bool] = lambda: True,
        status: str = "catalogue",
    ) -> list[CandidateSchedule]:
        """Return the schedule in several settings, ordered by delay and steps per round.

        Each delay that the job allows occurs with 1 step per round and with the best numbers; the first delay, which is
        `synchronous` if allowed, also with the numbers in `rounds`. If allowed, one candidate sends gradients by layer.
        `name` begins the candidates' names, `status` is their `CandidateSchedule.status`. Before each candidate but the
        first, `pays()` is called; if it returns False, that candidate is left out.
        """
        allowed = [delay for delay in self.job.sync_types if delay.suits(self.schedule.strategy)]
        if not allowed or not (most := self.most()):
            return []
        counts = {delay: range(1, (1 if delay is Delay.PIPELINE else most) + 1) for delay in allowed}
        always = [Setting(allowed[0], count) for count in (1, *rounds) if count in counts[allowed[0]]]
        always += [Setting(delay, 1) for delay in allowed]
        kept = {setting: self.timing(setting, self.timings) for setting in always}
        models = _models(self.usual, self.job.objective is not Objective.BALANCED)
        for delay, model in product(allowed, models):
            if (best := self.best(delay, counts[delay], model)) is not None:
                kept.setdefault(*best)
                if self._may_fail(best[0]):
                    safe = [count for count in counts[delay] if not self._may_fail(Setting(delay, count))]
                    if (second := self.best(delay, safe, model)) is not None:
                        kept.setdefault(*second)
        found = list(kept.items())
        # Only a cluster file that states the model's layers allows it.
        has_layers = self.job.hardware.layers is not None and self.schedule.strategy.sends_layers
        if has_layers and Delay.SYNCHRONOUS in allowed:
            by_layers = Setting(Delay.SYNCHRONOUS, 1)
            found.append((by_layers, self.timing(by_layers, self.measured.layered)))
        found.sort(key=lambda one: (allowed.index(one[0].sync), one[0].steps_per_round))
        return [self.option(one, name, timing, status) for i, (one, timing) in enumerate(found) if not i or pays()]

    def most(self) -> int:
        """Return the most steps per round to consider: `ALWAYS` or the steps model's range, limited by `max_gap`."""
        if self.measured.metrics is None:
            return int(within_gap(self.schedule, self.job.limits))
        gap, most = most_steps_per_round(self.schedule, self.job.limits), ALWAYS
        while most < MOST and not self._extrapolates(self.measured.point(Delay.SYNCHRONOUS, most + 1)):
            most += 1
        return most if gap is None else min(most, gap)

    def best(self, delay: Delay, counts: Sequence[int], model: StepsModel) -> tuple[Setting, Timings] | None:
        """Return the best setting of a delay by the objective, within the limits on metrics; None if none keeps them.

        `counts` are the steps per round to try. A coarser codec is chosen only if its best setting saves enough
        compared with those of the finer codecs.
        """
        goal, found = self.job.objective, list[tuple[Setting, Timings, Costs]]()
        for timing in self.timings:
            line = self.measured.line(delay, timing, max(counts, default=0))
            costs = {count: self._costs(delay, *line[count - 1], model) for count in counts}
            merits = {count: merit(one, goal) for count, one in costs.items() if one.keep(self.job.limits)}
            if merits:
                enough = min(merits.values())[0] * (1 + 1e-8) + NOTHING
                near = {count: preference(costs[count], goal) for count, one in merits.items() if one[0] <= enough}
                count = min(near, key=near.__getitem__)
                found.append((Setting(delay, count), timing, costs[count]))
        if not found:
            return None
        return found[paying([one for *_, one in found], self.job, overlaps=delay is not Delay.SYNCHRONOUS)][:2]

    def timing(self, setting: Setting, timings: Sequence[Timings]) -> Timings:
        """Return the timings with the finest codec, or with a coarser one that saves enough seconds in this setting."""
        if len(timings) == 1:
            return timings[0]
        at = self.measured.point(setting.sync, setting.steps_per_round)
        seconds = [(timing.sent(setting).seconds, timing.seconds(setting).step) for timing in timings]
        costs = [self._costs(setting.sync, at, *both, self.usual) for both in seconds]
        return timings[paying(costs, self.job, overlaps=setting.sync is not Delay.SYNCHRONOUS)]

    def _costs(self, delay: Delay, at: Point, communication: float, step: float, model: StepsModel) -> Costs:
        delayed = self.usual.delay if delay is Delay.PIPELINE else 0.0
        ratio = model.steps_ratio(
            at.distance, self.job.pushed_by(at.drift), late=at.late, delayed=delayed, gradients=at.gradients,
            progress=self.progress,
        )  # fmt: skip
        return Costs(communication, step, at.distance, at.drift, ratio)

    def _extrapolates(self, at: Point) -> bool:
        return self.usual.extrapolates(at.distance, self.job.pushed_by(at.drift))

    def _may_fail(self, setting: Setting) -> bool:
        """Return whether training may fail in this setting, by its drift or because averages are too rare or late."""
        at = self.measured.point(setting.sync, setting.steps_per_round)
        if at.gradients:
            return False
        if self.usual.a_beyond is None and self._extrapolates(at):
            return True
        drift = self.measured.at(setting.sync, setting.steps_per_round).drift.value
        return not self.job.bears_drift(drift or 0.0) or self.usual.lost.includes(at.synchronous, at.late)

    def option(self, setting: Setting, name: str, timing: Timings, status: str = "catalogue") -> CandidateSchedule:
        """Return the candidate in this setting, with its costs; `name` and `status` are as in `CandidateSchedule`."""
        return reprice(self.measured.option(setting, name, timing, status), self.job)


@lru_cache(maxsize=16)
def _models(usual: StepsModel, is_alone: bool) -> list[StepsModel]:
    """Return the steps model, and unless `is_alone` its cases (tasks) with the lowest and highest price of distance."""
    cases = sorted(usual.cases, key=lambda case: case.a)
    return [usual] if is_alone else [usual, *dict.fromkeys((cases[0], cases[-1]))]


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
    """Return whether every window of `max_gap` + 1 consecutive steps has a group that crosses nodes."""
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
