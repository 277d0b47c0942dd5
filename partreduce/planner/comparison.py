"""Compare a recommendation with simple schedules that need no planner, and with what-if variants of the job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from partreduce.planner.candidates import competitors
from partreduce.planner.gain import Gain, contenders, decisive_time, family, gain, least_time
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.measuring import pushed_by
from partreduce.planner.option import CandidateSchedule, known
from partreduce.planner.recommend import permitted, recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.schedulers.synthesis.problem import Limits
from partreduce.topo.errors import PartreduceError

SIMPLE = ("allreduce", "node-then-all")
"""Catalogue entries that are priced for the comparison if the job's limits exclude them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The recommendation and the four schedules shown with it, each in its best priced setting.

    `simple` is the strongest of All-Reduce every H steps (PyTorch's post-local SGD after its warm-up), averages inside
    each node with rare ones over all workers, and DiLoCo; if the recommendation is one of these, `simple` is the
    recommendation and `other` the strongest of the others. `over_simple` and `over_every_step` are predicted speedups
    of the recommendation in time to a loss.
    """

    chosen: CandidateSchedule
    every_step: CandidateSchedule
    simple: CandidateSchedule
    other: CandidateSchedule | None
    fastest: CandidateSchedule
    without_delay: CandidateSchedule
    over_simple: Gain
    over_every_step: Gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Another value of an option: its recommendation, and the speedups of that and the current one over All-Reduce."""

    option: str
    value: str
    speedup: float
    ours: float


def compare(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> Comparison:
    """Return the schedules shown with a recommendation; a limit that no simple schedule keeps is ignored for them."""
    able = [option for option in permitted(options, job) if option.time < math.inf] or [chosen]
    families = {id(one): family(one.schedule) for one in [*options, chosen]}
    is_simple, known = bool(families[id(chosen)]), [one for one in able if families[id(one)]]
    usual: list[CandidateSchedule] = []
    if not (is_simple or any(not _is_every_step(one) for one in known)) or not any(map(_is_every_step, options)):
        free = replace(job, sync=None, gap=False, quorum=False, limits=Limits(), take=None, tolerate_failures=0)
        usual = competitors(free, until=math.inf, names=SIMPLE)
    every_step = min(filter(_is_every_step, [*options, *usual]), key=lambda option: option.time)
    known += [one for one in usual if family(one.schedule)]
    simple = chosen if is_simple else strongest(known, job) or every_step
    others = [one for one in able if families[id(one)] not in {"", families[id(chosen)]}]
    prompt = [one for one in able if not one.late and (one.facts is None or one.facts.kind == "outer")]
    return Comparison(
        chosen=chosen,
        every_step=every_step,
        simple=simple,
        other=strongest(others, job) if is_simple else None,
        fastest=min([chosen, *able], key=lambda option: option.time),
        without_delay=chosen if chosen in prompt else _best(prompt, job) or every_step,
        over_simple=gain(chosen, simple, job.data),
        over_every_step=gain(chosen, every_step, job.data),
    )


def _is_every_step(option: CandidateSchedule) -> bool:
    return option.is_plain and option.steps_per_round == 1 and not option.late


def strongest(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule | None:
    """Return the option with the least decisive time; regret is ignored, so that no baseline looks weak."""
    return min(contenders(options, job), key=lambda option: decisive_time(option, job), default=None)


def _best(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule | None:
    return least_time(options, job) if options else None


def variants(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> Iterator[Variant]:
    """Yield the answers to neighboring questions (optimizer, data), priced from the measurements of this one.

    Schedules that were run in virtual time are left out, since they are priced for their own question only.
    """
    if job.pilot is not None or chosen.facts is not None:
        return
    for optimizer in Optimizer:
        if optimizer is not job.optimizer:
            yield from _variant("--optimizer", optimizer, chosen, options, replace(job, optimizer=optimizer, take=None))
    if job.data is Data.SHUFFLED:
        yield from _variant("--data", "per-worker", chosen, options, replace(job, data=Data.PER_WORKER, take=None))


def _variant(
    option: str, value: str, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest
) -> Iterator[Variant]:
    priced = {id(one): repriced(one, job) for one in options if one.facts is None}
    ours = priced.get(id(chosen)) or repriced(chosen, job)
    try:
        best = recommend(list(priced.values()), job)
    except PartreduceError:  # no option keeps the limits
        return
    every = min((one.time for one in priced.values() if _is_every_step(one)), default=math.inf)
    if 0 < best.time < math.inf and every < math.inf:
        speedups = (every / best.time, every / ours.time if ours.time > 0 else math.inf)
        yield Variant(option=option, value=value, speedup=speedups[0], ours=speedups[1])


def repriced(option: CandidateSchedule, job: PlanRequest) -> CandidateSchedule:
    """Return an option with the steps that another job's prices predict from its metrics."""
    model, strategy = job.steps_model, option.schedule.strategy
    noise, pushed = known(option.consensus_distance), pushed_by(option.drift, job)
    ratio = model.steps_ratio(
        noise,
        pushed,
        late=option.late_distance,
        delayed=job.delayed(strategy.sync),
        gradients=strategy.averages_gradients,
    )
    return replace(option, steps_ratio=ratio, model=model, extrapolated=model.extrapolates(noise, pushed))
