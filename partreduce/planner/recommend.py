"""The recommendation: the option that a job's objective prefers within its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial

from partreduce.planner.delay import Delay
from partreduce.planner.gain import Gain, best_plain, gain, least_time, simplicity, unbeaten
from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.preference import preference
from partreduce.planner.work import MAX_GRAPH_WORKERS
from partreduce.schedulers.entry import hint
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.errors import InputError, PartreduceError, UndecidedError
from partreduce.topo.metrics import exact_consensus_distance


def recommend(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule:
    """The option that the objective prefers within the job's limits.

    By default that is the least predicted time to the loss, with simplicity where times differ by 2 % or less
    (`gain.least_time`); if the job asks for the fastest, and for the other objectives, what differs by rounding only.

    Raises:
        UndecidedError: no option keeps the limits; the message names the nearest one.
        InputError: the job takes an option that is not there.
    """
    if job.take is not None:
        return _taken(options, job.take)
    allowed = permitted(options, job)
    if not allowed:
        raise UndecidedError(_nothing(options, job))
    if job.objective is Objective.BALANCED and not job.fastest:
        return least_time(allowed, job)
    kept = unbeaten(allowed)
    least = min(preference(option.costs, job.objective) for option in kept)
    best = [option for option in kept if preference(option.costs, job.objective) == least]
    return min(best, key=lambda option: (simplicity(option), option.name))


def _taken(options: Sequence[CandidateSchedule], name: str) -> CandidateSchedule:
    """The option of a name, the faster one where two algorithms share it."""
    named = [option for option in options if option.name == name]
    if not named:
        raise InputError(
            f"--select {name!r}: no schedule of this name was "
            f"weighed{hint(name, {option.name for option in options})}; "
            "the table of the same command without --select lists them, and --effort thorough weighs more"
        )
    return min(named, key=lambda option: option.time)


def permitted(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[CandidateSchedule]:
    """The options that keep the job's limits, and wait as it says: late, synchronous, with a gap or by a quorum."""
    if job.quorum:
        able = [option for option in options if option.quorum]
    else:
        able = [option for option in options if _waits_as(option, job) and (not job.gap or option.gap)]
    able = [option for option in able if _held(option) <= most_queues(job)]
    return [option for option in able if option.costs.keep(job.limits, partial(_exactly, option))]


def _waits_as(option: CandidateSchedule, job: PlanRequest) -> bool:
    """Whether what comes late may, in an option that is one kind among others."""
    if option.quorum:
        return job.quorum is None and job.sync is None
    if option.facts and not option.gap:
        return job.sync is None
    return option.delay in job.sync_types


def _held(option: CandidateSchedule) -> float:
    """Bytes that an option's queues take of a worker."""
    return option.facts.memory_bytes if option.facts else 0.0


def most_queues(job: PlanRequest) -> float:
    """Bytes that queues may take."""
    return math.inf if job.max_queues is None else job.max_queues


def _exactly(option: CandidateSchedule) -> Fraction | None:
    """The consensus distance as a fraction where it can be had."""
    try:
        return exact_consensus_distance(option.schedule)
    except PartreduceError:  # no rule, or one of too many local ranks
        return None


def gain_of(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> Gain | None:
    """The recommendation against the best plain alternative, within the limits if there is one; None without any."""
    plain = best_plain(permitted(options, job), job) or best_plain(options, job)
    return None if plain is None or not math.isfinite(chosen.time) else gain(chosen, plain, job.data)


def _nothing(options: Sequence[CandidateSchedule], job: PlanRequest) -> str:
    if job.quorum:
        options = [option for option in options if option.quorum]
        least = min((option.quorum.memory_bytes for option in options if option.quorum), default=None)
        if least is None:
            return "no quorum is within the limits; raise --max group, or leave out --sync partial"
        if least > most_queues(job):
            return f"max-queues {job.max_queues:.0f} bytes: the least that was found are {least:.0f}; raise it"
    if job.gap:
        options = [option for option in options if option.gap]
        sizes = [option.gap.memory_bytes for option in options if option.gap]
        if job.cluster.num_workers > MAX_GRAPH_WORKERS:
            return f"gaps are weighed for at most {MAX_GRAPH_WORKERS} workers, not {job.cluster.num_workers}"
        if not sizes:
            return "no graph on which a gap could be kept was found within the limits; leave out --sync iteration_gap"
        if min(sizes) > most_queues(job):
            return f"max-queues {job.max_queues:.0f} bytes: the least that was found are {min(sizes):.0f}; raise it"
    if not job.quorum and not job.gap:
        options = [option for option in options if _waits_as(option, job)]
    usable = [option for option in options if math.isfinite(option.steps_ratio)]
    if not usable and job.sync is Delay.PIPELINE:
        return (
            f"a pipeline sums the gradients of all {job.cluster.num_workers} workers in every step, and none was found "
            "within the limits; leave out --max group, or --sync pipeline"
        )
    if not usable:
        given = {"group": job.limits.max_group, "phases": job.limits.max_distinct_phases}
        ways = ["--max period", *(f"--max {name}" for name, limit in given.items() if limit is not None)]
        return f"no schedule that reaches consensus was found; raise {' or '.join(ways)}"
    cheapest, budget = min(usable, key=lambda option: option.communication), job.limits.max_communication
    if budget is not None and cheapest.communication > budget:
        return (
            f"max-communication {ms(budget)}: nothing that reaches consensus was found below "
            f"{ms(cheapest.communication)} per step ({cheapest.name}); raise the budget or the period"
        )
    calmest = min(usable, key=lambda option: float(option.consensus_distance))
    return (
        f"max-consensus-distance {job.limits.max_consensus_distance}: the least found is "
        f"{float(calmest.consensus_distance):.4g} at {ms(calmest.communication)} per step ({calmest.name}); "
        "raise a limit"
    )


def ms(seconds: float) -> str:
    """A duration as the planner's sentences give it."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"
