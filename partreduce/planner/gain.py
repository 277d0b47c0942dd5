"""How much faster one option is predicted to train than another, within which error, and which of equals is simpler.

The ratio of two predicted times carries the errors of both predictions. They are taken as independent: over all pairs
of schedules that were measured on shuffled data, 9 of 10 measured ratios lay within 19 % (the lab's network) and 11 %
(the digits) of the predicted ones, where one error of 13 % or 7.5 % on either side gives 19 % and 11 %
(benchmarks/results/steps_to_loss.json, steps_to_loss_second.json). They are stated with a gain and decide nothing:
most of what a prediction errs in is common to all options (`least_time`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.steps_model import LOST_RATIO
from partreduce.planner.travel import worth
from partreduce.topo.arithmetic.pareto import dominates, non_dominated
from partreduce.topo.strategies.axes import Codec

NINE_OF_TEN = 1.645
"""Standard errors of a sampled time that 9 of 10 samples keep."""


TIE = 0.02
"""Options that take longer by at most this part are as good, and the simplest is taken."""
WORTH = 0.1
"""So much more of the least predicted time less regret in the worst case is worth."""
MATERIAL = 1e-6
"""What is less by a smaller part is equal."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The alternative's predicted time over the option's; 9 of 10 such ratios lie between `low` and `high`.

    `is_guess` says that the option lies outside of what was measured.
    """

    alternative: CandidateSchedule
    ratio: float
    low: float
    high: float
    is_guess: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether the option is faster beyond the error of the prediction."""
        return self.low > 1

    def to_json(self) -> dict[str, Any]:
        """Finite numbers; null where the option takes no time at all."""
        numbers = {"gain": self.ratio, "low": self.low, "high": self.high}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"alternative": self.alternative.name, **finite, "distinguishable": self.is_certain or self.high < 1}

    def __str__(self) -> str:
        """The ratio with its interval; the interval alone of a guess."""
        if self.is_guess:
            return f"{self.low:.2f} to {self.high:.2f} times"
        return f"{self.ratio:.2f} times ({self.low:.2f} to {self.high:.2f})"


def gain(option: CandidateSchedule, alternative: CandidateSchedule, data: Data) -> Gain:
    """How many times as fast an option trains as an alternative, both with a finite prediction."""
    if option is alternative:
        return Gain(alternative, 1.0, 1.0, 1.0)
    if not option.time > 0:
        return Gain(alternative, 1.0 if not alternative.time > 0 else math.inf, 1.0, math.inf)
    ratio = alternative.time / option.time
    errors = [math.log1p(one.steps_ratio_error(data)) for one in (option, alternative)]
    errors += [NINE_OF_TEN * one.step_error for one in (option, alternative)]
    spread = math.exp(math.hypot(*errors))
    return Gain(alternative, ratio, ratio / spread, ratio * spread, is_guess=option.extrapolated)


def beats(option: CandidateSchedule, other: CandidateSchedule) -> bool:
    """Whether an option is as good in every cost and better in one, by more than rounding."""
    ours, theirs = option.costs.all(), other.costs.all()
    return dominates(ours, theirs) and any(a < b * (1 - MATERIAL) for a, b in zip(ours, theirs, strict=True))


def best_plain(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule | None:
    """All-Reduce every k steps with the least decisive time, synchronous or late; None without one."""
    plain = [option for option in options if option.is_plain and math.isfinite(option.time)]
    return min(plain, key=lambda option: (decisive_time(option, job), option.communication), default=None)


def simplicity(option: CandidateSchedule) -> tuple[int, int, int, float]:
    """Less is simpler: what waits for its averages, All-Reduce every k steps, few distinct phases, a short period.

    Neighbors that keep a gap, and quorums, come last, since they have queues; those with smaller ones are simpler.
    """
    if held := option.facts:
        return (3, option.num_phases, option.period, held.memory_bytes)
    return (2 if option.late else 0 if option.is_plain else 1, option.num_phases, option.period, 0.0)


def unbeaten(options: Sequence[CandidateSchedule]) -> list[CandidateSchedule]:
    """The options that no other beats. O(k · front) for k options."""
    best = non_dominated(options, lambda option: option.costs.all())
    return [option for option in options if not any(beats(other, option) for other in best)]


def decisive_time(option: CandidateSchedule, job: PlanRequest) -> float:
    """What options are compared by: the predicted time, at a pessimistic price of what is known to be predicted worse.

    All are priced by one vector of prices, so what these are wrong about by as much for all decides nothing. Delay
    that nobody asked for is different: what it costs depends on the task, and what waits for its averages does not pay
    it; nor what comes from a run, whose seconds vary. Coded sums took longer in the lab than predicted, plain ones did
    not (`travel.WORTH`). And what a calibrated task was lost under has to win at `LOST_RATIO` times its steps: no time
    saved makes up for a loss never reached.
    """
    if job.fastest:
        return option.time
    is_doubtful = (option.late or option.facts) and not _is_asked_for(option, job)
    time = option.time_at_worst if is_doubtful else option.time
    if is_doubtful and option.facts:  # of a run, whose seconds vary
        time *= 1 + NINE_OF_TEN * option.step_error
    return time * (LOST_RATIO if option.may_fail else 1.0) / (1 - worth(option.schedule))


def counted(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[float]:
    """What each option counts among these: its decisive time, but of outer steps what they are predicted to take.

    That is lengthened by what they lose on the task that suits them least, to the best of what is sure. Their steps
    were measured on every task, and on the task that is dearest to them averages of others are dear, too: what they
    take there is compared with what others take there, not with what these take on the mean task. Nothing wins by less
    than it may lose.
    """
    times = [decisive_time(option, job) for option in options]
    outer = [index for index, option in enumerate(options) if option.facts and option.facts.by_task]
    sure = [option for option in options if not (option.late or option.facts or option.may_fail)]
    if job.fastest or not outer or not sure:
        return times
    best = np.min(times_by_case(sure, job), axis=0)  # (cases,)
    for index, taken in zip(outer, times_by_case([options[index] for index in outer], job), strict=True):
        option = options[index]
        worst = max(1.0, float((taken / best).max())) if (best > 0).all() else math.inf
        times[index] = min(times[index], option.time * worst / (1 - worth(option.schedule)))
    return times


def times_by_case(options: Sequence[CandidateSchedule], job: PlanRequest) -> npt.NDArray[np.float64]:
    """What each option takes in each case (options, cases)."""
    usual = job.steps_model
    cases = (usual,) if job.fastest else usual.cases
    return np.array(
        [
            [one.time_in(case, usual, delay=not (job.fastest or _is_asked_for(one, job))) for case in cases]
            for one in options
        ]
    )


def _is_asked_for(option: CandidateSchedule, job: PlanRequest) -> bool:
    if option.quorum:
        return bool(job.quorum)
    return bool(option.gap and job.gap) or (job.sync is not None and option.delay is job.sync)


def least_time(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule:
    """Of what takes at most `WORTH` longer than the least time, the option whose regret is least in the worst case.

    Of those within `TIE` of it that with the least time, and of those within `TIE` of that again the simplest.

    A case is what the job may pay: the prices of a calibrated task, or what a pilot leaves open. An option's regret
    there is its time over that of the best. Regret alone would let any option that some task makes look good drive the
    choice from one that is predicted to be far sooner: with one more kind to choose from the answer's time rose by up
    to 1.8 times. So it rises by no more than `WORTH`, whatever else is weighed.
    """
    options = contenders(options, job)
    worst = dict(zip(map(id, options), regrets(options, job), strict=True))
    time = dict(zip(map(id, options), counted(options, job), strict=True))
    soonest = min(time.values())
    sooner = [option for option in options if time[id(option)] <= soonest * (1 + WORTH)]
    least = min(worst[id(option)] for option in sooner)
    near = [option for option in sooner if worst[id(option)] <= least * (1 + TIE)]
    soonest = min(time[id(option)] for option in near)
    near = unbeaten([option for option in near if time[id(option)] <= soonest * (1 + TIE)])
    # Of equally simple ones the fastest; times that differ by rounding are equal.
    return min(near, key=lambda one: (simplicity(one), float(f"{time[id(one)]:.9e}"), one.name))


def contenders(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[CandidateSchedule]:
    """What may be recommended, unless the job asks for the fastest.

    What is late, and was not asked for, has to be fastest where delay costs most; what a calibrated task was lost
    under, at `LOST_RATIO` times its steps; what is coded, if that takes longer than predicted. What lets workers drift
    apart on data of their own needs a price of that (`PlanRequest.bears_drift`), and what averages less than anything
    that was measured a price of what lies beyond, where anything else is allowed.
    """
    if job.fastest:
        return list(options)
    options = [one for one in options if job.bears_drift(one.drift.value or 0.0)] or options
    options = [one for one in options if not is_unpriced(one)] or options
    for is_doubtful in (lambda one: one.may_fail, _is_coded, lambda one: one.late or one.facts):
        times = counted(options, job)
        sure = min((time for one, time in zip(options, times, strict=True) if not is_doubtful(one)), default=math.inf)
        options = [one for one, time in zip(options, times, strict=True) if not is_doubtful(one) or time <= sure]
    return list(options)


def is_unpriced(option: CandidateSchedule) -> bool:
    """Whether it averages less than anything that was measured; outer steps have the price of the nearest setting."""
    has_own_price = option.facts is not None and bool(option.facts.by_task)
    return option.extrapolated and option.model.is_unpriced_beyond and not has_own_price


def _is_coded(option: CandidateSchedule) -> bool:
    return option.transport.codec is not Codec.NONE


def regrets(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[float]:
    """Each option's time over the best one's, in the case where that is most. O(options · cases)."""
    times = times_by_case(options, job)
    best = times.min(axis=0)
    return [float(worst) for worst in np.where(best > 0, times / np.where(best > 0, best, 1.0), 1.0).max(axis=1)]
