"""Answer: how good the recommendation is known to be. Optimal, feasible, infeasible and unknown are four words.

The word is about the question that was asked, its objective within its limits, never about the problem that the search
solves in its place (the balanced objective, for one, is no figure that a bound is known for).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from partreduce.planner.job import Data, Job
from partreduce.planner.option import Option
from partreduce.planner.preference import MAX_STEPS_RATIO_WHEN_CHEAP
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.front import LOCKSTEP_CLASS, TOLERANCE, class_of
from partreduce.schedulers.synthesis.problem import ROUNDING, Front, Objective, Status
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.base import Averaging

LATE_CLASS = "late by one round"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`status` is optimal or feasible; `because` what proves the one, and why not more than the other is known.

    `ended` says why the search ended; `capped` whether seconds had a part in it, so that another run may differ.
    """

    status: Status
    because: str
    ended: str
    effort: float | None
    time_limit: float
    capped: bool

    def to_json(self) -> dict[str, Any]:
        """As the answer stands in `partreduce design --json`."""
        return {**asdict(self), "status": str(self.status)}


def answer_of(chosen: Option, job: Job, searched: Front, clock: Clock) -> Answer:
    """What is known about a recommendation."""
    proof = _optimal(chosen, job, searched)
    return Answer(
        status=Status.FEASIBLE if proof is None else Status.OPTIMAL,
        because=proof or _not_proved(job, searched),
        ended=clock.stopped_by(),
        effort=clock.effort,
        time_limit=clock.seconds,
        capped=clock.capped,
    )


def why_infeasible(job: Job, searched: Front) -> str | None:
    """The proof that no schedule keeps the limits, with the class that it covers; None without one."""
    is_proved = searched.status is Status.INFEASIBLE and job.codecs == (Codec.NONE,)
    return searched.reason if is_proved else None


def _optimal(chosen: Option, job: Job, searched: Front) -> str | None:
    """What proves that no schedule of a named class is better within the limits."""
    problem, budget, spread = job.problem(), job.limits.max_communication, float(chosen.consensus_distance)
    if job.objective is Objective.CONSENSUS_DISTANCE and spread <= ROUNDING:
        return "its consensus distance is 0, and none is below"
    # The bounds are for lockstep and one form; where any form will do, that is one which no phase is cheaper without.
    # They know of no codec, which makes every phase cheaper.
    if job.form not in {None, chosen.form} or chosen.late or job.codecs != (Codec.NONE,) or not searched.bounds:
        return None
    if chosen.facts:  # whose figures are sampled, for one
        return None
    classes = "; ".join(class_of(bound, problem) for bound in searched.bounds)
    if (
        job.objective is Objective.CONSENSUS_DISTANCE
        and budget is not None
        and all(spread <= bound.at(budget) + TOLERANCE for bound in searched.bounds)
    ):
        return f"age bound: nothing within the budget has less consensus distance, of the class: {classes}"
    most = problem.most_consensus_distance
    # Beyond that steps ratio the objective prefers what communicates more, so the cheapest is not what was asked for.
    if (
        job.objective is Objective.COMMUNICATION
        and most is not None
        and chosen.steps_ratio <= MAX_STEPS_RATIO_WHEN_CHEAP
    ):
        needed = min(bound.budget_for(most) for bound in searched.bounds)
        if job.data is Data.SHUFFLED and chosen.communication <= needed * (1 + TOLERANCE):
            return f"age bound: nothing with so little consensus distance communicates less, of the class: {classes}"
    return None


def _not_proved(job: Job, searched: Front) -> str:
    if job.objective not in (Objective.CONSENSUS_DISTANCE, Objective.COMMUNICATION):
        return f"no bound is known for the objective {job.objective}"
    if not searched.bounds:
        return searched.reason or "there was no time for a bound"
    return "the bound does not meet the recommendation"


def with_bound(option: Option) -> Option:
    """An option of a schedule that the search found at pace 1, or at unequal ones, with the bound of its own class.

    A bound is proved for any period, in lockstep, for what communicates at most as much as the schedule that was found.
    At pace k the schedule communicates a k-th of that and is one of pace 1 with empty phases, so the bound holds there,
    too. Late, every covariance is that of a lockstep schedule with the steps of one round more, and a round has at
    least one step: the bound rises by what one step of all workers adds off the mean, (n − 1)/n. Where the paces differ
    it is their mean times that; steps that are normalised group by group have no such law here. What a codec makes of
    the costs of phases is not in the bound, so a coded schedule has none.
    """
    if option.bound is None:
        return option
    strategy, n = option.schedule.strategy, option.schedule.num_workers
    if option.how.codec is not Codec.NONE or (option.late and strategy.averaging is not Averaging.MEAN):
        return replace(option, bound=None, bound_class="", status="feasible")
    fresh = 1.0 if isinstance(strategy.pace, int) else float(option.schedule.paces().mean())
    bound = option.bound + (fresh * (n - 1) / n if option.late else 0.0)
    reached = option.consensus_distance.value is not None and option.consensus_distance.value <= bound + TOLERANCE
    words = option.bound_class.replace(LOCKSTEP_CLASS, LATE_CLASS) if option.late else option.bound_class
    return replace(option, bound=bound, bound_class=words, status="optimal" if reached else "feasible")
