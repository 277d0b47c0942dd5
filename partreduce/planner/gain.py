"""How much faster one option is predicted to train than another, within which error, and which of equals is simpler.

The ratio of two predicted times carries the errors of both predictions. They are taken as independent: over all pairs
of schedules that were measured on shuffled data, 9 of 10 measured ratios lay within 19 % (the lab's network) and 11 %
(the digits) of the predicted ones, where one error of 13 % or 7.5 % on either side gives 19 % and 11 %
(benchmarks/results/steps_to_loss.json, steps_to_loss_second.json). Between simple schedules they decide nothing: most
of what the model errs in is common to both. Another kind has to win by more than its own error over the best simple
one, and where the assumption that makes it win fails (`contenders`).
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
from partreduce.topo.describe import EVERYONE, IN_NODES, levels, spacing
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.static import StaticGroups

NINE_OF_TEN = 1.645
"""Standard errors of a sampled time that 9 of 10 samples keep."""


TIE = 0.02
"""Options that take longer by at most this part are as good, and the simplest is taken."""
WORTH = 0.1
"""So much more of the least predicted time less regret in the worst case is worth."""
LEAST_ERROR = 0.13
"""What a prediction errs in by itself where one model prices two synchronous schedules, as measured (above)."""
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
    spread = math.exp(math.hypot(_error(option, data), _error(alternative, data)))
    return Gain(alternative, ratio, ratio / spread, ratio * spread, is_guess=option.extrapolated)


def _error(option: CandidateSchedule, data: Data) -> float:
    """The logarithm of what a predicted time may be off by."""
    return math.hypot(math.log1p(option.steps_ratio_error(data)), NINE_OF_TEN * option.step_error)


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
    it; nor what comes from a run, whose seconds vary. Outer steps were measured on every task, so `contenders` compares
    them task by task. Coded sums took longer in the lab than predicted, plain ones did not (`travel.WORTH`). And what a
    calibrated task was lost under has to win at `LOST_RATIO` times its steps: no time saved makes up for a loss never
    reached.
    """
    if job.fastest:
        return option.time
    is_doubtful = (option.late or option.facts) and not (is_outer(option) or _is_asked_for(option, job))
    time = option.time_at_worst if is_doubtful else option.time
    if is_doubtful and option.facts:  # of a run, whose seconds vary
        time *= 1 + NINE_OF_TEN * option.step_error
    return time * (LOST_RATIO if option.may_fail else 1.0) / (1 - worth(option.schedule))


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
    time = {id(option): decisive_time(option, job) for option in options}
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

    What lets workers drift apart on data of their own needs a price of that (`PlanRequest.bears_drift`), and what lies
    beyond anything that was measured a price of that, where anything else is allowed. What is no simple baseline
    (`family`) has to beat the best of these by more than its `own_error`, or in every cost. And what wins by an
    assumption has to win where that fails: what a calibrated task was lost under, at `LOST_RATIO` times its steps; what
    is coded, if that takes longer than predicted; what is late or runs by a protocol, and was not asked for, where
    delay costs most; outer steps on every task; unequal steps and protocols, if workers are less slow than said
    (`trials.SteadyCheck`).
    """
    if job.fastest:
        return list(options)
    options = [one for one in options if job.bears_drift(one.drift.value or 0.0)] or options
    options = [one for one in options if not is_unpriced(one)] or options
    for is_doubtful in (lambda one: one.may_fail, _is_coded, lambda one: one.late or one.facts):
        sure = min((decisive_time(one, job) for one in options if not is_doubtful(one)), default=math.inf)
        options = [one for one in options if not is_doubtful(one) or decisive_time(one, job) <= sure]
    if (simple := simplest(options, job)) is None:
        return list(options)
    most = decisive_time(simple, job) * (1 + WORTH)
    as_good = [one for one in options if is_simple(one) and decisive_time(one, job) <= most]

    def is_better(option: CandidateSchedule) -> bool:
        """Whether it beats a simple one that may be chosen in every cost, and so at any price."""
        return not (option.late or option.facts) and any(beats(option, one) for one in as_good)

    return [one for one in options if is_simple(one) or wins_surely(one, simple, job) or is_better(one)]


def simplest(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule | None:
    """The simple schedule with the least decisive time; None without one."""
    simple = [one for one in options if is_simple(one) and math.isfinite(one.time)]
    return min(simple, key=lambda one: (decisive_time(one, job), one.communication), default=None)


def is_simple(option: CandidateSchedule) -> bool:
    """Whether it is a simple baseline without outer steps, which have prices of their own."""
    return family(option.schedule) not in {"", "DiLoCo"}


def wins_surely(option: CandidateSchedule, simple: CandidateSchedule, job: PlanRequest) -> bool:
    """Whether an option is faster than a simple one by more than its own error; an outer step on each task, too."""
    ours, theirs = times_by_case([option, simple], job)
    is_faster = simple.time > option.time * math.exp(own_error(option, job))
    return is_faster and not (is_outer(option) and bool((ours > theirs).any()))


def own_error(option: CandidateSchedule, job: PlanRequest) -> float:
    """The logarithm of what an option's time may be off by, beyond what the steps model errs in for all alike.

    That is `LEAST_ERROR` where one model prices both synchronous ones, and what late rounds were predicted worse by.
    Outer steps have nothing in common with the model.
    """
    if is_outer(option):
        return _error(option, job.data)
    common = math.log1p(job.steps_model.error(job.data))
    own = math.sqrt(max(0.0, math.log1p(option.steps_ratio_error(job.data)) ** 2 - common**2))
    return math.hypot(max(own, math.log1p(LEAST_ERROR)), NINE_OF_TEN * option.step_error)


def family(schedule: Schedule) -> str:
    """Which of the simple baselines a schedule is; empty if it is none."""
    strategy = schedule.strategy
    if (
        strategy.is_delayed
        or strategy.takes_turns
        or strategy.protocol
        or not isinstance(strategy.steps_per_round, int)
    ):
        return ""
    outer = strategy.payload.outer
    if isinstance(strategy, AllReduce):
        return "All-Reduce" if outer.is_plain else "DiLoCo"
    if not isinstance(strategy, StaticGroups) or outer.has_own_outer_params or not strategy.phases.are_plain():
        return ""
    found = {level.what: set(level.rounds) for level in levels(schedule)}
    everyone, period = found.pop(EVERYONE, set()), strategy.period
    inside = found.pop(IN_NODES, set())
    if found or not everyone or not spacing(everyone, period) or not spacing(everyone | inside, period):
        return ""
    if not outer.is_plain:
        return "DiLoCo"
    return "node, then all" if inside else "All-Reduce"


def is_unpriced(option: CandidateSchedule) -> bool:
    """Whether it lies beyond anything that was measured: it averages less, or cuts the model into more fragments."""
    return option.extrapolated and (is_outer(option) or option.model.is_unpriced_beyond)


def is_outer(option: CandidateSchedule) -> bool:
    """Whether it takes outer steps, which have a measured price on each task."""
    return option.facts is not None and bool(option.facts.by_task)


def _is_coded(option: CandidateSchedule) -> bool:
    return option.transport.codec is not Codec.NONE


def regrets(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[float]:
    """Each option's time over the best one's, in the case where that is most. O(options · cases)."""
    times = times_by_case(options, job)
    best = times.min(axis=0)
    return [float(worst) for worst in np.where(best > 0, times / np.where(best > 0, best, 1.0), 1.0).max(axis=1)]
