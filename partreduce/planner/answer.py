"""State how good the recommendation is known to be: optimal, feasible, infeasible or unknown.

The status refers to the question that was asked, its objective within its limits, and not to the problem that the
search solves in its place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import ROUNDING, Front, Objective, Status
from partreduce.topo.strategies.axes import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The status of the recommendation, optimal or feasible, and `because`: the proof, or why optimality is unknown.

    `ended` says why the search ended; `capped` is true if a time limit had an effect, so that another run may differ.
    """

    status: Status
    because: str
    ended: str
    effort: float | None
    time_limit: float
    capped: bool

    def to_json(self) -> dict[str, Any]:
        """Return the answer as `partreduce design --json` prints it."""
        return {**asdict(self), "status": str(self.status)}


def answer_of(chosen: CandidateSchedule, job: PlanRequest, clock: Clock) -> Answer:
    """Return the known quality of a recommendation."""
    proof = _optimal(chosen, job)
    return Answer(
        status=Status.FEASIBLE if proof is None else Status.OPTIMAL,
        because=proof or f"no bound is known for the objective {job.objective}",
        ended=clock.stopped_by(),
        effort=clock.effort,
        time_limit=clock.seconds,
        capped=clock.capped,
    )


def why_infeasible(job: PlanRequest, searched: Front) -> str | None:
    """Return the proof that no schedule keeps the limits, or None."""
    is_proved = searched.status is Status.INFEASIBLE and job.codecs == (Codec.NONE,)
    return searched.reason if is_proved else None


def _optimal(chosen: CandidateSchedule, job: PlanRequest) -> str | None:
    """Return the proof that no schedule within the limits is better, or None."""
    if job.objective is Objective.CONSENSUS_DISTANCE and float(chosen.consensus_distance) <= ROUNDING:
        return "its consensus distance is 0, and none is below"
    return None
