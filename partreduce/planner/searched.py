"""What the search found, on all axes, with bounds that stay true where the form, the pace or the lateness changes."""

from __future__ import annotations

from dataclasses import replace

from partreduce.planner.axes import Axes
from partreduce.planner.job import Job
from partreduce.planner.lateness import Lateness
from partreduce.planner.measuring import Label, measure
from partreduce.planner.option import Option
from partreduce.planner.travel import timed
from partreduce.schedulers.synthesis.candidates import LOCKSTEP_CLASS, TOLERANCE
from partreduce.schedulers.synthesis.problem import Candidate
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.base import Averaging, Pace

LATE_CLASS = "late by one round"


def options_of(candidate: Candidate, job: Job) -> list[Option]:
    """The options of one schedule that the search found."""
    found, name = candidate.schedule, candidate.name
    label = Label(name=name, status=str(candidate.status), bound=candidate.bound, bound_class=candidate.bound_class)
    pace = found.strategy.pace
    if isinstance(pace, int):
        options = Axes.of(found, job).options(label, (pace,))
    else:
        able = [lateness for lateness in job.whens if lateness.suits(found.strategy)]
        named = [(one, name if one is Lateness.LOCKSTEP else f"{name} {one}") for one in able]
        options = [measure(timed(found, one.when, pace), job, label=replace(label, name=words)) for one, words in named]
    return [with_bound(option, pace) for option in options]


def with_bound(option: Option, found: Pace) -> Option:
    """The same option with the bound of its own class; `found` is the pace that the search had.

    A bound is proved for any period, in lockstep, for what communicates at most as much as the schedule that was found.
    At pace k the schedule communicates a k-th of that and is one of pace 1 with empty phases, so the bound holds there,
    too. Late, every covariance is that of a lockstep schedule with the steps of one round more, and a round has at
    least one step: the bound rises by what one step of all workers adds off the mean, (n − 1)/n. Where the paces differ
    it is their mean times that; steps that are normalised group by group have no such law here. What a codec makes of
    the costs of phases is not in the bound, so a coded schedule has none.
    """
    if option.bound is not None and option.how.codec is not Codec.NONE:
        return replace(option, bound=None, bound_class="", status="feasible")
    if option.bound is None or (not option.late and option.pace == found):
        return option
    strategy, n = option.schedule.strategy, option.schedule.num_workers
    if option.late and strategy.averaging is not Averaging.MEAN:
        return replace(option, bound=None, bound_class="", status="feasible")
    fresh = 1.0 if isinstance(strategy.pace, int) else float(option.schedule.paces().mean())
    bound = option.bound + (fresh * (n - 1) / n if option.late else 0.0)
    reached = option.consensus_distance.value is not None and option.consensus_distance.value <= bound + TOLERANCE
    words = option.bound_class.replace(LOCKSTEP_CLASS, LATE_CLASS) if option.late else option.bound_class
    return replace(option, bound=bound, bound_class=words, status="optimal" if reached else "feasible")
