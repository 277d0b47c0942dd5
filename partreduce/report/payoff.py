"""State whether fewer bits, or gradients one step late, pay off, with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partreduce.planner.axes import Axes
from partreduce.planner.delay import Delay
from partreduce.planner.gain import best_plain, decisive_time
from partreduce.planner.job import PIPELINE_WIDTH, PlanRequest
from partreduce.planner.measuring import Label, sampled_option
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.recommend import ms, permitted
from partreduce.planner.travel import cheapest_transports, coded_words, traveling, worth_of_codec
from partreduce.planner.work import work_of
from partreduce.topo.hardware import CodecSeconds
from partreduce.topo.metrics.stability import stability_limit
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, Transport
from partreduce.topo.timing.cost import communication

LITTLE_WORK = 0.1
"""Most nominal seconds of metrics for one sentence."""
TOLD = 0.05
"""Smallest fraction of the time saved by a codec that is reported if the job allows none."""


def late_and_small(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """Return up to one sentence each on codecs and on late gradients."""
    return [*_codec_pays(chosen, options, job), *_pipeline_pays(chosen, options, job)]


def _codec_pays(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    if chosen.facts is not None:
        return []
    if job.codec is Codec.NONE:
        return _would_gain(chosen, options, job)
    schedule, is_coded = chosen.schedule, chosen.transport.codec is not Codec.NONE
    plain, *coarser = cheapest_transports(schedule, job)
    transports = [chosen.transport] if is_coded else [costed.transport for costed in coarser]
    if not transports:
        why = schedule.strategy.codec_unsupported_reason(schedule.cluster)
        return [f"its sums travel as they are: {why.partition(';')[0]}"]
    taken = [(transport, *_on_the_wire(schedule, job, transport)) for transport in transports]
    transport, wire, coding = min(taken, key=lambda one: one[1] + one[2])
    if is_coded:
        said = (
            f"its sums travel in {_named(transport)}, as its file says: {ms(wire)} on the wire and {ms(coding)} for "
            f"coding per step, where numbers as they are would take {ms(plain.cost.per_step)}; a codec had no "
            "measurable price in steps (benchmarks/results/late_and_small.md)"
        )
        return [said]
    least = worth_of_codec(beside=schedule.strategy.is_delayed)
    said = (
        f"its sums travel as they are: {_named(transport)} would cost {ms(coding)} for coding and save "
        f"{ms(plain.cost.per_step - wire)} of wire per step, which makes no step shorter by more than {least:.0%}, as "
        "it has to"
    )
    return [said]


def _on_the_wire(schedule: Schedule, job: PlanRequest, transport: Transport) -> tuple[float, float]:
    """Return seconds of a step on the wire, and for coding."""
    free = replace(job.hardware, codec=tuple((codec.value, CodecSeconds()) for codec in Codec))
    runs = traveling(schedule, transport)
    cost, wire = (
        communication(runs, hardware, algorithm=transport.algorithm).per_step for hardware in (job.hardware, free)
    )
    return wire, cost - wire


def best_with_codec(
    chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest
) -> tuple[CandidateSchedule, float] | None:
    """Return the best of the recommendation, the best plain and the fastest option with a codec, and its gain.

    None if a codec is already allowed, or no gain is large enough to report.
    """
    if chosen.facts is not None or job.codec is not Codec.NONE:
        return None
    even = job.at_mean_speeds
    allowed, kept = replace(even, codec=None), permitted(options, job)
    may = [one for one in kept if not one.schedule.strategy.codec_unsupported_reason(one.schedule.cluster)]
    fastest = min(may, key=lambda option: decisive_time(option, job), default=None)
    seeds = {id(one): one for one in (chosen, best_plain(kept, job), fastest) if one and not one.facts}
    found: list[CandidateSchedule] = []
    for seed in seeds.values():
        if isinstance(seed.steps_per_round, int) and work_of(seed.schedule, even) <= LITTLE_WORK:
            found += Axes.of(seed.schedule, allowed).options(Label(name=seed.schedule.name.partition("(every=")[0]))
    best = min(permitted(found, allowed), key=lambda option: decisive_time(option, job), default=None)
    if best is None or best.transport.codec is Codec.NONE:
        return None
    best = sampled_option(best, job)
    ratio = decisive_time(chosen, job) / decisive_time(best, job) if decisive_time(best, job) else 1.0
    return (best, ratio) if ratio * (1 - TOLD) > 1 else None


def _would_gain(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """Return the minimum gain of codecs."""
    if (found := best_with_codec(chosen, options, job)) is None:
        return []
    best, ratio = found
    said = (
        f"--codec any would make training at least {ratio:.2f} times as fast ({best.name}: "
        f"{ms(best.step_seconds)} per step); it rounds what is sent, so it is left to you"
    )
    return [said]


def _pipeline_pays(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    if chosen.delay is Delay.PIPELINE:
        said = (
            "its gradients come one step late, the same for all workers, during computing, as its file says; "
            f"{_price(job, chosen)}; it needs memory for one more gradient, and --sync synchronous leaves pipelines out"
        )
        return [said]
    if job.sync not in {None, Delay.PIPELINE}:
        return []
    if not job.bears_pipeline:
        said = (
            f"a pipeline of gradients is left out: with a learning rate times curvature of {job.curvature:g} gradients "
            f"that come a step late diverge, as they do from {stability_limit(PIPELINE_WIDTH):g} on; synchronous "
            f"rounds bear {stability_limit(1):g}"
        )
        return [said]
    every = [option for option in permitted(options, job) if option.is_plain and option.steps_per_round == 1]
    late = [option for option in every if option.delay is Delay.PIPELINE]
    usual = [option for option in every if option.delay is Delay.SYNCHRONOUS]
    if not late or not usual:
        return []
    best, beside = (min(some, key=lambda option: option.time) for some in (late, usual))
    hidden = beside.step_seconds - best.step_seconds
    said = (
        f"a pipeline of gradients would hide {ms(hidden)} of All-Reduce's {ms(beside.step_seconds)} per step "
        f"({hidden / max(beside.step_seconds, 1e-300):.0%}) and is predicted to need {best.steps_ratio - 1:.0%} more "
        "steps"
    )
    if best.time >= beside.time:
        return [f"{said}: it does not pay"]
    return [f"{said}: {best.time / chosen.time:.2f} times as long as the recommendation"] if chosen.time > 0 else []


def _price(job: PlanRequest, chosen: CandidateSchedule) -> str:
    known = "" if job.curvature is None else f" at a learning rate times curvature of {job.curvature:g}"
    return f"that is predicted to take {chosen.steps_ratio:.2f} times All-Reduce's steps{known}"


def _named(transport: Transport) -> str:
    return " ".join(coded_words(transport))
