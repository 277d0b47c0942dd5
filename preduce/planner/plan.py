"""Ties the planner together: competitors, search, front, pick, proof."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from preduce.planner.competitors import competitors, within_limits
from preduce.planner.front import front
from preduce.planner.option import Option, measure
from preduce.planner.pick import cautions, pick, reasons
from preduce.schedulers.synthesis.problem import Objective

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.planner.job import Job
    from preduce.schedulers.synthesis.alphabet_search import SearchStage
    from preduce.schedulers.synthesis.problem import Candidate, Front
    from preduce.topo.pilot import Pilot
    from preduce.topo.schedule import Schedule
    from preduce.verify.base import Proof

CATALOGUE_SHARE = 0.25
"""Of the time limit, after which the catalogue's graphs are no longer measured, so that the search gets its part."""

MEASURE_SHARE = 0.08
"""Of the time limit, kept for measuring what the search found."""

PROOF_SHARE = 0.08
"""Of the time limit, kept for proving the pick."""

MIN_SEARCH_SECONDS = 1.0
"""What the search gets at least, when measuring a large catalogue has used up the time."""

MAX_EXACT_WORKERS = 512
"""Exact rounds come as explicit groups, whose figures need dense n×n work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: the pick with its proof, the front, and all competitors that were measured.

    `search_status` is the synthesiser's word about its problem as a whole; `search_proof` says what its bound covers.
    """

    pick: Option
    proof: Proof
    reasons: list[str]
    cautions: list[str]
    front: list[Option]
    options: list[Option]
    search_status: str
    search_proof: str
    pilot: Pilot | None = None

    def to_json(self) -> dict[str, Any]:
        """As `preduce design --json` prints it."""
        return {
            "pick": {**self.pick.to_json(), "verdict": self.proof.verdict},
            "reasons": self.reasons,
            "cautions": self.cautions,
            "front": [option.to_json() for option in self.front],
            "search": {"status": self.search_status, "proof": self.search_proof},
            **({} if self.pilot is None else {"pilot": _prices(self.pilot)}),
        }


def plan(job: Job, *, progress: Callable[[str], None] | None = None) -> Plan:
    """Measure the catalogue, search for better schedules, keep the front, pick one and prove it.

    Raises:
        InputError: the job cannot be.
        UnknownError: nothing within the limits was found in the time.
    """
    from preduce.verify.prove import prove

    say = progress or (lambda _: None)
    started = monotonic()
    say("measuring the catalogue")
    left_out: list[str] = []
    options = competitors(job, until=started + CATALOGUE_SHARE * job.time_limit, left_out=left_out.append)
    left = (1 - MEASURE_SHARE - PROOF_SHARE) * job.time_limit - (monotonic() - started)
    hints = tuple(option.schedule for option in front(options))
    searched = _search(job, hints, max(MIN_SEARCH_SECONDS, left), say)
    until = started + (1 - PROOF_SHARE) * job.time_limit
    for index, candidate in enumerate(_asked_first(searched)):
        if index and monotonic() > until:
            break
        options.append(
            measure(
                candidate.schedule,
                job,
                name=candidate.name,
                status=str(candidate.status),
                bound=candidate.bound,
                bound_class=candidate.bound_class,
            )
        )
    if job.objective is Objective.EXACT:
        options += _exact(job)
    chosen = pick(options, job)
    say(f"proving {chosen.name}")
    proof = prove(chosen.schedule)
    kept = front(options)
    return Plan(
        pick=chosen,
        proof=proof,
        reasons=reasons(chosen, options, job),
        cautions=[*cautions(chosen, job), *_unmeasured(left_out)],
        front=kept if any(option is chosen for option in kept) else sorted([*kept, chosen], key=_by_communication),
        options=options,
        search_status=str(searched.status),
        search_proof=searched.proof,
        pilot=job.pilot,
    )


def _prices(pilot: Pilot) -> dict[str, Any]:
    """The prices behind the predictions, as the pilot's own file has them."""
    from preduce.topo.document.pilot import dump_pilot

    document = dump_pilot(pilot)
    return {key: document[key] for key in ("num_workers", "data", "steps", "prices")}


def _asked_first(answer: Front) -> list[Candidate]:
    """The search's best, then its front in an order of which every beginning is spread over the whole."""
    from preduce.schedulers.synthesis.front import scattered

    rest = scattered([candidate for candidate in answer.candidates if candidate is not answer.best])
    return rest if answer.best is None else [answer.best, *rest]


def _unmeasured(names: list[str]) -> list[str]:
    if not names:
        return []
    return [f"the time did not reach {len(names)} catalogue entries ({', '.join(names)}); a longer --time-limit does"]


def _by_communication(option: Option) -> float:
    return option.communication


def _exact(job: Job) -> list[Option]:
    """The fewest rounds of exact consensus known for groups of the job's size, with the bound on their number."""
    from preduce.schedulers.exact_rounds.fewest import fewest_rounds

    n = job.cluster.num_workers
    if n > MAX_EXACT_WORKERS:
        return []
    answer = fewest_rounds(n, job.limits.max_group or n)
    if answer.phases is None or len(answer.phases) > job.limits.max_period:
        return []
    schedule = answer.schedule(job.cluster.shape())
    return [measure(schedule, job, status=str(answer.status))] if within_limits(schedule, job.limits) else []


def _search(job: Job, hints: tuple[Schedule, ...], seconds: float, say: Callable[[str], None]) -> Front:
    from preduce.schedulers.synthesis.front import synthesise

    return synthesise(job.problem(hints), time_limit=seconds, seed=job.seed, progress=lambda news: say(_line(news)))


def _line(news: SearchStage) -> str:
    best = "" if news.value is None else f": best {news.value:.4g}"
    return f"{news.stage}{best}" + ("" if news.cost is None else f" at {news.cost * 1e3:.4g} ms per step")
