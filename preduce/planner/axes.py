"""The axes that belong to every candidate: its form, in lockstep or late, and k, the steps of a round.

The form is the cheapest that the job allows; ties go to the ring, which every backend has. It changes no figure, and a
form whose phases cost no more makes no step slower, so the choice needs no search.

Lockstep or late, and k, change figures and seconds. The figures of all of them follow from those at pace 1
(`topo.figures.retimed`), the seconds from stages that are costed once. The best k is exact where speeds are fixed: the
settings are tried in the order of a lower bound on what the objective minimises, until the bound passes the best.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from preduce.planner.limits import most_pace
from preduce.planner.measuring import (
    Figures,
    Label,
    Seconds,
    Sent,
    assembled,
    cheapest,
    pushed_by,
    sampled_seconds,
    steps_model,
)
from preduce.planner.option import known
from preduce.planner.preference import Costs, preference
from preduce.schedulers.synthesis.problem import Objective
from preduce.topo.strategies.axes import LOCKSTEP, Form, How, Late
from preduce.topo.timing.event_graph import TimedPeriod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preduce.planner.job import Job
    from preduce.planner.option import Option
    from preduce.planner.steps_model import StepsModel
    from preduce.topo.figures.retimed import Retimed
    from preduce.topo.schedule import Schedule
    from preduce.topo.strategies.base import Pace
    from preduce.topo.timing.cost import Communication

ALWAYS, MOST = 24, 48
"""Steps of a round that are considered in any case, and at most; between them as far as the steps model was fitted."""

MOST_SAMPLED = 1
"""Settings of one candidate that are sampled for the best, where step times are random: that at steady speeds."""


class Setting(NamedTuple):
    """Late by one round or in lockstep, and the steps of a round."""

    late: bool
    pace: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A schedule at pace 1 in lockstep, with all that is the same for every setting of it."""

    schedule: Schedule
    job: Job
    form: Form
    cost: Communication
    figures: Retimed
    period: TimedPeriod
    usual: StepsModel
    _seconds: dict[Setting, Seconds] = field(default_factory=dict)
    _first: dict[bool, float] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Schedule, job: Job) -> Axes:
        """Cost, figures and stages of the schedule; its own pace and lateness are left aside.

        Raises:
            PreduceError: the schedule has no fixed phases, or a figure could not be found within its limit.
        """
        from preduce.topo.figures.evaluate import retimed

        base = timed(schedule, late=False, pace=1)
        form, cost = cheapest(base, job)
        period = TimedPeriod.of(base, job.hardware, job.compute_times(), form=form)
        return cls(
            schedule=base, job=job, form=form, cost=cost, figures=retimed(base, job.push), period=period,
            usual=job.steps_model,
        )  # fmt: skip

    def options(
        self, label: Label, paces: Sequence[int] = (), go_on: Callable[[], bool] = lambda: True
    ) -> list[Option]:
        """One step a round and the `paces`, in lockstep, and late at one; and what the objective likes best of all.

        After the first, which is in lockstep where that is allowed, each only if there is time to `go_on`.
        """
        most, allowed = self.most(), self.job.whens
        kept = {Setting(allowed[0], pace) for pace in (1, *paces) if pace <= most}
        kept |= {Setting(late, 1) for late in allowed if most}
        if self.job.objective is not Objective.EXACT:
            kept |= {best for late in allowed if (best := self.best([Setting(late, k + 1) for k in range(most)]))}
        return [self.option(setting, label) for i, setting in enumerate(sorted(kept)) if not i or go_on()]

    def most(self) -> int:
        """The largest pace to consider: `ALWAYS`, or as far as the steps model reaches, within the largest gap."""
        gap = most_pace(self.schedule, self.job.limits)
        most = ALWAYS
        while most < MOST and not self.extrapolates(Setting(False, most + 1)):
            most += 1
        return most if gap is None else min(most, gap)

    def best(self, settings: Sequence[Setting]) -> Setting | None:
        """What the objective likes best among these, within the limits on figures; None if none keeps them."""
        goal, limits = self.job.objective, self.job.limits
        bounds = [(self.costs(setting, self.least_step(setting)), setting) for setting in settings]
        ordered = sorted((preference(costs, goal), setting) for costs, setting in bounds if costs.keep(limits))
        if not self.job.compute_times().is_fixed:
            ordered = ordered[:MOST_SAMPLED]
        chosen: tuple[tuple[float, ...], Setting] | None = None
        for least, setting in ordered:
            if chosen is not None and least >= chosen[0]:
                break
            reached = preference(self.costs(setting, self.seconds(setting).step), goal)
            if chosen is None or reached < chosen[0]:
                chosen = reached, setting
        return None if chosen is None else chosen[1]

    def costs(self, setting: Setting, step_seconds: float) -> Costs:
        """What the objective looks at, for given seconds of a step."""
        figures = self.at(setting)
        noise, pushed = known(figures.disagreement), pushed_by(figures.drift, self.job)
        return Costs(
            communication=self.cost.per_round / setting.pace,
            step_seconds=step_seconds,
            disagreement=noise,
            drift=known(figures.drift),
            stretch=self._model(setting, noise, pushed).stretch(noise, pushed, late=setting.late),
        )

    def at(self, setting: Setting) -> Figures:
        """The figures of a setting."""
        spread = self.figures.disagreement_at(setting.pace, late=setting.late)
        return Figures(spread, self.figures.drift_at(setting.pace, late=setting.late), self.figures.contraction)

    def extrapolates(self, setting: Setting) -> bool:
        """Whether the steps model was not fitted to such figures."""
        figures = self.at(setting)
        return self.usual.extrapolates(known(figures.disagreement), pushed_by(figures.drift, self.job))

    def _model(self, setting: Setting, noise: float, pushed: float) -> StepsModel:
        """See `steps_model`; whether there is a correction depends on lateness and on a pace above 1, not on which."""
        if pushed <= 0 or not self.job.drift_correction:
            return self.usual
        return steps_model(timed(self.schedule, setting.late, min(setting.pace, 2)), self.job, noise, pushed)

    def seconds(self, setting: Setting) -> Seconds:
        """Of a step, kept."""
        if setting not in self._seconds:
            self._seconds[setting] = self._timed(setting)
        return self._seconds[setting]

    def _timed(self, setting: Setting) -> Seconds:
        times, pace = self.job.compute_times(), setting.pace
        if not times.is_fixed:
            return sampled_seconds(timed(self.schedule, setting.late, pace), self.job, self.form)
        if not setting.late and self.period.steps.max() == self.period.steps.min():
            # Everybody computes as long, so every way through a period gains the same from a longer round.
            return Seconds((self.first(late=False) + (pace - 1) * times.base) / pace, times.base)
        if pace == 1:
            return Seconds(self.first(late=setting.late), times.base)
        return Seconds(self.period.cycle(pace=pace, when=Late() if setting.late else LOCKSTEP).per_step, times.base)

    def first(self, *, late: bool) -> float:
        """Seconds of a round of one step, at fixed speeds."""
        if late not in self._first:
            self._first[late] = self.period.cycle(pace=1, when=Late() if late else LOCKSTEP).per_round
        return self._first[late]

    def least_step(self, setting: Setting) -> float:
        """No step is shorter, at fixed speeds: the slowest worker computes, and longer rounds take longer.

        A longer round adds to every cycle of workers that wait for one another at least the fastest one's computing
        for each step; late, where communication may fill the time, it adds nothing for sure.
        """
        steps, pace = self.period.steps, setting.pace
        added = 0.0 if setting.late else (pace - 1) * float(steps.min())
        return max(float(steps.max()), (self.first(late=setting.late) + added) / pace)

    def option(self, setting: Setting, label: Label) -> Option:
        """The schedule as this setting runs it, with everything that decides."""
        schedule, words = timed(self.schedule, setting.late, setting.pace).travelling(self.form), [label.name]
        if setting.pace > 1:
            if schedule.strategy.averages_everyone:
                schedule = replace(schedule, name=f"{schedule.name}(every={setting.pace})")
                words = [f"{label.name}(every={setting.pace})"]
            else:
                words.append(f"every {setting.pace}")
        if setting.late:
            words.append("late")
        if self.job.form is None and self.form is not self.job.forms[0]:
            words.append(str(self.form))
        sent = Sent(self.cost.per_round / setting.pace, self.cost.nic_bytes_per_step / setting.pace)
        named = replace(label, name=" ".join(words))
        return assembled(
            schedule,
            self.job,
            named,
            form=self.form,
            sent=sent,
            seconds=self.seconds(setting),
            figures=self.at(setting),
        )


def timed(schedule: Schedule, late: bool, pace: Pace) -> Schedule:
    """The same phases at this pace, late by one round or in lockstep, as rings; without their certificate."""
    strategy = replace(schedule.strategy, when=Late() if late else LOCKSTEP, pace=pace, how=How())
    return replace(schedule, strategy=strategy, certificate=None)
