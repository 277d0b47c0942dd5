"""The axes that belong to every candidate: how its sums travel, what may be late, and k, the steps of a round.

How sums travel changes no figure (`planner.travel`), so the choice needs no search.

What may be late, and k, change figures and seconds. The figures of all of them follow from those at pace 1
(`topo.figures.retimed`), the seconds from stages that are costed once for each form and codec. The best k is exact
where speeds are fixed: the settings are tried in the order of a lower bound on what the objective minimises, until the
bound passes the best. Gradients of All-Reduce at pace 1 may also come late, to all alike, which changes no figure and
costs steps of its own; or be sent layer by layer. Unequal paces stay as they are: nothing follows from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from partreduce.planner.job import Job
from partreduce.planner.lateness import Lateness
from partreduce.planner.limits import most_pace, within_gap
from partreduce.planner.measuring import Figures, Label, assembled, figures_of, pushed_by
from partreduce.planner.option import Option, added_by_lateness, known
from partreduce.planner.preference import Costs, preference
from partreduce.planner.steps_model import StepsModel
from partreduce.planner.timings import Setting, Timings
from partreduce.planner.travel import coded_words, hows_of, paying, timed, travelling
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.figures.evaluate import retimed
from partreduce.topo.figures.retimed import Retimed
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import LOCKSTEP, Sending

ALWAYS, MOST = 24, 48
"""Steps of a round that are considered in any case, and at most; between them as far as the steps model was fitted."""

MOST_SAMPLED = 1
"""Settings of one candidate that are sampled for the best, where step times are random: that at steady speeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A schedule in lockstep at pace 1, or at unequal paces, with all that is the same for every setting of it.

    `timings` are those of each form and codec in which its sums may travel, the finest codec first. `figures` give
    those of every pace where it is one for all.
    """

    schedule: Schedule
    job: Job
    timings: tuple[Timings, ...]
    figures: Retimed | None
    usual: StepsModel
    _chosen: dict[Setting, Timings] = field(default_factory=dict)
    _figures: dict[tuple[Lateness, int], Figures] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Schedule, job: Job) -> Axes:
        """Cost, figures and stages of the schedule; one pace for all and lateness are left aside.

        Raises:
            PartreduceError: the schedule has no fixed phases, or a figure could not be found within its limit.
        """
        is_equal = isinstance(schedule.strategy.pace, int)
        base = timed(schedule, LOCKSTEP, 1 if is_equal else schedule.strategy.pace)
        timings = tuple(Timings.of(base, job, costed) for costed in hows_of(base, job))
        figures = retimed(base, job.push) if is_equal else None
        return cls(schedule=base, job=job, timings=timings, figures=figures, usual=job.steps_model)

    def options(
        self, label: Label, paces: Sequence[int] = (), go_on: Callable[[], bool] = lambda: True
    ) -> list[Option]:
        """One step a round and the `paces`, in lockstep, and late at one; and what the objective likes best of all.

        After the first, which is in lockstep where that is allowed, each only if there is time to `go_on`.
        """
        allowed = [lateness for lateness in self.job.whens if lateness.suits(self.schedule.strategy)]
        if not allowed:
            return []
        most = self.most()
        always = [Setting(allowed[0], pace) for pace in self._paces(allowed[0], (1, *paces), most)]
        always += [Setting(late, 1) for late in allowed if most]
        if self.job.sends_layers and Lateness.LOCKSTEP in allowed and self.schedule.strategy.sends_layers and most:
            always.append(Setting(Lateness.LOCKSTEP, 1, Sending.LAYERS))
        kept = {setting: self.timing(setting) for setting in always}
        for late in allowed:
            settings = [Setting(late, pace) for pace in self._paces(late, range(1, most + 1), most)]
            borne = [setting for setting in settings if not self._may_be_lost(setting)]
            for model in self._models():
                best = self.best(settings, model)
                if best is not None:
                    kept.setdefault(*best)
                if best is not None and best[0] not in borne and (safe := self.best(borne, model)) is not None:
                    kept.setdefault(*safe)
        ordered = sorted(kept, key=lambda one: (allowed.index(one.when), one.pace, one.sending is Sending.LAYERS))
        return [self.option(setting, label, kept[setting]) for i, setting in enumerate(ordered) if not i or go_on()]

    @staticmethod
    def _paces(late: Lateness, paces: Sequence[int], most: int) -> list[int]:
        """Those that a round may have; gradients are averaged in every step."""
        most = min(most, 1) if late is Lateness.PIPELINE else most
        return [pace for pace in paces if pace <= most]

    def most(self) -> int:
        """The largest pace to consider: `ALWAYS`, or as far as the steps model reaches, within the largest gap."""
        if self.figures is None:
            return int(within_gap(self.schedule, self.job.limits))
        gap, most = most_pace(self.schedule, self.job.limits), ALWAYS
        while most < MOST and not self.extrapolates(Setting(Lateness.LOCKSTEP, most + 1)):
            most += 1
        return most if gap is None else min(most, gap)

    def _models(self) -> list[StepsModel]:
        """The job's, and where the time to a loss counts its cases in which consensus distance costs least and most."""
        if self.job.fastest or self.job.objective is not Objective.BALANCED:
            return [self.usual]
        cases = sorted(self.usual.cases, key=lambda case: case.a)
        return [self.usual, *dict.fromkeys((cases[0], cases[-1]))]

    def best(self, settings: Sequence[Setting], model: StepsModel) -> tuple[Setting, Timings] | None:
        """What the objective likes best among these, within the limits on figures; None if none keeps them.

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
        if not self.job.compute_times().is_fixed:
            ordered = ordered[:MOST_SAMPLED]
        chosen: tuple[tuple[float, ...], Setting] | None = None
        for least, setting in ordered:
            if chosen is not None and least >= chosen[0]:
                break
            reached = preference(self.reached(setting, timing, model), goal)
            if chosen is None or reached < chosen[0]:
                chosen = reached, setting
        return None if chosen is None else chosen[1]

    def timing(self, setting: Setting) -> Timings:
        """In the form and codec that pay for this setting: of the finest codec, unless a coarser one saves enough."""
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
        figures = self.at(setting)
        noise, pushed = known(figures.consensus_distance), pushed_by(figures.drift, self.job)
        return Costs(
            communication=timing.sent(setting).seconds,
            step_seconds=step_seconds,
            consensus_distance=noise,
            drift=known(figures.drift),
            steps_ratio=model.steps_ratio(
                noise,
                pushed,
                late=figures.late_distance,
                delayed=self.job.delayed(setting.when.when),
                gradients=self._averages_gradients(setting),
            ),
        )

    def _averages_gradients(self, setting: Setting) -> bool:
        """All-Reduce does, in every step, unless its parameters come late."""
        return self.schedule.strategy.averages_gradients and setting.pace == 1 and setting.when is not Lateness.LATE

    def at(self, setting: Setting) -> Figures:
        """The figures of a setting; gradients that come late to all alike keep the workers together."""
        place = setting.when, setting.pace
        if place not in self._figures:
            self._figures[place] = self._figures_at(setting)
        return self._figures[place]

    def _figures_at(self, setting: Setting) -> Figures:
        if self.figures is None:
            return figures_of(setting.of(self.schedule), self.job)
        late = setting.when is Lateness.LATE
        spread = self.figures.consensus_distance_at(setting.pace, late=late)
        pushed = self.figures.drift_at(setting.pace, late=late)
        apart = self.figures.late_distance_at(setting.pace) if late else 0.0
        return Figures(spread, pushed, self.figures.contraction, apart)

    def _may_be_lost(self, setting: Setting) -> bool:
        """As `Option.may_be_lost`, or by its drift."""
        if self.job.fastest or self._averages_gradients(setting) or setting.when is Lateness.PIPELINE:
            return False
        figures = self.at(setting)
        if not self.job.bears_drift(figures.drift.value or 0.0):
            return True
        distance = known(figures.consensus_distance)
        if setting.when is Lateness.LATE:
            distance -= added_by_lateness(setting.of(self.schedule))
        return self.usual.lost.includes(distance, figures.late_distance)

    def extrapolates(self, setting: Setting) -> bool:
        """Whether the steps model was not fitted to such figures."""
        figures = self.at(setting)
        return self.usual.extrapolates(known(figures.consensus_distance), pushed_by(figures.drift, self.job))

    def option(self, setting: Setting, label: Label, timing: Timings | None = None) -> Option:
        """The schedule as this setting runs it, with everything that decides."""
        timing = timing or self.timing(setting)
        schedule = setting.of(self.schedule)
        words = [label.name]
        if setting.pace > 1:
            if schedule.strategy.averages_everyone:
                schedule = replace(schedule, name=f"{schedule.name}(every={setting.pace})")
                words = [f"{label.name}(every={setting.pace})"]
            else:
                words.append(f"every {setting.pace}")
        if setting.is_late:
            words.append(str(setting.when))
        how = timing.how(setting)
        if self.job.form is None and how.form is not self.job.forms[0]:
            words.append(str(how.form))
        words += coded_words(how)
        return assembled(
            travelling(schedule, how),
            self.job,
            replace(label, name=" ".join(words)),
            form=how.form,
            sent=timing.sent(setting),
            seconds=timing.seconds(setting),
            figures=self.at(setting),
        )
