"""Seconds of a step of a schedule whose sums travel in one form and codec, for every lateness and pace, costed once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from partreduce.planner.job import Job
from partreduce.planner.lateness import Lateness
from partreduce.planner.measuring import Seconds, Sent, seconds_of
from partreduce.planner.travel import CostedHow, cost_of, timed, travelling
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import How, Sending
from partreduce.topo.timing.event_graph import TimedPeriod


class Setting(NamedTuple):
    """What may be late, the steps of a round, and whether gradients go in one piece or layer by layer.

    Of unequal paces `pace` is 1: they stay as they are.
    """

    when: Lateness
    pace: int
    sending: Sending = Sending.WHOLE

    def of(self, schedule: Schedule) -> Schedule:
        """A schedule in lockstep at pace 1, or at unequal paces, in this setting."""
        own = schedule.strategy.pace
        return timed(schedule, self.when.when, self.pace if isinstance(own, int) else own)

    @property
    def is_late(self) -> bool:
        return self.when is not Lateness.LOCKSTEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The stages of a schedule at pace 1, or at unequal paces, in one form and codec; what was computed is kept."""

    schedule: Schedule
    job: Job
    costed: CostedHow
    period: TimedPeriod
    _seconds: dict[Setting, Seconds] = field(default_factory=dict)
    _first: dict[Lateness, float] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: Schedule, job: Job, costed: CostedHow) -> Timings:
        """Cost the stages of a schedule in lockstep."""
        runs = travelling(schedule, costed.how)
        period = TimedPeriod.of(runs, job.hardware, job.compute_times(), form=costed.how.form)
        return cls(schedule=schedule, job=job, costed=costed, period=period)

    def how(self, setting: Setting) -> How:
        """How the sums of a setting travel."""
        return replace(self.costed.how, sending=setting.sending)

    def sent(self, setting: Setting) -> Sent:
        """What a step of a setting sends."""
        cost = self.costed.cost
        if setting.sending is Sending.LAYERS:
            cost = cost_of(self.schedule, self.job, self.how(setting))
        return Sent(cost.per_step / setting.pace, cost.nic_bytes_per_step / setting.pace)

    def seconds(self, setting: Setting) -> Seconds:
        if setting not in self._seconds:
            self._seconds[setting] = self._timed(setting)
        return self._seconds[setting]

    def _timed(self, setting: Setting) -> Seconds:
        times, pace = self.job.compute_times(), setting.pace
        if not times.is_fixed or setting.sending is Sending.LAYERS:
            runs = travelling(setting.of(self.schedule), self.how(setting))
            return seconds_of(runs, self.job, self.costed.how.form)
        if not self.is_equal:
            return Seconds(self.period.cycle(when=setting.when.when).per_step, times.base)
        if not setting.is_late and self.period.steps.max() == self.period.steps.min():
            # Everybody computes as long, so every way through a period gains the same from a longer round.
            return Seconds((self.first(setting.when) + (pace - 1) * times.base) / pace, times.base)
        if pace == 1:
            return Seconds(self.first(setting.when), times.base)
        return Seconds(self.period.cycle(pace=pace, when=setting.when.when).per_step, times.base)

    @property
    def is_equal(self) -> bool:
        """Whether all workers have one pace."""
        return isinstance(self.schedule.strategy.pace, int)

    def first(self, when: Lateness) -> float:
        """Seconds of a round of one step, at fixed speeds."""
        if when not in self._first:
            self._first[when] = self.period.cycle(pace=1, when=when.when).per_round
        return self._first[when]

    def least_step(self, setting: Setting) -> float:
        """No step is shorter, at fixed speeds: the slowest worker computes, and longer rounds take longer.

        A longer round adds to every cycle of workers that wait for one another at least the fastest one's computing
        for each step; late, where communication may fill the time, it adds nothing for sure.
        """
        if not self.is_equal:
            return self.seconds(setting).step
        steps, pace = self.period.steps, setting.pace
        added = 0.0 if setting.is_late else (pace - 1) * float(steps.min())
        return max(float(steps.max()), (self.first(setting.when) + added) / pace)
