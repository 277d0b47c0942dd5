"""How a schedule's sums may travel: form, codec and where it is for, each with what it costs.

They change no figure. Of the forms the cheapest is as good as all of them, since phases that cost no more make no step
slower; ties go to the ring, which every backend has. A codec changes numbers, so a coarser one has to pay: only those
that communicate less than every finer one are taken, and `paying` decides among them setting by setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partreduce.planner.job import Job
from partreduce.planner.preference import Costs, preference
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, CodecScope, Form, How, Sending, When
from partreduce.topo.strategies.base import Pace
from partreduce.topo.timing.cost import Communication, communication

WORTH, WORTH_BESIDE = 0.1, 1 / 3
"""A coarser codec has to save more than this part of what the objective minimises: in lockstep, and where its sums
share the cores with computing. In the lab steps with coded sums took 8 to 16 % longer than predicted, and 44 % where
they came late; those of plain sums up to 7 % (benchmarks/results/lab-recommendation.md, lab-codec.md)."""

DIGITS = 12
"""What is equal to so many significant digits is equally cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostedHow:
    """How one schedule's sums may travel, and what that costs."""

    how: How
    cost: Communication


def hows_of(schedule: Schedule, job: Job) -> tuple[CostedHow, ...]:
    """The cheapest of each codec that communicates less than all finer ones, the finest first."""
    chosen: list[CostedHow] = []
    for costed in cheapest_hows(schedule, job):
        if not chosen or _cheapness(costed) < min(map(_cheapness, chosen)):
            chosen.append(costed)
    return tuple(chosen)


def cheapest_hows(schedule: Schedule, job: Job) -> list[CostedHow]:
    """The cheapest of each codec that the job and the strategy allow, the finest first.

    Where a strategy refuses codecs, sums travel as they are.
    """
    forms = [form for form in job.forms if form in schedule.strategy.forms] or [Form.RING]
    cheapest = []
    for codec in codecs_of(schedule, job):
        hows = [how for form in forms for how in _hows(form, codec)]
        cheapest.append(min((CostedHow(how=how, cost=cost_of(schedule, job, how)) for how in hows), key=_cheapness))
    return cheapest


def codecs_of(schedule: Schedule, job: Job) -> tuple[Codec, ...]:
    """The codecs of a job that a strategy may have, none if it refuses all; the finest first."""
    if job.codecs == (Codec.NONE,) or schedule.strategy.refuses_codec(schedule.cluster):
        return (Codec.NONE,)
    return job.codecs


def _hows(form: Form, codec: Codec) -> list[How]:
    hows = [How(form=form, codec=codec)]
    if codec is not Codec.NONE and form is Form.HIERARCHICAL:
        hows.append(How(form=form, codec=codec, where=CodecScope.ACROSS_NODES))
    return hows


def _cheapness(costed: CostedHow) -> float:
    return float(f"{costed.cost.per_round:.{DIGITS}g}")


def cost_of(schedule: Schedule, job: Job, how: How) -> Communication:
    """What a schedule's communication costs if it travels like this."""
    return communication(travelling(schedule, how), job.hardware, form=how.form)


def travelling(schedule: Schedule, how: How) -> Schedule:
    """The same schedule with sums that travel like this; rings in the place of a form that is only compared with."""
    form = how.form if how.form in schedule.strategy.forms else Form.RING
    runs = replace(how, form=form)
    if runs == schedule.strategy.how:
        return schedule
    return replace(schedule, strategy=replace(schedule.strategy, how=runs), certificate=None)


def timed(schedule: Schedule, when: When, pace: Pace) -> Schedule:
    """The same phases at this pace, late or in lockstep, as rings without a codec; without their certificate."""
    return replace(schedule, strategy=replace(schedule.strategy, when=when, pace=pace, how=How()), certificate=None)


def coded_words(how: How) -> list[str]:
    """What a name says about a codec and about sending by layers, nothing without."""
    words = [] if how.codec is Codec.NONE else [str(how.codec)]
    if how.where is CodecScope.ACROSS_NODES:
        words.append("across nodes")
    if how.sending is Sending.LAYERS:
        words.append("by layers")
    return words


def worth(schedule: Schedule) -> float:
    """The part of what the objective minimises that a codec has to save; nothing where there is none."""
    if schedule.strategy.how.codec is Codec.NONE:
        return 0.0
    return worth_of_codec(beside=schedule.strategy.overlap)


def worth_of_codec(*, beside: bool) -> float:
    """The same where there is one, and its sums go `beside` computing or not."""
    return WORTH_BESIDE if beside else WORTH


def paying(known: Sequence[Costs], job: Job, *, beside: bool) -> int:
    """Which of several costs, those of the finest codec first, to take: the finest that is as good as the best.

    As good is what lies within `WORTH` of it, or `WORTH_BESIDE` where sums go `beside` computing. Those that keep the
    limits come first.
    """
    able = [i for i, costs in enumerate(known) if costs.keep(job.limits)] or list(range(len(known)))
    merits = [_merit(costs, job.objective) for costs in known]
    best = min(merits[i] for i in able)
    part = 1 - worth_of_codec(beside=beside)
    return next(i for i in able if all(own * part <= least for own, least in zip(merits[i], best, strict=True)))


def _merit(costs: Costs, objective: Objective) -> tuple[float, ...]:
    """What the objective minimises; of a balanced one its time alone, as hidden communication is worth no rounding."""
    return (costs.time,) if objective is Objective.BALANCED else preference(costs, objective)
