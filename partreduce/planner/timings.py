"""Seconds of a step of a schedule, for every delay and steps per round, costed once for each algorithm and codec."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.planner.delay import Delay
from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import Seconds, Sent, seconds_of
from partreduce.planner.travel import CostedTransport, cost_of, timed, traveling
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import GradientBuckets, Transport
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.event_graph import TimedPeriod


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
