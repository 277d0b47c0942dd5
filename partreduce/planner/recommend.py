"""Choose the candidate that a job's objective prefers within its limits; of equally good ones the simplest.

The ratio of two predicted times has the errors of both predictions, which are taken as independent: on shuffled data 9
of 10 measured ratios of two schedules lay within 19 % and 11 % of the predicted ones on two networks, as independent
errors of 13 % and 7.5 % would give (benchmarks/results/steps_to_loss.json, steps_to_loss_second.json). Between simple
schedules the errors are ignored, because most of the model's error is common to both. Another kind must win by more
than its own error over the best simple schedule, and also if the assumption behind its advantage fails (`contenders`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.planner.job import Data, Delay, PlanRequest
from partreduce.planner.measuring import MAX_GRAPH_WORKERS, worth
from partreduce.planner.option import CandidateSchedule, preference
from partreduce.planner.steps_model import LOST_RATIO
from partreduce.schedulers.entry import hint
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.arithmetic.pareto import dominates, non_dominated
from partreduce.topo.describe import EVERYONE, IN_NODES, levels, spacing
from partreduce.topo.errors import InputError, PartreduceError, UndecidedError
from partreduce.topo.metrics import exact_consensus_distance
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.static import StaticGroups

NINE_OF_TEN = 1.645
"""Number of standard errors within which 9 of 10 sampled times lie."""
TIE = 0.02
"""Candidates whose times differ by less than this fraction are equally good, and the simplest is chosen."""
WORTH = 0.1
"""Largest relative increase of the predicted time that is accepted to reduce the worst-case regret."""
LEAST_ERROR = 0.13
"""Measured prediction error between two synchronous schedules priced by one model (see the module's text)."""
PROTOCOL_ERROR = 0.25
"""The same for simulated candidates. Under SGD and Adam Hop was 1.02 to 1.33 times as fast as averages of all workers
with unequal steps, where 1.26 and 1.41 were predicted (benchmarks/results/unequal_steps.md); other kinds and momentum
were not measured."""
MATERIAL = 1e-6
"""Relative differences below this are ignored."""
PUBLISHED = ("prague-figure-10", "ring")
"""Published schedules that users compare with: Prague's static schedule, and D-PSGD on a ring."""

Options = Sequence[CandidateSchedule]


def recommend(options: Options, job: PlanRequest) -> CandidateSchedule:
    """Return the candidate that the objective prefers within the job's limits, or the one that `job.take` names.

    By default this is the candidate with the least predicted time to the loss (`least_time`), where small differences
    are ties; under other objectives only differences by rounding are ties.

    Raises:
        UndecidedError: no candidate keeps the limits; the message names the nearest one.
        InputError: the candidate that the job names does not exist.
    """
    if (name := job.take) is not None:
        named = [option for option in options if option.name == name]
        if not named:
            raise InputError(
                f"--select {name!r}: no schedule of this name was "
                f"weighed{hint(name, {option.name for option in options})}; "
                "the table of the same command without --select lists them, and --effort thorough weighs more"
            )
        return min(named, key=lambda option: option.time)  # two algorithms may share a name
    allowed = allowed_options(options, job)
    if not allowed:
        raise UndecidedError(_nothing(options, job))
    if job.objective is Objective.BALANCED:
        return least_time(allowed, job)
    kept = unbeaten(allowed)
    least = min(preference(option.costs, job.objective) for option in kept)
    best = [option for option in kept if preference(option.costs, job.objective) == least]
    return min(best, key=lambda option: (simplicity(option), option.name))


def allowed_options(options: Options, job: PlanRequest) -> list[CandidateSchedule]:
    """Return the candidates that keep the job's limits and its restrictions on delay, gap and quorum."""
    if job.quorum:
        able = [option for option in options if option.quorum]
    else:
        able = [option for option in options if _waits_as(option, job) and (not job.gap or option.gap)]
    most = math.inf if job.max_queues is None else job.max_queues
    able = [option for option in able if not option.facts or option.facts.memory_bytes <= most]
    return [option for option in able if option.costs.keep(job.limits, partial(_exactly, option))]


def _waits_as(option: CandidateSchedule, job: PlanRequest) -> bool:
    """Return whether the job allows a candidate's delay or protocol."""
    if option.quorum:
        return job.quorum is None and job.sync is None
    if option.facts and not option.gap:
        return job.sync is None
    return option.delay in job.sync_types


def _exactly(option: CandidateSchedule) -> Fraction | None:
    try:
        return exact_consensus_distance(option.schedule)
    except PartreduceError:  # no rule, or a rule with too many local ranks
        return None


def least_time(options: Options, job: PlanRequest) -> CandidateSchedule:
    """Return the candidate with the least worst-case regret among those with nearly the least predicted time.

    The regret of a candidate is its largest ratio, over the cases of prices, to the best candidate's time (`regrets`).
    Considered are candidates within `WORTH` of the least time. Of those within `TIE` of the least regret the fastest
    counts, and of those within `TIE` of its time the simplest is returned. Regret alone could prefer a candidate that
    suits one task to one that is predicted to be 1.8 times as fast.
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
    # Among equally simple options the fastest; times that differ by rounding are equal.
    return min(near, key=lambda one: (simplicity(one), float(f"{time[id(one)]:.9e}"), one.name))


def contenders(options: Options, job: PlanRequest) -> list[CandidateSchedule]:
    """Return the candidates that may be recommended, after comparison with the simple baselines.

    Candidates without a trusted price of drift (`PlanRequest.bears_drift`), or outside the measured range without a
    price there, are dropped if others remain. Candidates that may fail, have a codec, or are late or simulated must be
    at least as fast in `decisive_time` as all without that property. A candidate that is no simple baseline (`family`)
    must beat the best of these by more than its `own_error`, or in every cost. Simulated candidates must also beat the
    best of the others by their error, outer steps on every task. `trials.SteadyCheck` later tests unequal steps and
    protocols with workers that are less slow than stated.
    """
    options = [one for one in options if job.bears_drift(one.drift.value or 0.0)] or options
    options = [one for one in options if not is_unpriced(one)] or options
    time = {id(one): decisive_time(one, job) for one in options}
    for is_doubtful in (
        lambda one: one.may_fail,
        lambda one: one.transport.codec is not Codec.NONE,
        lambda one: one.late or one.facts,
    ):
        sure = min((time[id(one)] for one in options if not is_doubtful(one)), default=math.inf)
        options = [one for one in options if not is_doubtful(one) or time[id(one)] <= sure]
    simple = {id(one): one for one in options if is_simple(one)}
    if (best := soonest(list(simple.values()), job)) is None:
        return list(options)
    as_good = [one for one in simple.values() if time[id(one)] <= time[id(best)] * (1 + WORTH)]

    def is_better(option: CandidateSchedule) -> bool:
        """Return whether a candidate beats a nearly fastest simple baseline in every cost, and so at any prices."""
        return not (option.late or option.facts) and any(beats(option, one) for one in as_good)

    options = [one for one in options if id(one) in simple or wins_surely(one, best, job) or is_better(one)]
    plain = min((one for one in options if one.facts is None), key=lambda one: time[id(one)], default=best)
    return [one for one in options if one.facts is None or wins_surely(one, plain, job)]


def wins_surely(option: CandidateSchedule, simpler: CandidateSchedule, job: PlanRequest) -> bool:
    """Return whether a candidate beats a simpler one by more than its own error; outer steps on each task, too."""
    if not simpler.time > option.time * math.exp(own_error(option, job)):
        return False
    ours, theirs = times_by_case([option, simpler], job)
    return not (is_outer(option) and bool((ours > theirs).any()))


def own_error(option: CandidateSchedule, job: PlanRequest) -> float:
    """Return log(1 + e), with e the relative error of a candidate's predicted time that others do not share.

    e is at least `LEAST_ERROR`, or `PROTOCOL_ERROR` if the candidate was simulated; late rounds add their excess error.
    Outer steps share no error with other candidates.
    """
    if is_outer(option):
        return _error(option, job.data)
    common = math.log1p(job.steps_model.error(job.data))
    own = math.sqrt(max(0.0, math.log1p(option.steps_ratio_error(job.data)) ** 2 - common**2))
    least = math.log1p(LEAST_ERROR if option.facts is None else PROTOCOL_ERROR)
    return math.hypot(max(own, least), NINE_OF_TEN * option.step_error)


@lru_cache(maxsize=1024)
def family(schedule: Schedule) -> str:
    """Return the simple baseline that a schedule is: "All-Reduce", "DiLoCo" or "node, then all"; empty if none."""
    strategy, has_one_number = schedule.strategy, isinstance(schedule.strategy.steps_per_round, int)
    if strategy.is_delayed or strategy.takes_turns or strategy.protocol or not has_one_number:
        return ""
    outer = strategy.payload.outer
    if isinstance(strategy, AllReduce):
        return "All-Reduce" if outer.is_plain else "DiLoCo"
    if not isinstance(strategy, StaticGroups) or outer.has_own_outer_params or not strategy.phases.are_plain():
        return ""
    found = {level.what: set(level.rounds) for level in levels(schedule)}
    everyone, inside, period = found.pop(EVERYONE, set()), found.pop(IN_NODES, set()), strategy.period
    if found or not everyone or not spacing(everyone, period) or not spacing(everyone | inside, period):
        return ""
    if not outer.is_plain:
        return "DiLoCo"
    return "node, then all" if inside else "All-Reduce"


def is_simple(option: CandidateSchedule) -> bool:
    """Return whether a candidate is a simple baseline without outer steps."""
    return family(option.schedule) not in {"", "DiLoCo"}


def is_unpriced(option: CandidateSchedule) -> bool:
    """Return whether a candidate is outside the measured range: rarer averages, or more fragments of the model."""
    return option.extrapolated and (is_outer(option) or option.model.a_beyond is None)


def is_outer(option: CandidateSchedule) -> bool:
    """Return whether a candidate takes outer steps, whose steps ratio was measured on each task."""
    return option.facts is not None and bool(option.facts.by_task)


def soonest(options: Options, job: PlanRequest) -> CandidateSchedule | None:
    """Return the candidate with the least `decisive_time`; None if no time is finite."""
    finite = [option for option in options if math.isfinite(option.time)]
    return min(finite, key=lambda option: (decisive_time(option, job), option.communication), default=None)


def best_plain(options: Options, job: PlanRequest) -> CandidateSchedule | None:
    """Return the All-Reduce every k steps with the least decisive time, synchronous or late; None if there is none."""
    return soonest([option for option in options if option.is_plain], job)


def simplest(options: Options, job: PlanRequest) -> CandidateSchedule | None:
    """Return the simple baseline (`family`) with the least decisive time; None if there is none."""
    return soonest([option for option in options if is_simple(option)], job)


def decisive_time(option: CandidateSchedule, job: PlanRequest) -> float:
    """Return the predicted time by which candidates are compared, with pessimistic prices where errors are known.

    Delay that the job did not ask for has its highest price, and seconds of a run their largest likely value; outer
    steps were measured on every task, so `contenders` compares them task by task. Coded sums take longer than predicted
    (`measuring.WORTH`). Where a calibrated task failed with these metrics, steps count `LOST_RATIO` times.
    """
    is_doubtful = (option.late or option.facts) and not (is_outer(option) or _is_asked_for(option, job))
    time = option.time_at_worst if is_doubtful else option.time
    if is_doubtful and option.facts:  # the seconds of a run vary
        time *= 1 + NINE_OF_TEN * option.step_error
    return time * (LOST_RATIO if option.may_fail else 1.0) / (1 - worth(option.schedule))


def _is_asked_for(option: CandidateSchedule, job: PlanRequest) -> bool:
    if option.quorum:
        return bool(job.quorum)
    return bool(option.gap and job.gap) or (job.sync is not None and option.delay is job.sync)


def times_by_case(options: Options, job: PlanRequest) -> npt.NDArray[np.float64]:
    """Return the predicted time of each candidate in each of `StepsModel.cases`, shape (candidates, cases)."""
    usual, rows = job.steps_model, []
    for one in options:
        delay = not _is_asked_for(one, job)
        rows.append([one.time_in(case, usual, delay=delay) for case in usual.cases])
    return np.array(rows)


def regrets(options: Options, job: PlanRequest) -> list[float]:
    """Return each candidate's largest ratio, over all cases of prices, of its time to the best candidate's."""
    times = times_by_case(options, job)
    best = times.min(axis=0)
    return [float(worst) for worst in np.where(best > 0, times / np.where(best > 0, best, 1.0), 1.0).max(axis=1)]


def simplicity(option: CandidateSchedule) -> tuple[int, int, int, float]:
    """Return a sort key, smaller for simpler candidates.

    Simpler are synchronous ones, All-Reduce every k steps, few distinct phases, and a short period. Kinds with `facts`
    are last; those with less memory are simpler.
    """
    if facts := option.facts:
        return (3, option.num_phases, option.period, facts.memory_bytes)
    return (2 if option.late else 0 if option.is_plain else 1, option.num_phases, option.period, 0.0)


def beats(option: CandidateSchedule, other: CandidateSchedule) -> bool:
    """Return whether a candidate is no worse in every cost and better in one, by more than rounding."""
    ours, theirs = option.costs.all(), other.costs.all()
    return dominates(ours, theirs) and any(a < b * (1 - MATERIAL) for a, b in zip(ours, theirs, strict=True))


def unbeaten(options: Options) -> list[CandidateSchedule]:
    """Return the candidates that no other `beats` in all costs. O(k · front) for k candidates."""
    best = non_dominated(options, lambda option: option.costs.all())
    return [option for option in options if not any(beats(other, option) for other in best)]


def front(options: Options) -> list[CandidateSchedule]:
    """Return the Pareto front in all costs of the candidates that reach consensus, cheapest first.

    Of candidates with equal costs the one with the shortest period is kept. O(k²) for k candidates.
    """
    usable = [option for option in options if math.isfinite(option.steps_ratio)]
    return non_dominated(usable, lambda option: option.costs.all(), lambda option: (option.period, option.name))


def baselines(options: Options) -> list[CandidateSchedule]:
    """Return the schedules that a user would run without a planner, by rising communication, dominated or not.

    These are All-Reduce in every step as torch runs it (ring, no codec) and in its best setting; every k steps in its
    best setting, synchronous and late; as a pipeline of gradients; and `PUBLISHED` schedules.
    """
    plain = [option for option in options if option.is_plain and math.isfinite(option.time)]
    kinds = [
        [o for o in plain if o.is_usual],
        [o for o in plain if o.steps_per_round == 1],
        *([o for o in plain if o.delay is delay] for delay in Delay),
        *([o for o in options if o.name == name] for name in PUBLISHED),
    ]
    best = [min(kind, key=lambda option: (option.time, option.communication)) for kind in kinds if kind]
    return sorted({id(option): option for option in best}.values(), key=lambda option: option.communication)


@dataclass(frozen=True, slots=True)
class Gain:
    """The predicted speedup of a candidate over an alternative: `ratio`, and the interval `low` … `high`.

    9 of 10 true speedups lie in the interval. `is_guess` is true if the candidate lies outside the measured range.
    """

    alternative: CandidateSchedule
    ratio: float
    low: float
    high: float
    is_guess: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-able data; null where a candidate takes no time."""
        numbers = {"gain": self.ratio, "low": self.low, "high": self.high}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"alternative": self.alternative.name, **finite, "distinguishable": self.low > 1 or self.high < 1}

    def __str__(self) -> str:
        """Format the ratio with its interval; for a guess the interval only."""
        if self.is_guess:
            return f"{self.low:.2f} to {self.high:.2f} times"
        return f"{self.ratio:.2f} times ({self.low:.2f} to {self.high:.2f})"


def gain(option: CandidateSchedule, alternative: CandidateSchedule, data: Data) -> Gain:
    """Return the predicted speedup of a candidate over an alternative; both need a finite prediction."""
    if option is alternative:
        return Gain(alternative, 1.0, 1.0, 1.0)
    if not option.time > 0:
        return Gain(alternative, 1.0 if not alternative.time > 0 else math.inf, 1.0, math.inf)
    ratio = alternative.time / option.time
    spread = math.exp(math.hypot(_error(option, data), _error(alternative, data)))
    return Gain(alternative, ratio, ratio / spread, ratio * spread, is_guess=option.extrapolated)


def _error(option: CandidateSchedule, data: Data) -> float:
    """Return log(1 + e), with e the relative error of a candidate's predicted time."""
    return math.hypot(math.log1p(option.steps_ratio_error(data)), NINE_OF_TEN * option.step_error)


def gain_of(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> Gain | None:
    """Return the speedup over the best All-Reduce every k steps, within the limits if one is; None without any."""
    plain = best_plain(allowed_options(options, job), job) or best_plain(options, job)
    return None if plain is None or not math.isfinite(chosen.time) else gain(chosen, plain, job.data)


def _nothing(options: Options, job: PlanRequest) -> str:
    """Return in words why no candidate keeps the limits, and which limit to raise."""
    if job.quorum or job.gap:
        options = [option for option in options if (option.quorum if job.quorum else option.gap)]
        least = min((option.facts.memory_bytes for option in options if option.facts), default=None)
        if not job.quorum and job.cluster.num_workers > MAX_GRAPH_WORKERS:
            return f"gaps are weighed for at most {MAX_GRAPH_WORKERS} workers, not {job.cluster.num_workers}"
        if least is None:
            return (
                "no quorum is within the limits; raise --max group, or leave out --sync partial"
                if job.quorum
                else "no graph on which a gap could be kept was found within the limits; leave out --sync iteration_gap"
            )
        if job.max_queues is not None and least > job.max_queues:
            return f"max-queues {job.max_queues:.0f} bytes: the least that was found are {least:.0f}; raise it"
    else:
        options = [option for option in options if _waits_as(option, job)]
    usable = [option for option in options if math.isfinite(option.steps_ratio)]
    if not usable and job.sync is Delay.PIPELINE:
        return (
            f"a pipeline sums the gradients of all {job.cluster.num_workers} workers in every step, and none was found "
            "within the limits; leave out --max group, or --sync pipeline"
        )
    if not usable:
        given = {"group": job.limits.max_group, "phases": job.limits.max_distinct_phases}
        ways = ["--max period", *(f"--max {name}" for name, limit in given.items() if limit is not None)]
        return f"no schedule that reaches consensus was found; raise {' or '.join(ways)}"
    cheapest, budget = min(usable, key=lambda option: option.communication), job.limits.max_communication
    if budget is not None and cheapest.communication > budget:
        expected = f"expected at least {ms(cheapest.communication)} per step, got {ms(budget)}"
        return f"--max communication: {expected}; raise it or --max period"
    calmest = min(usable, key=lambda option: float(option.consensus_distance))
    return (
        f"max-consensus-distance {job.limits.max_consensus_distance}: the least found is "
        f"{float(calmest.consensus_distance):.4g} at {ms(calmest.communication)} per step ({calmest.name}); "
        "raise a limit"
    )


def ms(seconds: float) -> str:
    """Format seconds for the planner's sentences."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"
