"""Plan a job: collect candidates, search, choose a recommendation, and prove it.

The steps model may not fit a job, so a pilot (`RunOff`) also trains the recommendation, and the best candidate of every
other kind, for as many steps as its probes. The prices are fitted again with these runs, and this repeats until the
recommendation is a schedule that ran. Candidates that ran are predicted from their own runs (`measuring.as_ran`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from math import isfinite
from typing import Any, NamedTuple

from partreduce.planner.calibration import as_trained, calibrate, trained_sha256
from partreduce.planner.candidates import weighed_kinds
from partreduce.planner.failure_plans import survival
from partreduce.planner.job import EFFORTS, PlanRequest
from partreduce.planner.measuring import as_ran
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.options import Weighing, weigh
from partreduce.planner.recommend import Gain, allowed_options, baselines, front, gain_of, recommend
from partreduce.planner.trials import STEADY_SHARE, SteadyCheck
from partreduce.runtime.pilot.job import Curve
from partreduce.schedulers.synthesis.problem import ROUNDING, Front, Objective, Status
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.describe import describe
from partreduce.topo.document.pilot import dump_pilot
from partreduce.topo.errors import InfeasibleError, UndecidedError
from partreduce.topo.metrics.base import Kind
from partreduce.topo.pilot import Pilot
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.base import HasGroups
from partreduce.verify.base import GUARANTEED, NOT_GUARANTEED, Proof
from partreduce.verify.prove import prove

PROOF_SHARE, PROOF_SECONDS = 0.08, 2.0
"""Fraction of the time for proving the recommendation, and the maximum in seconds. A proof is never interrupted."""
LOADED = ("ortools.sat.python.cp_model", "scipy.sparse.linalg")
"""Libraries to import before the clock starts; otherwise their first use would import them."""
ROUNDS = 3
"""Most rounds of additional training runs of a pilot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How good the recommendation is by the job's objective: the `status`, optimal or feasible, and why (`because`).

    `ended` is the reason why the search ended; `capped` is true if a time limit had an effect, so that another run may
    differ. `effort` is in nominal seconds, `time_limit` in seconds.
    """

    status: Status
    because: str
    ended: str
    effort: float | None
    time_limit: float
    capped: bool

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": str(self.status)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of planning: the recommendation with its proof, the Pareto front, baselines, and all candidates.

    `gain` is the recommendation's speedup over the best All-Reduce every k steps, delayed or not. `reasons` and
    `cautions` are those known to the planner; `report.reasons.add_reasons` adds those about schedules. `left_out` lists
    by kind the candidates not reached in time. `search_status` is the search's status for its own problem, which
    minimizes a metric even if the objective does not. `over_quick` states the gain over the plan with the quick effort.
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
        """Return in words whether consensus of the recommendation is proved; if not, the evidence for it."""
        if self.proof.guarantees_consensus:
            return GUARANTEED
        sampled = self.recommendation.consensus_distance.kind is Kind.ESTIMATE
        return f"{NOT_GUARANTEED}, steady in simulation" if sampled else f"{NOT_GUARANTEED}, steady by its metrics"

    def to_json(self) -> dict[str, Any]:
        """Return the output of `partreduce design --json`, equal for equal jobs unless a time limit had an effect."""
        proved = {"verdict": self.proof.verdict, "consensus": self.consensus}
        document = {
            "answer": self.answer.to_json(),
            "recommendation": self.recommendation.to_json() | proved,
            "gain": None if self.gain is None else self.gain.to_json(),
            "reasons": self.reasons,
            "cautions": self.cautions,
            "front": [option.to_json() for option in self.front],
            "baselines": [option.to_json() for option in self.baselines],
            "search": {"status": self.search_status},
        }
        if self.pilot is not None:  # the prices behind the predictions, as in the pilot's file
            written = dump_pilot(self.pilot)
            document["pilot"] = {key: written[key] for key in ("num_workers", "data", "steps", "prices")}
        return document


@check_arguments
def plan(job: PlanRequest, *, progress: Callable[[str], None] | None = None) -> Plan:
    """Measure the catalogue, search for better schedules if asked to, keep the front, recommend one and prove it.

    The job's effort and time limit are kept: the clock starts after all imports, no work starts that is unlikely to end
    in time, and only the proof of the recommendation is never interrupted.

    Args:
        job: the cluster, what to optimize within which limits, and how much to compute.
        progress: called with a line for each stage of the work.

    Returns:
        The Plan: the recommendation with its proof, the Pareto front, baselines, and all candidates.

    Raises:
        InputError: the job is invalid.
        InfeasibleError: it is proved that no schedule of a named class keeps the limits, and no other was found.
        UndecidedError: no schedule within the limits was found in time.
    """
    say = progress or (lambda _: None)
    found = decide(job, say)
    chosen, options, steady = found.chosen, found.options, found.steady
    survivors = survival(chosen.schedule, job, say=say) if job.tolerate_failures else None
    final = chosen if survivors is None else replace(chosen, schedule=survivors.schedule)
    shown = [final if option is chosen else option for option in options]
    say(f"proving {final.name}")
    best, over_quick = front(shown), _over_quick(chosen, job, say)
    if not any(option is final for option in best):
        best = sorted([*best, final], key=lambda option: option.communication)
    is_least = job.objective is Objective.CONSENSUS_DISTANCE and float(chosen.consensus_distance) <= ROUNDING
    unknown, lost = f"no bound is known for the objective {job.objective}", ", ".join(found.lost)
    return Plan(
        recommendation=final,
        proof=prove(final.schedule),
        reasons=[*([] if survivors is None else [survivors.words]), *([over_quick] if over_quick else [])],
        cautions=[
            *steady.words(),
            *([f"left out, because it wins only if workers are as slow as said: {lost}"] if lost else []),
        ],
        front=best,
        baselines=baselines(shown),
        options=shown,
        gain=gain_of(chosen, options, job),
        answer=Answer(
            status=Status.OPTIMAL if is_least else Status.FEASIBLE,
            because="its consensus distance is 0, and none is below" if is_least else unknown,
            ended=steady.clock.stopped_by(),
            effort=steady.clock.effort,
            time_limit=steady.clock.seconds,
            capped=steady.clock.capped,
        ),
        search_status=str(found.weighed.searched.status),
        pilot=job.pilot,
        over_quick=over_quick,
        left_out=found.weighed.left_out,
    )


class Decision(NamedTuple):
    """A recommendation not yet proved (`chosen`), and the candidates (`options`) that it was chosen from.

    `lost` says why others were not recommended (`SteadyCheck.lost`), `weighed` is the result of collecting, `steady`
    the check of simulated candidates.
    """

    chosen: CandidateSchedule
    options: list[CandidateSchedule]
    lost: list[str]
    weighed: Weighing
    steady: SteadyCheck


def decide(job: PlanRequest, say: Callable[[str], None] = lambda _: None) -> Decision:
    """Measure all candidates of a job and choose one, without a proof; `say` receives progress messages."""
    if job.searches:
        load_searchers()
    clock = job.clock()
    until = clock.limit - min(PROOF_SHARE * clock.limit, PROOF_SECONDS)
    longer = STEADY_SHARE * clock.limit if set(weighed_kinds(job)) - {"outer"} else 0.0
    # An effort pays for weighing, and longer runs are extra; a time limit covers both.
    weighed = weigh(job, clock, until if clock.effort else until - longer, say)
    steady = SteadyCheck(job, clock, clock.limit + longer if clock.effort else until)
    say("running for longer what has to be steady")
    options = steady.settled(as_ran(weighed.options, job))
    chosen, lost = _recommend(options, job, weighed.searched, steady), list[str]()
    while why := steady.lost(chosen, options):
        lost.append(why)
        options = [option for option in options if option is not chosen]
        chosen = _recommend(options, job, weighed.searched, steady)
    return Decision(chosen, options, lost, weighed, steady)


def _over_quick(chosen: CandidateSchedule, job: PlanRequest, say: Callable[[str], None]) -> str:
    """Return a sentence on the gain over the quick effort's recommendation; empty unless this effort is thorough."""
    is_thorough = (job.effort or 0.0) >= EFFORTS["thorough"]
    if not is_thorough or job.take is not None or job.time_limit is not None or job.gap or job.quorum:
        return ""
    say("finding the quick answer")
    try:
        quick = decide(replace(job, effort=EFFORTS["quick"])).chosen
    except (InfeasibleError, UndecidedError):
        return "the quick answer found nothing within the limits"
    if quick.name == chosen.name or chosen.time <= 0:
        return "the quick answer is the same: searching found nothing better"
    ratio = quick.time / chosen.time
    return f"the quick answer is predicted to take {ratio:.3g} times as long: {describe(quick.schedule)}"


def load_searchers() -> None:
    """Import the planner's libraries, which takes a second or two, before a time limit starts."""
    for name in LOADED:
        with suppress(ImportError):  # code that needs a missing library reports it
            import_module(name)


def _recommend(
    options: list[CandidateSchedule], job: PlanRequest, searched: Front, steady: SteadyCheck
) -> CandidateSchedule:
    """Return the recommendation; without one raise InfeasibleError if `searched` proves that, else UndecidedError."""
    try:
        return recommend(options, job)
    except UndecidedError as error:
        if searched.status is Status.INFEASIBLE and job.codecs == (Codec.NONE,):
            raise InfeasibleError(f"{error} (proved: {searched.reason})") from None
        ended = f"(not proved impossible: the search ended because {steady.clock.stopped_by()})"
        raise UndecidedError("; ".join([str(error), *steady.words()]) + f" {ended}") from None


class RunOff:
    """The choice of training runs that a pilot adds until its recommendation is a schedule that ran.

    `steps` are the training steps of a run, `finalists` the hashes of the schedules chosen so far, and `plans` the
    plans so far: the first by the prices of the pilot's probes alone, the last with all runs.
    """

    def __init__(self, job: PlanRequest, *, steps: int) -> None:
        self.job, self.steps = job, steps
        self.finalists: set[str] = set()
        self.plans: list[Plan] = []

    def pilot(self, curves: Sequence[Curve]) -> Pilot:
        return calibrate(curves, data=self.job.data, steps=self.steps, finalists=self.finalists)

    def next(self, curves: Sequence[Curve]) -> list[Schedule]:
        """Plan with these loss curves; return the schedules to train next in the pilot, none after `ROUNDS` calls.

        They are the `finalists` of the plan that have not run yet.
        """
        job = replace(self.job, pilot=self.pilot(curves))
        planned = plan(job)
        self.plans.append(planned)
        if len(self.plans) > ROUNDS:
            return []
        ran = {trained_sha256(curve.schedule) for curve in curves}
        named = {trained_sha256(one.schedule): one for one in finalists(planned.recommendation, planned.options, job)}
        self.finalists |= set(named)
        return [as_trained(one.schedule, name=one.name) for sha256, one in named.items() if sha256 not in ran]


def finalists(
    chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest
) -> list[CandidateSchedule]:
    """Return the schedules that a pilot should train: the recommendation, and the best of each kind that may be faster.

    Kinds are synchronous parameters, late parameters, and a pipeline. Left out are All-Reduce in every step, which all
    pilots train, candidates with `facts`, and those that connect all workers only after more steps than a run has.
    """
    assert job.pilot is not None, "its prices made them finalists"
    kinds: dict[object, CandidateSchedule] = {}
    for option in sorted(allowed_options(options, job), key=lambda one: (one is not chosen, one.time)):
        is_faster = option is chosen or (option.step_seconds < chosen.time and isfinite(option.time_at_worst))
        if is_faster and _can_run(option, job.pilot.steps):
            kinds.setdefault(option.kind, option)
    return list(kinds.values())


def _can_run(option: CandidateSchedule, steps: int) -> bool:
    strategy = option.schedule.strategy
    if option.facts is not None:
        return False
    if strategy.averages_gradients:
        return option.late  # All-Reduce in each step is always included
    longest = option.schedule.largest_steps_per_round
    return not isinstance(strategy, HasGroups) or option.schedule.rounds_to_connect() * longest <= steps
