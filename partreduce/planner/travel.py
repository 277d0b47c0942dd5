"""Choose the transport of a schedule's sums (algorithm, codec and delay) by cost.

Transport changes no metric. The cheapest algorithm is as good as all of them, since phases that cost no more make no
step slower; ties take the ring, which every backend has. A codec changes numbers, so a coarser one must pay: only
codecs that communicate less than every finer one are kept, and `paying` chooses among them for each setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partreduce.planner.job import PlanRequest
from partreduce.planner.preference import Costs, preference
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, GradientBuckets, Sync, Transport
from partreduce.topo.strategies.base import StepsPerRound
from partreduce.topo.timing.cost import Communication, communication

WORTH, WORTH_BESIDE = 0.1, 1 / 3
"""A coarser codec must save more than this fraction of the objective: in synchronous rounds, and where sums share the
cores with computing. In the lab, steps with coded sums took 8 to 16 % longer than predicted, and 44 % where they were
late; those of plain sums up to 7 % (benchmarks/results/lab-recommendation.md, lab-codec.md)."""

DIGITS = 12
"""Costs equal to so many significant digits are ties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostedTransport:
    """A transport of one schedule's sums, and its cost."""

    transport: Transport
    cost: Communication


def transports_of(schedule: Schedule, job: PlanRequest) -> tuple[CostedTransport, ...]:
    """Return the cheapest transport of each codec that communicates less than all finer ones, the finest first."""
    chosen: list[CostedTransport] = []
    for costed in cheapest_transports(schedule, job):
        if not chosen or _cheapness(costed) < min(map(_cheapness, chosen)):
            chosen.append(costed)
    return tuple(chosen)


def cheapest_transports(schedule: Schedule, job: PlanRequest) -> list[CostedTransport]:
    """Return the cheapest transport of each codec that the job and the strategy allow, the finest first.

    If a strategy allows no codec, sums are sent without one.
    """
    known = [algorithm for algorithm in job.algorithms if algorithm in schedule.strategy.algorithms]
    algorithms = known or [AllReduceAlgorithm.RING]
    cheapest = []
    for codec in codecs_of(schedule, job):
        transports = [transport for algorithm in algorithms for transport in _transports(algorithm, codec)]
        costed = [CostedTransport(transport=one, cost=cost_of(schedule, job, one)) for one in transports]
        cheapest.append(min(costed, key=_cheapness))
    return cheapest


def codecs_of(schedule: Schedule, job: PlanRequest) -> tuple[Codec, ...]:
    """Return the codecs of a job that a strategy allows, the finest first; no codec if it allows none."""
    if job.codecs == (Codec.NONE,) or schedule.strategy.codec_unsupported_reason(schedule.cluster):
        return (Codec.NONE,)
    return job.codecs


def _transports(algorithm: AllReduceAlgorithm, codec: Codec) -> list[Transport]:
    transports = [Transport(algorithm=algorithm, codec=codec)]
    if codec is not Codec.NONE and algorithm is AllReduceAlgorithm.HIERARCHICAL:
        transports.append(Transport(algorithm=algorithm, codec=codec, where=CodecScope.ACROSS_NODES))
    return transports


def _cheapness(costed: CostedTransport) -> float:
    return float(f"{costed.cost.per_round:.{DIGITS}g}")


def cost_of(schedule: Schedule, job: PlanRequest, transport: Transport) -> Communication:
    """Return the cost of a schedule's communication with a transport."""
    return communication(traveling(schedule, transport), job.hardware, algorithm=transport.algorithm)


def traveling(schedule: Schedule, transport: Transport) -> Schedule:
    """Return the schedule with this transport; rings replace an algorithm that is for comparison only."""
    algorithm = transport.algorithm if transport.algorithm in schedule.strategy.algorithms else AllReduceAlgorithm.RING
    runs = replace(transport, algorithm=algorithm)
    if runs == schedule.strategy.transport:
        return schedule
    return replace(schedule, strategy=replace(schedule.strategy, transport=runs), certificate=None)


def timed(schedule: Schedule, sync: Sync, steps_per_round: StepsPerRound) -> Schedule:
    """Return the same phases with these steps per round and delay, as rings without a codec or certificate."""
    return replace(
        schedule,
        strategy=replace(schedule.strategy, sync=sync, steps_per_round=steps_per_round, transport=Transport()),
        certificate=None,
    )


def coded_words(transport: Transport) -> list[str]:
    """Return the words for a codec and for layers in a schedule's name, if any."""
    words = [] if transport.codec is Codec.NONE else [str(transport.codec)]
    if transport.where is CodecScope.ACROSS_NODES:
        words.append("across nodes")
    if transport.gradient_buckets is GradientBuckets.PER_LAYER:
        words.append("by layers")
    return words


def worth(schedule: Schedule) -> float:
    """Return the fraction of the objective that the schedule's codec must save; 0 without one."""
    if schedule.strategy.transport.codec is Codec.NONE:
        return 0.0
    return worth_of_codec(beside=schedule.strategy.is_delayed)


def worth_of_codec(*, beside: bool) -> float:
    """Return that fraction for a codec whose sums overlap with computing (`beside`) or not."""
    return WORTH_BESIDE if beside else WORTH


def paying(known: Sequence[Costs], job: PlanRequest, *, beside: bool) -> int:
    """Return the index of the finest codec whose costs are as good as the best; costs are ordered finest first.

    Costs within `WORTH` of the best are as good, or within `WORTH_BESIDE` if sums overlap with computing (`beside`).
    Costs that keep the limits are preferred.
    """
    able = [i for i, costs in enumerate(known) if costs.keep(job.limits)] or list(range(len(known)))
    merits = [_merit(costs, job.objective) for costs in known]
    best = min(merits[i] for i in able)
    part = 1 - worth_of_codec(beside=beside)
    return next(i for i in able if all(own * part <= least for own, least in zip(merits[i], best, strict=True)))


def _merit(costs: Costs, objective: Objective) -> tuple[float, ...]:
    """Return the objective's value; for a balanced one only the time, as hidden communication justifies no rounding."""
    return (costs.time,) if objective is Objective.BALANCED else preference(costs, objective)
