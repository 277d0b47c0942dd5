"""List the candidates of kinds of strategy that are not in the catalogue, and find the slowdowns that they absorb.

Outer steps (DiLoCo) suit links that are slower than computing; only settings whose steps were measured are proposed
(`steps_model.OUTER_SETTINGS`). Iteration gaps, quorums, groups formed on request, pairs and servers suit slow workers
or occasional slow steps; they are simulated (`planner.trials`). Hop's paper (sections 3.4 and 5) has two kinds of
heterogeneity: occasional long steps of any worker, absorbed by staleness or backup workers; and a worker that is slow
in every step, which skips steps while its neighbors do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil
from typing import NamedTuple

import numpy as np

from partreduce.planner.axes import within_limits
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.measuring import MAX_GRAPH_WORKERS, measure, with_timing, work_of
from partreduce.planner.option import CandidateSchedule, Facts
from partreduce.planner.steps_model import (
    OUTER_ERRORS,
    OUTER_FRAGMENTS,
    OUTER_SETTINGS,
    Optimizer,
    OuterSetting,
)
from partreduce.planner.trials import ROUNDS, Candidate, memory_bytes
from partreduce.schedulers import registry
from partreduce.topo.errors import PartreduceError
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import SYNCHRONOUS, AllReduceAlgorithm, Codec, DelayedAveraging, Sync
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups, GroupSplit, SlowWorkerPolicy
from partreduce.topo.strategies.iteration_gap import IterationGap, SkipPolicy, UpdateOrder
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.strategies.server import Server
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.quorum import balance, sample_seconds
from partreduce.verify.facts import ScheduleFacts

SLOW, SPIKE = 1.25, 1.2
"""Multiple of the median worker's compute time from which a worker counts as slow; and multiple of the usual step time
from which long steps count."""
SAMPLED_STEPS = 64
MOST_BY_THE_WAY = 256
"""Most workers for which quorums are considered unless the job asks for them."""
MOST_BEHIND, MOST_SKIPPED = 8, 32
"""Largest staleness, and most steps that a worker may skip at once, to propose."""
GRAPHS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ring", {}), ("ring-based", {}), ("double-ring", {}), ("exponential", {}), ("clustered", {}),
    ("clustered", {"links": 2}), ("clustered", {"across": "complete"}),
)  # fmt: skip
"""The graphs of Hop's evaluation, one of degree log n, and graphs that use the placement on nodes."""
KEPT = 3
"""Most graphs that are run with all settings; a graph in both update orders, serial and parallel, counts twice."""
MOST_ON_REQUEST = 64
"""Most workers for which groups on request are simulated; the cost of a run grows with the square of the workers."""
FRAGMENTS = (2, 4, 8)
"""Numbers of fragments to try for outer steps whose fragments are merged late."""
LEAST_ROUNDS, MOST_ROUNDS, SLOW_STEPS = 120, 480, 12
"""Minimum and maximum rounds to simulate under a quorum, and the steps that the slowest worker should take in them."""
MOST_LATE = 64
"""The longest queue of results that is proposed for a quorum."""
ORDERS: dict[UpdateOrder, tuple[str, Sync]] = {
    UpdateOrder.ADAPT_THEN_COMBINE: ("serial", SYNCHRONOUS),
    UpdateOrder.DPSGD: ("parallel", DelayedAveraging()),
}
"""For each update order, its name in candidates' names, and the `Sync` without an iteration gap that delays as much."""

Pay = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How unequal the workers' step times are.

    `slow` lists the permanently slow workers, each with its step time over the median worker's. `spike` is the ratio of
    a long step, which a worker has about once in 4n steps, to a usual one; 1 if all steps take equally long.
    """

    slow: tuple[tuple[int, float], ...]
    spike: float

    @classmethod
    def of(cls, job: PlanRequest) -> Slowdown:
        """Return the slowdowns of a job's workers, from 64 sampled steps (with the job's seed) if step times vary."""
        times, count = job.compute_times, job.cluster.num_workers
        if times.is_fixed and not times.slowdown:  # a table of all workers would cost more than everything else
            return cls((), 1.0)
        fixed = times.fixed(count)  # (n,)
        usual = float(np.sort(fixed)[(count - 1) // 2])  # with two workers the faster one
        late = np.flatnonzero(fixed >= SLOW * usual).tolist() if usual > 0 else []
        slow = tuple((worker, round(float(fixed[worker] / usual), 9)) for worker in late)
        if times.is_fixed:
            return cls(slow, 1.0)
        even, rng = replace(times, slowdown=()), np.random.default_rng(job.seed)
        sampled = np.concatenate([even.step_seconds(count, step, rng) for step in range(SAMPLED_STEPS)])
        usual = float(np.median(sampled))
        return cls(slow, round(float(np.quantile(sampled, 1 - 1 / (4 * count))) / usual, 9) if usual > 0 else 1.0)

    @property
    def has_spikes(self) -> bool:
        return self.spike >= SPIKE

    @property
    def is_even(self) -> bool:
        """Return whether all workers and steps are about equally fast."""
        return not self.slow and not self.has_spikes

    def gaps(self, graph: Round, order: UpdateOrder) -> dict[str, IterationGap]:
        """Return, by description, iteration gaps of Hop's paper that absorb these slowdowns; the last is the plain gap.

        Staleness s absorbs a step that takes s + 1 times as long. Backups let a neighbor of a slow worker continue
        without its update, and tokens let it run ahead for the length of a slow step.
        """
        plain, found = IterationGap(update_order=order), dict[str, IterationGap]()
        behind = min(MOST_BEHIND, max(1, ceil(self.spike) - 1))
        has_two = np.bincount(graph.targets, minlength=graph.num_workers).min() >= 2
        if self.has_spikes and not self.slow:
            found[f"staleness {behind}"] = replace(plain, staleness=behind)
            if has_two:
                found["backup 1"] = replace(plain, max_ig=behind + 1, backup=1)
        if not self.slow:
            return found | {"standard": plain}
        factor = min(MOST_SKIPPED, ceil(max(f for _, f in self.slow)))
        is_slow = np.isin(graph.sources, [worker for worker, _ in self.slow])  # (edges,)
        spare = np.bincount(graph.targets, weights=is_slow, minlength=graph.num_workers).astype(int).tolist()
        skip = SkipPolicy(limit=max(2, factor))
        # Long steps of other workers come on top of the slow ones, so neighbors need more tokens to continue.
        most = factor * (2 if self.has_spikes else 1) + 1
        only_slow = replace(plain, max_ig=most, backup=tuple(spare), skip=skip)
        for_slow = f"skip {skip.limit}, backup for neighbors of slow workers"
        if not self.has_spikes:
            found[for_slow] = only_slow
        elif has_two:
            everywhere = tuple(max(1, number) for number in spare)
            found[f"skip {skip.limit}, backup"] = replace(only_slow, backup=everywhere)
        behind = min(MOST_BEHIND, max(behind, factor))
        found[f"{for_slow}, staleness {behind}"] = replace(only_slow, staleness=behind)
        return found | {"standard": plain}


def is_thin(job: PlanRequest) -> bool:
    """Return whether links are slow: an All-Reduce of the model takes longer than the computing of a step."""
    everyone = Schedule("all", job.cluster, AllReduce())
    return communication(everyone, job.hardware, algorithm=job.algorithms[-1]).per_step > job.compute_times.base


def why_no_outer_steps(job: PlanRequest) -> str:
    """Return why the job excludes outer steps (DiLoCo), as a clause of a sentence; empty if it does not."""
    reasons = {
        "another kind is asked for": not job.is_open,
        "a pilot does not price them": job.pilot is not None,
        "they were measured on shuffled data": job.data is not Data.SHUFFLED,
        f"they were measured under {', '.join(OUTER_SETTINGS)}, which --optimizer can say": (
            job.optimizer not in OUTER_SETTINGS
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _outer(job: PlanRequest, _pay: Pay) -> Iterator[Candidate]:
    for setting in OUTER_SETTINGS[Optimizer(job.optimizer or "")]:
        parameters: dict[str, object] = {
            "every": setting.every, "lr": float(setting.outer.lr), "momentum": float(setting.outer.momentum),
        }  # fmt: skip
        late: dict[str, object] = {"late": setting.late, "alpha": float(setting.alpha)}
        for more in [late | {"fragments": count} for count in FRAGMENTS] if setting.late else [{}]:
            with suppress(PartreduceError):  # a cluster that has no such
                name = "regions-diloco" if setting.in_nodes else "diloco"
                schedule = registry.build(name, job.cluster, **parameters, **more)
                if within_limits(schedule, job.limits):
                    make = partial(_price_outer, schedule, setting, job)
                    work = work_of(schedule, job)
                    yield Candidate("outer", schedule.name, schedule.name, schedule, seconds=work, make=make)


def _price_outer(schedule: Schedule, setting: OuterSetting, job: PlanRequest) -> CandidateSchedule:
    """Return the candidate of a schedule with outer steps (DiLoCo): predicted seconds, and the measured steps ratio."""
    optimizer, option = Optimizer(job.optimizer or ""), measure(schedule, job)
    arrays = ScheduleFacts(option.schedule).numbers("memory")["arrays"]
    cost = communication(option.schedule, job.hardware)
    basis = "9 of 10 measured outer steps on kinds of networks held out"
    facts = Facts(
        kind="outer",
        words=schedule.name,
        memory_bytes=arrays * (job.hardware.model_bytes or 0),
        least_share=1.0,
        gradients=float(schedule.num_workers),
        peak=cost.peak_nic_bytes,
        by_task=setting.by_task(optimizer),
        rate=setting.share,
    )
    return replace(
        option,
        steps_ratio=setting.ratio,
        model=replace(option.model, errors=((str(job.data), OUTER_ERRORS[optimizer]),), late_errors=(), basis=basis),
        extrapolated=option.schedule.strategy.payload.num_fragments > OUTER_FRAGMENTS,
        facts=facts,
    )


def _weighs_gaps(job: PlanRequest) -> bool:
    is_small = job.cluster.num_workers <= MAX_GRAPH_WORKERS and not job.quorum
    return is_small and (bool(job.gap) or (job.gap is None and not Slowdown.of(job).is_even))


def _gaps(job: PlanRequest, pay: Pay) -> Iterator[Candidate]:
    """Yield candidates of Hop: the `KEPT` graphs that are best at even speeds, with all gaps whose queues fit.

    If no queue fits and the job asks for gaps, yield the candidate with the smallest queues. `pay` is as in `Kind`.
    """
    slowdown, too_large, kept = Slowdown.of(job), list[tuple[float, Candidate]](), 0
    for base, order in sorted(_graphs(job, pay), key=lambda one: (one[0].time, one[0].name)):
        fits = False
        for words, gap in slowdown.gaps(base.schedule.strategy.graphs[0], order).items():
            with suppress(PartreduceError):  # a setting that does not fit the graph
                strategy = replace(base.schedule.strategy, sync=gap)
                schedule = replace(base.schedule, name=f"{base.schedule.name} gap: {words}", strategy=strategy)
                name, held = f"{schedule.name}, {ORDERS[order][0]}", memory_bytes(strategy, job)
                one = Candidate("iteration_gap", name, words, schedule, rounds=ROUNDS)
                if job.max_queues is not None and held > job.max_queues:
                    too_large.append((held, one))
                    continue
                fits = True
                yield one
        kept += fits
        if kept == KEPT:
            return
    if too_large and job.gap and not kept:
        yield min(too_large, key=lambda one: one[0])[1]


def _graphs(job: PlanRequest, pay: Pay) -> Iterator[tuple[CandidateSchedule, UpdateOrder]]:
    """Yield (candidate, update order) for each graph that fits, with averages after and during computing.

    Metrics and costs are for equal and constant step times. `pay` is as in `Kind`.
    """
    hardware = replace(job.hardware, slowdown=(), jitter=0.0)
    even = replace(job, cluster=replace(job.cluster, hardware=hardware), disturbance=None, codec=Codec.NONE)
    for name, parameters in GRAPHS:
        with suppress(PartreduceError):  # a graph that does not fit this cluster, or whose metrics are out of reach
            entry = registry.entry(name)
            if entry.why_not(job.cluster, **parameters):
                continue
            schedule = entry.build(job.cluster, **parameters)
            if within_limits(schedule, job.limits) and pay(work_of(schedule, even, 2)):
                for order, (_, sync) in ORDERS.items():
                    yield measure(with_timing(schedule, sync, 1), even, algorithm=AllReduceAlgorithm.RING), order


def all_reduce(job: PlanRequest) -> CandidateSchedule:
    """Return the candidate of synchronous All-Reduce in every step, without a codec, by its cheapest algorithm."""
    return measure(registry.build("allreduce", job.cluster), replace(job, codec=Codec.NONE))


def _weighs_quorums(job: PlanRequest) -> bool:
    """Return whether the job asks for quorums, or allows any kind of strategy and its step times differ."""
    if job.quorum is not None:
        return job.quorum
    is_small = job.cluster.num_workers <= MOST_BY_THE_WAY
    return is_small and job.is_open and not Slowdown.of(job).is_even


def _quorums(job: PlanRequest, _pay: Pay) -> Iterator[Candidate]:
    """Yield quorums: a round waits for all but the slow workers, for all but one, for half, or for fewer.

    The last are eager-SGD's majority and solo: a round starts when a drawn worker, or the first one, arrives. The queue
    of each holds the rounds that pass during the longest step, so that no worker waits for it, if memory allows that.
    """
    base, count, slow = all_reduce(job), job.cluster.num_workers, len(Slowdown.of(job).slow)
    if not within_limits(base.schedule, job.limits):
        return
    seconds = sample_seconds(job.compute_times, count, seed=job.seed)  # (samples, num_workers)
    longest = float(np.quantile(seconds, 1 - 1 / (4 * count)))  # each worker has one such step in 4n
    slowest = float(seconds.mean(axis=0).max())
    most = float("inf") if job.max_queues is None else job.max_queues
    word = max(job.hardware.inside.latency, job.hardware.nic.latency)
    numbers = [number for number in (count - max(1, slow), count - 1, count // 2) if 2 <= number < count]
    strategy = base.schedule.strategy
    starts: list[QuorumStart | int] = [*dict.fromkeys(numbers), QuorumStart.MAJORITY, QuorumStart.SOLO]
    for start in starts:
        sync = PartialAllReduce(quorum=start)
        period = balance(seconds, sync, word=word, sum_seconds=base.communication).seconds
        late = min(MOST_LATE, ceil(longest / period) + 1) if period else 1
        while late > 1 and memory_bytes(replace(strategy, sync=replace(sync, staleness=late)), job) > most:
            late -= 1
        words = str(start) if isinstance(start, QuorumStart) else f"{start} of {count}"
        name, waits = f"quorum: {words}, up to {late} late", replace(strategy, sync=replace(sync, staleness=late))
        schedule = replace(base.schedule, name=name, strategy=waits, certificate=None)
        wanted = SLOW_STEPS * slowest / period if period else 0.0  # so that the slowest worker takes some steps
        rounds = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, wanted)))
        yield Candidate("partial", name, words, schedule, rounds=rounds)


def _weighs_on_request(job: PlanRequest) -> bool:
    return job.is_open and job.cluster.num_workers <= MOST_ON_REQUEST and not Slowdown.of(job).is_even


def _on_request(kind: str, job: PlanRequest, _pay: Pay) -> Iterator[Candidate]:
    """Yield the candidates of a `kind` without fixed groups that suit the cluster and the limits.

    "dynamic_groups" are Prague's, of two or three workers, so that stragglers delay no other group, or inside nodes
    with rare averages over all. In "pairwise" every second worker is active. A "server" has one shard on each node.
    """
    cluster, defer = job.cluster, SlowWorkerPolicy.DEFER
    strategies: dict[str, Strategy] = {}
    if kind == "dynamic_groups":
        for division, size in product((GroupSplit.RANDOM, GroupSplit.GLOBAL, GroupSplit.INTER_INTRA), (2, 3)):
            groups = DynamicGroups(division=division, group_size=size, slow_worker_policy=defer)
            strategies[f"generated: {division}, groups of {size}"] = groups
        for every in (4, 16) if max(cluster.node_sizes()) > 1 else ():
            groups = DynamicGroups(division=GroupSplit.NODE_THEN_ALL, all_every=every, slow_worker_policy=defer)
            strategies[f"generated: {groups.division}, all every {every}"] = groups
    elif kind == "pairwise":
        pairs = Pairwise(active=tuple(range(0, cluster.num_workers, 2)))
        strategies = {
            "pairwise: AD-PSGD": pairs,
            "pairwise: AD-PSGD, late": replace(pairs, sync=DelayedAveraging()),
        }
    else:
        server = Server(hosts=tuple(cluster.workers_of(node)[0] for node in range(cluster.num_nodes)))
        strategies = {"server: synchronous": server, "server: asynchronous": replace(server, synchronous=False)}
    for name, strategy in strategies.items():
        with suppress(PartreduceError):
            schedule = Schedule(name, cluster, strategy)
            if job.limits.max_group is None or getattr(strategy, "group_size", 2) <= job.limits.max_group:
                yield Candidate(kind, name, name, schedule)


class Kind(NamedTuple):
    """A kind of strategy among the candidates of a job.

    `name` is used in sentences, `share` is its fraction of the planning time, `weighs` returns whether a job considers
    the kind, and `candidates` yields its schedules (a `Pay` charges nominal seconds and returns whether there is time).
    The quick effort omits kinds without `is_quick`, which were never the best ones for a job.
    """

    name: str
    share: float
    weighs: Callable[[PlanRequest], bool]
    candidates: Callable[[PlanRequest, Pay], Iterator[Candidate]]
    is_quick: bool = True


KINDS: dict[str, Kind] = {
    "outer": Kind("outer steps", 0.1, lambda job: not why_no_outer_steps(job) and is_thin(job), _outer),
    "iteration_gap": Kind("neighbors that keep a gap", 0.15, _weighs_gaps, _gaps),
    "partial": Kind("quorums", 0.15, _weighs_quorums, _quorums),
    "dynamic_groups": Kind(
        "groups on request", 0.05, _weighs_on_request, partial(_on_request, "dynamic_groups"), is_quick=False
    ),
    "pairwise": Kind("pairs", 0.05, _weighs_on_request, partial(_on_request, "pairwise")),
    "server": Kind("servers", 0.05, _weighs_on_request, partial(_on_request, "server"), is_quick=False),
}
"""Kinds of strategy by `Facts.kind`, in the order in which they are tried: DiLoCo, Hop, eager-SGD, Prague, AD-PSGD."""


def weighed_kinds(job: PlanRequest) -> dict[str, Kind]:
    """Return the kinds of strategy that a job considers, by `Facts.kind`."""
    is_open_to_all = job.searches or job.take is not None
    return {word: kind for word, kind in KINDS.items() if (is_open_to_all or kind.is_quick) and kind.weighs(job)}
