"""What a recommendation is compared with: simple schedules that a user has without a planner, and what-if variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from partreduce.planner.candidates import competitors
from partreduce.planner.gain import Gain, contenders, counted, gain, least_time
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.measuring import pushed_by
from partreduce.planner.option import CandidateSchedule, known
from partreduce.planner.recommend import permitted, recommend
from partreduce.planner.steps_model import Optimizer
from partreduce.schedulers.synthesis.problem import Limits
from partreduce.topo.describe import EVERYONE, IN_NODES, levels, spacing
from partreduce.topo.errors import PartreduceError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.static import StaticGroups

SIMPLE = ("allreduce", "node-then-all")
"""Entries of the catalogue that are priced for the comparison where the job's own limits leave none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The recommendation and the four schedules that are shown with it, each at its best setting that was priced.

    `simple` is the strongest of All-Reduce every H steps (PyTorch's post-local SGD once it is warm), averages inside
    each node and rarely of all workers, and DiLoCo; the recommendation itself if it is one of these, and `other` then
    is the strongest of the others. `over_simple` and `over_every_step` are how many times as fast the recommendation is
    predicted to reach a loss.
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
    """Another value of an option: the recommendation then, and how fast that and today's are over All-Reduce's."""

    option: str
    value: str
    speedup: float
    ours: float


def compare(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> Comparison:
    """Find what the recommendation is shown with; a limit that no simple schedule keeps does not hold for these."""
    able = [option for option in permitted(options, job) if option.time < math.inf] or [chosen]
    families = {id(one): family(one.schedule) for one in [*options, chosen]}
    is_simple, known = bool(families[id(chosen)]), [one for one in able if families[id(one)]]
    usual: list[CandidateSchedule] = []
    if not (is_simple or any(not _is_every_step(one) for one in known)) or not any(map(_is_every_step, options)):
        free = replace(job, sync=None, gap=False, quorum=False, limits=Limits(), take=None, tolerate_failures=0)
        usual = competitors(free, until=math.inf, names=SIMPLE)
    every_step = min(filter(_is_every_step, [*options, *usual]), key=lambda option: option.time)
    known += [one for one in usual if family(one.schedule)]
    simple = chosen if is_simple else _strongest(known, job) or every_step
    others = [one for one in able if families[id(one)] not in {"", families[id(chosen)]}]
    prompt = [one for one in able if not one.late and (one.facts is None or one.facts.kind == "outer")]
    return Comparison(
        chosen=chosen,
        every_step=every_step,
        simple=simple,
        other=_strongest(others, job) if is_simple else None,
        fastest=min([chosen, *able], key=lambda option: option.time),
        without_delay=chosen if chosen in prompt else _best(prompt, job) or every_step,
        over_simple=gain(chosen, simple, job.data),
        over_every_step=gain(chosen, every_step, job.data),
    )


def _is_every_step(option: CandidateSchedule) -> bool:
    return option.is_plain and option.steps_per_round == 1 and not option.late


def _strongest(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule | None:
    """The least time that counts; regret on other tasks has no part in it, so that no baseline looks weak."""
    able = contenders(options, job)
    return min(zip(counted(able, job), range(len(able)), able, strict=True), default=(0, 0, None))[2]


def _best(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule | None:
    return least_time(options, job) if options else None


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


def variants(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> Iterator[Variant]:
    """The answers to neighboring questions, each priced from what was measured of this one: optimizer and data.

    Schedules that were run in virtual time are priced for their own question only, and left out.
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
    except PartreduceError:  # nothing keeps the limits then
        return
    every = min((one.time for one in priced.values() if _is_every_step(one)), default=math.inf)
    if 0 < best.time < math.inf and every < math.inf:
        speedups = (every / best.time, every / ours.time if ours.time > 0 else math.inf)
        yield Variant(option=option, value=value, speedup=speedups[0], ours=speedups[1])


def repriced(option: CandidateSchedule, job: PlanRequest) -> CandidateSchedule:
    """An option with the steps that another job's prices predict from its metrics."""
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
