"""Ties the planner together: competitors, search, front, recommendation, proof."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from partreduce.planner.answer import Answer, answer_of, why_infeasible
from partreduce.planner.competitors import competitors
from partreduce.planner.contingencies import goes_on, survival
from partreduce.planner.front import baselines, front
from partreduce.planner.gain import Gain
from partreduce.planner.job import Job
from partreduce.planner.left_out import not_reached, not_weighed, not_weighed_on_request, not_weighed_outer_steps
from partreduce.planner.measuring import as_ran
from partreduce.planner.option import Option
from partreduce.planner.payoff import late_and_small
from partreduce.planner.recommend import cautions, gain_of, reasons, recommend
from partreduce.planner.searched import options_of
from partreduce.planner.shorter import shortened
from partreduce.planner.travel import timed
from partreduce.planner.trials import kinds
from partreduce.planner.trials.kinds import Weighed
from partreduce.planner.work import SETTINGS, payer, work_of
from partreduce.schedulers.synthesis.alphabet_search import SearchStage
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.schedulers.synthesis.problem import Candidate, Front, Status
from partreduce.topo.errors import InfeasibleError, UnknownError
from partreduce.topo.pilot import Pilot
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import LOCKSTEP, Form
from partreduce.verify.base import Proof

CATALOGUE_SHARE = 0.25
"""Of the time, after which the catalogue's graphs are no longer measured, so that the search gets its part."""

RULES_SHARE = 0.5
"""Of the time, after which its rules are no longer measured either."""

MEASURE_SHARE = 0.2
"""Of the time, kept at the most for measuring what the search found."""

PROOF_SHARE, PROOF_SECONDS = 0.08, 2.0
"""Of the time, kept for proving the recommendation, and so many seconds at the most. A proof is never cut short."""

LOADED = (
    "ortools.sat.python.cp_model",
    "scipy.sparse.linalg",
    "partreduce.schedulers.synthesis.front",
    "partreduce.topo.document.schedule",
    "partreduce.topo.figures.correction",
    "partreduce.verify.prove",
)
"""Modules that are otherwise imported when they are first needed."""


NOT_SEARCHED = Front(
    candidates=(),
    best=None,
    status=Status.UNKNOWN,
    seconds=0.0,
    seed=0,
    reason="graphs, gaps and quorums are not searched for",
)
"""What the search says where only one kind that is run in virtual time is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: the recommendation with its proof, the front, the baselines, and all competitors that were measured.

    `gain` is the recommendation's over the best plain alternative, All-Reduce every k steps in its best form, late or
    not. `answer` says how good the recommendation is known to be, and why the search ended. `search_status` is the
    synthesiser's word about its own problem, which minimises a figure where the objective is none, `search_proof` what
    its bound covers.
    """

    recommendation: Option
    proof: Proof
    reasons: list[str]
    cautions: list[str]
    front: list[Option]
    baselines: list[Option]
    options: list[Option]
    gain: Gain | None
    answer: Answer
    search_status: str
    search_proof: str
    pilot: Pilot | None = None

    def to_json(self) -> dict[str, Any]:
        """As `partreduce design --json` prints it; the same for the same job unless time ran out (`answer.capped`)."""
        return {
            "answer": self.answer.to_json(),
            "recommendation": {**self.recommendation.to_json(), "verdict": self.proof.verdict},
            "gain": None if self.gain is None else self.gain.to_json(),
            "reasons": self.reasons,
            "cautions": self.cautions,
            "front": [option.to_json() for option in self.front],
            "baselines": [option.to_json() for option in self.baselines],
            "search": {"status": self.search_status, "proof": self.search_proof},
            **({} if self.pilot is None else {"pilot": _prices(self.pilot)}),
        }


def plan(job: Job, *, progress: Callable[[str], None] | None = None) -> Plan:
    """Measure the catalogue, search for better schedules, keep the front, recommend one and prove it.

    The job's effort and time limit are kept: the clock starts when everything is imported, nothing begins that is not
    likely to end in time, and only the proof of the recommendation is never cut short.

    Raises:
        InputError: the job cannot be.
        InfeasibleError: it is proved that no schedule of a named class keeps the limits, and no other was found.
        UnknownError: nothing within the limits was found in the time.
    """
    from partreduce.verify.prove import prove

    if job.survive and job.form is None:
        job = replace(job, form=Form.RING)  # sums in stages do not go on after a loss yet
    load_searchers()
    say = progress or (lambda _: None)
    clock = job.clock()
    say("measuring the catalogue")
    weighed, is_one_kind = Weighed(job), bool(job.gap or job.quorum)
    left_out: list[str] = []
    options = competitors(
        job,
        until=CATALOGUE_SHARE * clock.limit,
        stop=RULES_SHARE * clock.limit,
        clock=clock,
        left_out=left_out.append,
        names=("allreduce",) if is_one_kind else None,
    )
    kept = _for_proof(clock) + weighed.share * clock.limit
    searched = NOT_SEARCHED if is_one_kind else _search(job, clock, options, kept, say)
    unmeasured = _measure(searched, job, clock, options, kept)
    options += weighed.options(clock, clock.limit - _for_proof(clock), () if is_one_kind else options, say)
    if job.survive:
        options = [option for option in options if goes_on(option.schedule)]
    if job.tables:
        options = [option for option in options if not option.schedule.strategy.refuses_tables()]
    predicted, options = options, as_ran(options, job)
    chosen = _recommend(options, job, searched, clock)
    if job.take is None:
        options, chosen = shortened(
            chosen, predicted, options, job, lambda one: _fits(one, job, clock, left=_for_proof(clock))
        )
    goes = survival(chosen.schedule, job, say=say) if job.survive else None
    going = chosen if goes is None else replace(chosen, schedule=goes.schedule)
    shown = [going if option is chosen else option for option in options]
    say(f"proving {going.name}")
    proof = prove(going.schedule)
    best = front(shown)
    answer = answer_of(chosen, job, searched, clock)
    return Plan(
        recommendation=going,
        proof=proof,
        reasons=[
            *reasons(chosen, options, job),
            *kinds.reasons(chosen, options, job),
            *late_and_small(chosen, options, job),
            *([] if goes is None else [goes.words]),
        ],
        cautions=[
            *cautions(chosen, job, answer.ended),
            *kinds.cautions(chosen, job),
            *not_reached({"the catalogue": left_out, **weighed.left_out}, unmeasured),
            *not_weighed(job),
            *not_weighed_on_request(job),
            *not_weighed_outer_steps(job),
        ],
        front=best if any(option is going for option in best) else sorted([*best, going], key=_by_communication),
        baselines=baselines(shown),
        options=shown,
        gain=gain_of(chosen, options, job),
        answer=answer,
        search_status=str(searched.status),
        search_proof=searched.proof,
        pilot=job.pilot,
    )


def load_searchers() -> None:
    """Import what planning needs, which takes a second or two once, so that no time limit pays for it."""
    for name in LOADED:
        # What is missing is said by whoever needs it.
        with suppress(ImportError):
            import_module(name)


def _search(job: Job, clock: Clock, options: list[Option], left: float, say: Callable[[str], None]) -> Front:
    """Search for as long as what it finds can still be measured, a figure in as long as the catalogue's were.

    What is `left` of the time belongs to later stages.
    """
    from partreduce.schedulers.synthesis.front import MAX_REPORTED, search

    each = SETTINGS * clock.position() / max(1, len(options))
    kept = min(MEASURE_SHARE * clock.limit, 1.3 * MAX_REPORTED * each) + left
    # The search is in lockstep; of late ones it takes the phases.
    spoken = (timed(option.schedule, LOCKSTEP, option.pace) for option in front(options))
    hints = tuple({hint.strategy: hint for hint in spoken}.values())
    return search(job.problem(hints), clock, clock.limit - kept, seed=job.seed, progress=lambda news: say(_line(news)))


def _for_proof(clock: Clock) -> float:
    return min(PROOF_SHARE * clock.limit, PROOF_SECONDS)


def _measure(searched: Front, job: Job, clock: Clock, options: list[Option], left: float) -> int:
    """Add what the search found to the options, the best first; how many there was no time for."""
    found = _asked_first(searched)
    for index, candidate in enumerate(found):
        if not _fits(candidate.schedule, job, clock, left=left) and index:
            return len(found) - index
        options += options_of(candidate, job)
    return 0


def _fits(schedule: Schedule, job: Job, clock: Clock, *, left: float) -> bool:
    """Whether there is time for the figures of a schedule before what is left for others; it is counted as spent."""
    return payer(clock, clock.limit - left)(work_of(schedule, job, SETTINGS))


def _recommend(options: list[Option], job: Job, searched: Front, clock: Clock) -> Option:
    """The recommendation; where there is none, the error says whether that is proved."""
    try:
        return recommend(options, job)
    except UnknownError as error:
        if impossible := why_infeasible(job, searched):
            raise InfeasibleError(f"{impossible} (proved; {error})") from None
        raise UnknownError(f"{error} (not proved impossible: the search ended because {clock.stopped_by()})") from None


def _prices(pilot: Pilot) -> dict[str, Any]:
    """The prices behind the predictions, as the pilot's own file has them."""
    from partreduce.topo.document.pilot import dump_pilot

    document = dump_pilot(pilot)
    return {key: document[key] for key in ("num_workers", "data", "steps", "prices")}


def _asked_first(answer: Front) -> list[Candidate]:
    """The search's best, then its front: those on its lower convex hull before the others."""
    from partreduce.schedulers.synthesis.front import scattered

    others = [candidate for candidate in answer.candidates if candidate is not answer.best]
    rest = scattered(others, lambda one: (one.communication_seconds_per_step, one.consensus_distance))
    return rest if answer.best is None else [answer.best, *rest]


def _by_communication(option: Option) -> float:
    return option.communication


def _line(news: SearchStage) -> str:
    best = "" if news.value is None else f": best {news.value:.4g}"
    return f"{news.stage}{best}" + ("" if news.cost is None else f" at {news.cost * 1e3:.4g} ms per step")
