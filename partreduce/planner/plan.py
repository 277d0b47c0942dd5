"""Ties the planner together: competitors, search, front, recommendation, proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from partreduce.planner.answer import Answer, answer_of, why_infeasible
from partreduce.planner.candidates import weighed_kinds
from partreduce.planner.failure_plans import survival
from partreduce.planner.front import baselines, front
from partreduce.planner.gain import Gain
from partreduce.planner.job import EFFORTS, PlanRequest
from partreduce.planner.measuring import as_ran
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.options import weigh
from partreduce.planner.recommend import gain_of, recommend
from partreduce.planner.trials import STEADY_SHARE, SteadyCheck
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Front
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.describe import describe
from partreduce.topo.document.pilot import dump_pilot
from partreduce.topo.errors import InfeasibleError, UndecidedError
from partreduce.topo.metrics.base import Kind
from partreduce.topo.pilot import Pilot
from partreduce.verify.base import GUARANTEED, NOT_GUARANTEED, Proof
from partreduce.verify.prove import prove

PROOF_SHARE, PROOF_SECONDS = 0.08, 2.0
"""Of the time, kept for proving the recommendation, and so many seconds at the most. A proof is never cut short."""

LOADED = ("ortools.sat.python.cp_model", "scipy.sparse.linalg")
"""Libraries that are otherwise imported when they are first needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: the recommendation with its proof, the front, the baselines, and all competitors that were measured.

    `gain` is the recommendation's over the best plain alternative, All-Reduce every k steps by its best algorithm, late
    or not. `reasons` and `cautions` are those of this planning; `report.reasons.explained` adds those of schedules.
    `left_out` names by kind what the time did not reach.
    `answer` says how good the recommendation is known to be, and why the search ended. `search_status` is the
    synthesizer's word about its own problem, which minimizes a metric where the objective is none. `over_quick` says
    what a thorough answer gained over the quick one.
    """

    recommendation: CandidateSchedule
    proof: Proof
    reasons: list[str]
    cautions: list[str]
    front: list[CandidateSchedule]
    baselines: list[CandidateSchedule]
    options: list[CandidateSchedule]
    gain: Gain | None
    answer: Answer
    search_status: str
    pilot: Pilot | None = None
    over_quick: str = ""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def consensus(self) -> str:
        """Whether the proof guarantees consensus of the recommendation; else what it rests on."""
        if self.proof.guarantees_consensus:
            return GUARANTEED
        sampled = self.recommendation.consensus_distance.kind is Kind.ESTIMATE
        return f"{NOT_GUARANTEED}, steady in simulation" if sampled else f"{NOT_GUARANTEED}, steady by its metrics"

    def to_json(self) -> dict[str, Any]:
        """As `partreduce design --json` prints it; the same for the same job unless time ran out (`answer.capped`)."""
        return {
            "answer": self.answer.to_json(),
            "recommendation": {
                **self.recommendation.to_json(),
                "verdict": self.proof.verdict,
                "consensus": self.consensus,
            },
            "gain": None if self.gain is None else self.gain.to_json(),
            "reasons": self.reasons,
            "cautions": self.cautions,
            "front": [option.to_json() for option in self.front],
            "baselines": [option.to_json() for option in self.baselines],
            "search": {"status": self.search_status},
            **({} if self.pilot is None else {"pilot": _prices(self.pilot)}),
        }


@check_arguments
def plan(job: PlanRequest, *, progress: Callable[[str], None] | None = None) -> Plan:
    """Measure the catalogue, search for better schedules if asked to, keep the front, recommend one and prove it.

    The job's effort and time limit are kept: the clock starts when everything is imported, nothing begins that is not
    likely to end in time, and only the proof of the recommendation is never cut short.

    Raises:
        InputError: the job cannot be.
        InfeasibleError: it is proved that no schedule of a named class keeps the limits, and no other was found.
        UndecidedError: nothing within the limits was found in the time.
    """
    say = progress or (lambda _: None)
    gained = _over_quick(job, say)
    if job.searches:
        load_searchers()
    clock = job.clock()
    until = clock.limit - min(PROOF_SHARE * clock.limit, PROOF_SECONDS)
    longer = STEADY_SHARE * clock.limit if set(weighed_kinds(job)) - {"outer"} else 0.0
    # An effort is for what is weighed, and longer runs come on top of it; seconds are for both.
    weighed = weigh(job, clock, until if clock.effort else until - longer, say)
    searched, steady = weighed.searched, SteadyCheck(job, clock, clock.limit + longer if clock.effort else until)
    say("running for longer what has to be steady")
    options = steady.settled(as_ran(weighed.options, job))
    chosen, lost = _recommend(options, job, searched, clock, steady), list[str]()
    while why := steady.lost(chosen, options):
        lost.append(why)
        options = [option for option in options if option is not chosen]
        chosen = _recommend(options, job, searched, clock, steady)
    goes = survival(chosen.schedule, job, say=say) if job.tolerate_failures else None
    going = chosen if goes is None else replace(chosen, schedule=goes.schedule)
    shown = [going if option is chosen else option for option in options]
    say(f"proving {going.name}")
    proof = prove(going.schedule)
    best = front(shown)
    answer, over_quick = answer_of(chosen, job, clock), gained(chosen)
    return Plan(
        recommendation=going,
        proof=proof,
        reasons=[*([] if goes is None else [goes.words]), *([over_quick] if over_quick else [])],
        cautions=[
            *steady.words(),
            *([f"left out, because it wins only if workers are as slow as said: {', '.join(lost)}"] if lost else []),
        ],
        front=best if any(option is going for option in best) else sorted([*best, going], key=_by_communication),
        baselines=baselines(shown),
        options=shown,
        gain=gain_of(chosen, options, job),
        answer=answer,
        search_status=str(searched.status),
        pilot=job.pilot,
        over_quick=over_quick,
        left_out=weighed.left_out,
    )


def _over_quick(job: PlanRequest, say: Callable[[str], None]) -> Callable[[CandidateSchedule], str]:
    """What says how much a thorough answer gained over the quick one; nothing of other answers."""
    is_thorough = job.searches and job.effort is not None and job.effort >= EFFORTS["thorough"]
    if not is_thorough or job.take is not None or job.time_limit is not None or job.gap or job.quorum:
        return lambda _: ""
    say("finding the quick answer")
    try:
        quick = plan(replace(job, effort=EFFORTS["quick"])).recommendation
    except (InfeasibleError, UndecidedError):
        return lambda _: "the quick answer found nothing within the limits"

    def gained(chosen: CandidateSchedule) -> str:
        if quick.name == chosen.name or chosen.time <= 0:
            return "the quick answer is the same: searching found nothing better"
        ratio = quick.time / chosen.time
        return f"the quick answer is predicted to take {ratio:.3g} times as long: {describe(quick.schedule)}"

    return gained


def load_searchers() -> None:
    """Import what planning needs, which takes a second or two once, so that no time limit pays for it."""
    for name in LOADED:
        # What needs a missing library says so itself.
        with suppress(ImportError):
            import_module(name)


def _recommend(
    options: list[CandidateSchedule], job: PlanRequest, searched: Front, clock: Clock, steady: SteadyCheck
) -> CandidateSchedule:
    """The recommendation; where there is none, the error says whether that is proved."""
    try:
        return recommend(options, job)
    except UndecidedError as error:
        if impossible := why_infeasible(job, searched):
            raise InfeasibleError(f"{impossible} (proved; {error})") from None
        ended = f"(not proved impossible: the search ended because {clock.stopped_by()})"
        raise UndecidedError("; ".join([str(error), *steady.words()]) + f" {ended}") from None


def _prices(pilot: Pilot) -> dict[str, Any]:
    """The prices behind the predictions, as the pilot's own file has them."""
    document = dump_pilot(pilot)
    return {key: document[key] for key in ("num_workers", "data", "steps", "prices")}


def _by_communication(option: CandidateSchedule) -> float:
    return option.communication
