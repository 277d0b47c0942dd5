"""Properties of the planner's answer to any job; each check returns a sentence for every violation."""

from __future__ import annotations

import json
import math
import time
import traceback
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
from sympy.utilities.iterables import multiset_partitions

from benchmarks.forgery.dense import averaging
from partreduce import Objective
from partreduce.planner.axes import within_gap
from partreduce.planner.measuring import measure, traveling
from partreduce.planner.plan import plan
from partreduce.topo.errors import InfeasibleError, InputError, PartreduceError, UndecidedError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, Transport
from partreduce.topo.strategies.static import GroupPhases, StaticGroups
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce import Limits, PlanRequest
    from partreduce.topo.cluster import Cluster
    from partreduce.types import CandidateSchedule, Plan

    Floats = npt.NDArray[np.float64]


DOUBLINGS = 40
"""How often a period is squared: 2^40 periods."""


@dataclass(frozen=True)
class Everything:
    """Arrays over schedules: seconds per step, consensus distance (infinite without consensus), period, largest group.

    `gap` is the most rounds in a row in which no group crosses nodes; infinite if none ever does.
    """

    communication: Floats
    consensus_distance: Floats
    period: npt.NDArray[np.int64]
    largest: npt.NDArray[np.int64]
    distinct: npt.NDArray[np.int64]
    gap: Floats


def all_schedules(cluster: Cluster, algorithm: AllReduceAlgorithm, max_period: int) -> Everything:
    """Return all schedules of synchronous plain means of groups, with at most `max_period` phases.

    Only the seconds of one phase are shared with the search.
    """
    n = cluster.num_workers
    # Every partition of the workers, as its groups of two or more.
    partitions = [[block for block in one if len(block) > 1] for one in multiset_partitions(list(range(n)))]
    matrices = np.stack([averaging(n, [(group, 1) for group in groups]) for groups in partitions])  # (A, n, n)
    seconds = np.array([_seconds(cluster, groups, algorithm) for groups in partitions])
    sizes = np.array([max((len(group) for group in groups), default=0) for groups in partitions])
    silent, nodes = sizes == 0, [{*cluster.workers_of(v)} for v in range(cluster.num_nodes)]
    crosses = [any(not any(node.issuperset(group) for node in nodes) for group in groups) for groups in partitions]
    rows: list[tuple[Floats, ...]] = []
    for period in range(1, max_period + 1):
        table = np.array(list(product(range(len(partitions)), repeat=period)))  # (N, period)
        values = np.concatenate(
            [_consensus_distance(matrices[part]) for part in np.array_split(table, 1 + len(table) // 4000)]
        )
        distinct = np.array([len({i for i in row if not silent[i]}) for row in table.tolist()])
        gaps = np.array([_longest_gap([crosses[i] for i in row]) for row in table.tolist()])
        rows.append((seconds[table].mean(1), values, np.full(len(table), period), sizes[table].max(1), distinct, gaps))
    return Everything(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _longest_gap(crosses: list[bool]) -> float:
    at = [t for t, over in enumerate(crosses) if over]
    return max((later - t - 1 for t, later in pairwise([*at, at[0] + len(crosses)])), default=0) if at else math.inf


def _seconds(cluster: Cluster, groups: list[list[int]], algorithm: AllReduceAlgorithm) -> float:
    phases = GroupPhases((Phase.from_groups(cluster.num_workers, groups),))
    schedule = Schedule("one", cluster, StaticGroups(phases=phases))
    assert cluster.hardware is not None
    return communication(schedule, cluster.hardware, algorithm=algorithm).per_step


def _consensus_distance(matrices: Floats) -> Floats:
    """Return the steady mean of tr Σ / n over the phases, shape (N,), of matrices (N, T, n, n)."""
    n = matrices.shape[-1]
    center = np.eye(n) - 1.0 / n
    power = np.broadcast_to(center, matrices[:, 0].shape)
    noise = np.zeros_like(power)
    for t in range(matrices.shape[1]):
        w = matrices[:, t]
        power, noise = w @ power, w @ (noise + center) @ w.swapaxes(1, 2)
    spread = noise
    for _ in range(DOUBLINGS):
        spread = spread + power @ spread @ power.swapaxes(1, 2)
        power = power @ power
        spread = np.minimum(np.maximum(spread, -1e12), 1e12)
    total = np.zeros(len(matrices))
    for t in range(matrices.shape[1]):
        w = matrices[:, t]
        spread = w @ (spread + center) @ w.swapaxes(1, 2)
        total += np.trace(spread, axis1=1, axis2=2)
    settled = np.abs(power).max(axis=(1, 2)) < 1e-6
    return np.where(settled, total / (n * matrices.shape[1]), np.inf)


OVERRUN = 1.0
"""Processor seconds by which a plan may exceed its time limit, for metrics and a proof that had started."""
SLACK = 1e-6
"""Largest relative difference of equal numbers."""
MAX_BASES, STEPS_PER_ROUND = 12, (1, 2, 3, 5, 8, 13, 24)
"""Most schedules of one job, and the steps per round, that are measured with every algorithm, late and synchronous."""
FINEST = (Codec.NONE, Codec.FLOAT16, Codec.BFLOAT16, Codec.INT8)
ROUNDS = 1.011
"""A coarser codec than the recommended one must be faster by more than this factor to count as better."""
PROVED = 1e-4
"""Largest difference between a result that is called optimal and the best one."""


@dataclass
class Outcome:
    """One job's answer: its kind (a status or an error's name), violations, and processor seconds beyond its limit."""

    kind: str
    wrong: list[str] = field(default_factory=list)
    late: float = 0.0


def run(
    job: PlanRequest, *, exhaust: bool = False, again: bool = False, settings: bool = False, overrun: float = OVERRUN
) -> Outcome:
    """Plan a job and check the answer, which may take `overrun` seconds beyond its limit.

    `exhaust` compares with all short schedules, `again` with a second run, `settings` with every algorithm, codec,
    delay and number of steps per round.
    """
    begun, worked = time.monotonic(), time.process_time()
    planned: Plan | None = None
    error: PartreduceError | None = None
    try:
        planned = plan(job)
    except (InfeasibleError, UndecidedError, InputError) as refused:
        error = refused
    except Exception:  # noqa: BLE001 - any other error is what is looked for
        return Outcome("internal error", [traceback.format_exc(limit=-4)])
    seconds = time.monotonic() - begun
    # What other programs take of the core in the meantime is not the planner's.
    core = min(1.0, (time.process_time() - worked) / max(seconds, 1e-9))
    outcome = Outcome(type(error).__name__ if planned is None else str(planned.answer.status))
    if job.time_limit is not None:
        outcome.late = (seconds - job.time_limit) * core
        if outcome.late > overrun:
            outcome.wrong.append(f"took {seconds:.2f} s, {core:.0%} of a core, with a limit of {job.time_limit:.2f} s")
    if planned is not None:
        outcome.wrong += [*_recommend(planned, job), *_front(planned), *_document(planned)]
        outcome.wrong += _settings(planned, job) if settings else []
    if exhaust:
        outcome.wrong += _compare_with_all(job, planned, error)
    if again and job.effort is not None and planned is not None and not planned.answer.capped:
        second = plan(job)
        if not second.answer.capped and json.dumps(second.to_json()) != json.dumps(planned.to_json()):
            outcome.wrong.append("a second run with the same effort and seed answers differently")
    return outcome


def _costs(option: CandidateSchedule) -> tuple[float, ...]:
    spread = math.inf if option.consensus_distance.value is None else option.consensus_distance.value
    drift = math.inf if option.drift.value is None else option.drift.value
    return option.communication, spread, drift, option.step_seconds, option.steps_ratio


def _beats(one: CandidateSchedule, other: CandidateSchedule) -> bool:
    """Return whether an option is as good in all costs, and better in one by more than rounding."""
    ours, theirs = _costs(one), _costs(other)
    return all(a <= b * (1 + 1e-9) + 1e-12 for a, b in zip(ours, theirs, strict=True)) and any(
        a < b * (1 - SLACK) - 1e-9 for a, b in zip(ours, theirs, strict=True)
    )


def _is_finer(option: CandidateSchedule, other: CandidateSchedule) -> bool:
    """Return whether an option rounds no more than another, or is enough faster and communicates enough less."""
    if FINEST.index(option.transport.codec) <= FINEST.index(other.transport.codec):
        return True
    return option.time * ROUNDS < other.time and option.communication * ROUNDS < other.communication


def _keeps(option: CandidateSchedule, job: PlanRequest) -> bool:
    limits, spread = job.limits, option.consensus_distance.value
    if not math.isfinite(option.steps_ratio) or spread is None or option.delay not in job.sync_types:
        return False
    slack = 1 + 1e-9
    budget, value = limits.max_communication, limits.max_consensus_distance
    return (budget is None or option.communication <= budget * slack + 1e-12) and (
        value is None or spread <= float(value) * slack + 1e-12
    )


def _recommend(planned: Plan, job: PlanRequest) -> list[str]:
    """The recommendation keeps the limits, and no candidate that keeps them beats it."""
    chosen, wrong = planned.recommendation, []
    if not _keeps(chosen, job):
        wrong.append(f"the recommendation {chosen.name} breaks a limit")
    for option in planned.options:
        rival = _keeps(option, job)
        if rival and _beats(option, chosen):
            wrong.append(f"{option.name} {_costs(option)} beats the recommendation {chosen.name} {_costs(chosen)}")
    return wrong


def _settings(planned: Plan, job: PlanRequest) -> list[str]:
    """No algorithm, delay, steps per round or codec beats the recommendation within the limits."""
    if not job.compute_times.is_fixed:
        return []
    bases = {
        option.schedule.strategy: option.schedule
        for option in planned.options
        if option.schedule.strategy.steps_per_round == 1 and not option.late
    }
    wrong = []
    for base in [*bases.values()][:MAX_BASES]:
        for algorithm, late, steps_per_round in product(job.algorithms, job.sync_types, STEPS_PER_ROUND):
            strategy = replace(base.strategy, steps_per_round=steps_per_round, transport=Transport())
            if not late.suits(strategy):
                continue
            schedule = replace(base, strategy=replace(strategy, sync=late.sync))
            if not within_gap(schedule, job.limits):
                continue
            for transport in _transports(schedule, job, algorithm):
                option = measure(traveling(schedule, transport), job, algorithm=algorithm)
                if (
                    _keeps(option, job)
                    and _is_finer(option, planned.recommendation)
                    and _beats(option, planned.recommendation)
                ):
                    described = f"{base.name} {transport} {late} steps_per_round={steps_per_round} {_costs(option)}"
                    wrong.append(f"{described} beats {planned.recommendation.name} {_costs(planned.recommendation)}")
    return wrong


def _transports(schedule: Schedule, job: PlanRequest, algorithm: AllReduceAlgorithm) -> list[Transport]:
    plain, coded = [Transport(algorithm=algorithm)], [codec for codec in job.codecs if codec is not Codec.NONE]
    if not coded or schedule.strategy.codec_unsupported_reason(schedule.cluster):
        return plain
    places = [CodecScope.ALL, *([CodecScope.ACROSS_NODES] if algorithm is AllReduceAlgorithm.HIERARCHICAL else [])]
    transports = [Transport(algorithm=algorithm, codec=codec, where=where) for codec in coded for where in places]
    return transports + (plain if Codec.NONE in job.codecs else [])


def _front(planned: Plan) -> list[str]:
    """No schedule on the front but the recommendation is beaten, and all others are on it or no better."""
    wrong = [
        f"{option.name} is on the front and beaten by another there"
        for option in planned.front
        if option is not planned.recommendation and any(_beats(other, option) for other in planned.front)
    ]
    for option in planned.options:
        if not math.isfinite(option.steps_ratio):
            continue
        ours = _costs(option)
        if not any(
            all(a <= b * (1 + SLACK) + 1e-9 for a, b in zip(_costs(other), ours, strict=True))
            for other in planned.front
        ):
            wrong.append(f"{option.name} {ours} was measured, and nothing on the front is as good")
    return wrong


def _document(planned: Plan) -> list[str]:
    document = planned.to_json()
    json.dumps(document, allow_nan=False)
    named = {row["name"] for row in document["front"]}
    wrong = [] if document["recommendation"]["name"] in named else ["the recommendation is not on the front"]
    if planned.proof.without_consensus().verdict == "refuted":
        wrong.append(f"the recommendation {planned.recommendation.name} is refuted")
    if any((option.consensus_distance.value or 0.0) < 0 for option in planned.options):
        wrong.append("a consensus distance is negative")
    return wrong


def _compare_with_all(job: PlanRequest, planned: Plan | None, error: PartreduceError | None) -> list[str]:
    """Claims about all schedules of plain means hold for those with at most two phases."""
    every = all_schedules(job.cluster, job.problem().algorithm, 2)
    fits = _kept_by(every, job.limits)
    if isinstance(error, InfeasibleError) and fits.any():
        return [f"called infeasible ({error}), but {int(fits.sum())} schedules keep all limits"]
    if planned is None or planned.answer.status != "optimal":
        return []
    chosen = planned.recommendation
    best = float(every.consensus_distance[fits].min(initial=math.inf))
    least = float(every.communication[fits].min(initial=math.inf))
    if job.objective is Objective.CONSENSUS_DISTANCE and best < float(chosen.consensus_distance) - PROVED:
        return [f"called optimal at {float(chosen.consensus_distance):.6g}, but {best:.6g} exists"]
    if job.objective is Objective.COMMUNICATION and least < chosen.communication * (1 - PROVED):
        return [f"called optimal at {chosen.communication:.6g} s, but {least:.6g} s exists"]
    return []


def _kept_by(every: Everything, limits: Limits) -> npt.NDArray[np.bool_]:
    """Return which schedules reach consensus within the limits, shape (N,)."""
    bounds = {
        "period": limits.max_period,
        "communication": limits.max_communication,
        "consensus_distance": limits.max_consensus_distance,
        "largest": limits.max_group,
        "distinct": limits.max_distinct_phases,
        "gap": limits.max_gap,
    }
    kept = (getattr(every, name) <= float(most) for name, most in bounds.items() if most is not None)
    return np.logical_and.reduce([np.isfinite(every.consensus_distance), *kept])
