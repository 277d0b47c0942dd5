"""The axes that belong to every candidate: how its sums travel, what may be late, and k, the steps of a round.

How sums travel changes no metric (`planner.travel`), so the choice needs no search.

What may be late, and k, the steps per round, change metrics and seconds. The metrics of all of them follow from those
at k = 1 (`topo.metrics.late_distance`), the seconds from stages costed once for each algorithm and codec. The best k
is exact where speeds are fixed: the settings are tried in the order of a lower bound on what the objective minimizes,
until the bound passes the best. Gradients of All-Reduce at k = 1 may also come late, to all workers, which changes no
metric and costs steps of its own; or be sent layer by layer. Where workers take different numbers of steps these stay
as they are: nothing follows from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from partreduce.planner.delay import Delay
from partreduce.planner.job import PlanRequest
from partreduce.planner.limits import most_steps_per_round, within_gap
from partreduce.planner.measuring import Label, ScheduleMetrics, assembled, metrics_of, pushed_by
from partreduce.planner.option import CandidateSchedule, added_by_delay, known
from partreduce.planner.preference import Costs, preference
from partreduce.planner.steps_model import StepsModel
from partreduce.planner.timings import Setting, Timings
from partreduce.planner.travel import coded_words, paying, timed, transports_of, traveling
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.metrics.evaluate import retimed
from partreduce.topo.metrics.late_distance import Retimed
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, GradientBuckets

ALWAYS, MOST = 24, 48
"""Steps of a round that are considered in any case, and at most; between them as far as the steps model was fitted."""


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
        """As `CandidateSchedule.may_fail`, or by its drift."""
        if self.job.fastest or self._averages_gradients(setting) or setting.sync is Delay.PIPELINE:
            return False
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
