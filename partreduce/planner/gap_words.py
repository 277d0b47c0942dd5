"""What the answer says about gaps between neighbours: what one answers and costs, or why none is recommended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partreduce.planner.job import Data
from partreduce.planner.recommend import ms, permitted
from partreduce.planner.slowdown import Slowdown
from partreduce.topo.figures.momentum import largest_rate
from partreduce.topo.strategies.gap import Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.planner.job import Job
    from partreduce.planner.option import GapFacts, Option

NOTHING = "no worker is slow and no step takes longer than others, so there is nothing that a gap could answer"
TOLD = 0.02
"""A step that brings the mean less far by this part, or a part of steps skipped, is worth a sentence."""
FEW = 0.75
"""A smaller part of the workers, whose gradients would leave as much noise, is worth a caution."""
USUAL_MOMENTUM = 0.9
HARDLY = 0.5
"""Gradients that count less than this part of an even share hardly count."""


def gap_reasons(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    """What the recommended gap answers, gains and needs; or what the best gap would have taken. One sentence each."""
    slowdown = Slowdown.of(job)
    if chosen.gap is None:
        return _not_recommended(chosen, options, job)
    if slowdown.is_even:
        return [f"{NOTHING}; without --when gap other kinds are weighed, too", _memory(chosen, job)]
    said = [f"{_answers(chosen, slowdown)}{_gained(chosen, options)}"]
    facts = chosen.gap
    if facts.progress < 1 - TOLD:
        said.append(
            f"some of what it averages is old, so that a step brings the mean {facts.progress:.2f} times as far as in "
            "lockstep; that is in its steps"
        )
    if facts.computed < 1 - TOLD:
        said.append(
            f"{1 - facts.computed:.0%} of all steps are skipped, and no gradient is computed in them; a script's loop "
            "has to skip them, too: for batch in optimizer.batches(loader)"
        )
    return [*said, _memory(chosen, job), *_others(chosen, options, job)]


def gap_cautions(chosen: Option, job: Job) -> list[str]:
    """What the user of a recommended gap should know."""
    facts, count = chosen.gap, job.cluster.num_workers
    if facts is None:
        return []
    said = _momentum(chosen)
    if chosen.schedule.is_mixing:
        return said
    if job.data is not Data.SHUFFLED:
        said.append(
            "on data that differs between workers, neighbours that kept a gap needed up to 1.7 times the predicted "
            "steps (docs/gaps.md)"
        )
    decided = (
        "which updates are averaged is decided while the job runs: its consensus distance, drift and steps are "
        "measured in virtual time, not proved, and it does not preserve the mean"
    )
    said.append(decided)
    if facts.progress > 1 + TOLD:
        said.append(
            f"what is newer than one's own step is averaged, too, so that a step brings the mean {facts.progress:.2f} "
            "times as far as in lockstep, as a larger learning rate would: that is not counted as a gain, and a rate "
            "near its limit has to be lowered as much"
        )
    if facts.gradients < FEW:
        said.append(
            f"some workers' updates count more than others': its mean has the noise of {facts.gradients * count:.0f} "
            f"workers' gradients, not of {count}"
        )
    if facts.least_share < HARDLY and Slowdown.of(job).slow:
        missed = "" if job.data is Data.SHUFFLED else ", and that is the only one who sees some of the data"
        said.append(
            f"the gradients of its least heard worker count {max(0.0, facts.least_share):.2f} of an even share{missed}"
        )
    return said


def _momentum(chosen: Option) -> list[str]:
    """In the serial order momentum can make what differs between workers grow at rates that All-Reduce bears."""
    gap = chosen.schedule.strategy.when
    assert isinstance(gap, Gap), "options with facts of a gap keep one"
    borne = largest_rate(chosen.schedule.strategy.graphs[0], USUAL_MOMENTUM, parallel=gap.lag > 0)
    usual = 2 * (1 + USUAL_MOMENTUM)
    if borne > usual / 4:
        return []
    way_out = "" if gap.lag else ", or take the parallel order"
    said = (
        f"with momentum {USUAL_MOMENTUM:g} it bears a rate times curvature of {borne:.2f} only, where All-Reduce bears "
        f"{usual:.1f}: beyond that workers drift apart (docs/strategies.md); lower the rate or the momentum{way_out}"
    )
    return [said]


def _answers(chosen: Option, slowdown: Slowdown) -> str:
    gap = chosen.schedule.strategy.when
    assert isinstance(gap, Gap)
    what = []
    if slowdown.has_spikes:
        what.append(f"steps that take up to {slowdown.spike:.3g} times as long now and then")
    if slowdown.slow:
        worker, factor = max(slowdown.slow, key=lambda one: one[1])
        others = len(slowdown.slow) - 1
        what.append(f"worker {worker}, always {factor:.3g} times as long{f' (and {others} more)' if others else ''}")
    means = []
    if gap.skip is not None:
        means.append(f"a worker that is left behind skips up to {gap.skip.limit} steps at once")
    if gap.has_backup:
        means.append("neighbours do not wait for every update")
    if gap.staleness:
        means.append(f"updates up to {gap.staleness} steps old serve")
    if not means:
        means.append("a worker waits for its neighbours only")
    return f"its gap answers {' and '.join(what)}: {', '.join(means)}"


def _gained(chosen: Option, options: Sequence[Option]) -> str:
    """Against the same graph and order without the setting."""
    gap, graph = chosen.schedule.strategy.when, chosen.schedule.strategy.graphs
    assert isinstance(gap, Gap)
    plain = [o for o in options if o.gap and o is not chosen and o.schedule.strategy.when == Gap(order=gap.order)]
    same = [o for o in plain if o.schedule.strategy.graphs == graph]
    return "".join(f"; without that a step would take {ms(o.step_seconds)}" for o in same[:1])


def _others(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    """What else was measured and is faster, where nothing but gaps was asked for."""
    able = [option for option in permitted(options, replace(job, gap=None)) if not option.gap]
    best = min(able, key=lambda option: (option.time, option.name), default=None)
    if not job.gap or best is None or not 0 < best.time < chosen.time:
        return []
    said = (
        f"{best.name} is predicted to take {best.time / chosen.time:.2f} times as long ({ms(best.step_seconds)} per "
        "step); without --when gap it may be recommended"
    )
    return [said]


def _memory(chosen: Option, job: Job) -> str:
    facts = chosen.gap
    assert facts is not None
    models = facts.memory_bytes / (job.hardware.model_bytes or 1)
    return f"its queues take at most {_size(facts.memory_bytes)} of a worker's memory, {models:.3g} times the model"


def _not_recommended(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    able = [option for option in permitted(options, job) if option.gap]
    if not able:
        return []
    best = min(able, key=lambda option: (option.time, option.name))
    if not best.time > chosen.time > 0:
        return []
    facts: GapFacts | None = best.gap
    assert facts is not None
    said = (
        f"neighbours that keep a gap are predicted to take {best.time / chosen.time:.2f} times as long at their best "
        f"({best.name}: {ms(best.step_seconds)} per step, {best.steps_ratio:.2f} times All-Reduce's steps, "
        f"{_size(facts.memory_bytes)} of queues)"
    )
    return [said]


def _size(num_bytes: float) -> str:
    for unit, amount in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= amount:
            return f"{num_bytes / amount:.3g} {unit}"
    return f"{num_bytes:.3g} bytes"
