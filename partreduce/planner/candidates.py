"""What is weighed for a job: the catalogue's entries on all axes, and the strategies of each kind that is tried.

Outer steps (DiLoCo) answer links that are slower than computing; their price in steps is what a measured setting needed
(`planner.outer_prices`), and no other setting is proposed. Neighbors that keep a gap, quorums, groups on request, pairs
and servers answer workers or steps that are slow; they are run in virtual time (`planner.trials`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from math import ceil, gcd, inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.planner.axes import Axes, within_limits
from partreduce.planner.delay import Delay
from partreduce.planner.front import PUBLISHED
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.measuring import Label, measure
from partreduce.planner.option import CandidateSchedule, Facts
from partreduce.planner.outer_prices import ERRORS, MEASURED, Measured
from partreduce.planner.outer_prices import FRAGMENTS as MEASURED_FRAGMENTS
from partreduce.planner.slowdown import Slowdown, weighs_quorums
from partreduce.planner.steps_model import Optimizer
from partreduce.planner.travel import timed
from partreduce.planner.trials import ROUNDS, Candidate, memory_bytes
from partreduce.planner.work import MAX_GRAPH_WORKERS, payer, work_of, work_of_setting
from partreduce.schedulers import registry
from partreduce.schedulers.entry import Entry
from partreduce.schedulers.rules.algebra import all_digits, local_ranks, static
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.schedulers.synthesis.cluster_shape import derived_worker_steps
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import SYNCHRONOUS, AllReduceAlgorithm, Codec, DelayedAveraging
from partreduce.topo.strategies.base import Averaging, Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups, GroupSplit, SlowWorkerPolicy
from partreduce.topo.strategies.iteration_gap import UpdateOrder
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import RulePhases
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.quorum import balance, sampled
from partreduce.verify.facts import ScheduleFacts

RESTS = "all-and-rests"
"""The name of averages over all workers with rests between them."""

FIRST = ("allreduce", PUBLISHED[0], "node-then-all")
"""Measured before anything else: what nearly always is among the best, and what users compare with."""

RULES_FIRST = ("rule", "allreduce")
"""Kinds whose metrics cost milliseconds at any size; they also are the strongest competitors."""

NODE_ROUNDS = (1, 3, 7, 15, 23, 2, 5, 11, 19, 4, 9, 13, 17, 21, 6, 8, 10)
"""Rounds inside nodes before one of all, first few that are far apart."""
VARIANTS: dict[str, Sequence[dict[str, object]]] = {
    "local-sgd": [],  # the same schedules as allreduce
    "node-then-all": [{"node_rounds": rounds} for rounds in NODE_ROUNDS],
    "pairs-pairs-all": [{"pair_rounds": rounds} for rounds in (1, 2, 3, 4, 5, 7, 11, 15, 23)],
    "hierarchy": [{"rounds": rounds} for rounds in (1, 2, 3)],
}

REST_ROUNDS = (*range(1, 8), 9, 11, 13, 15, 19, 23)
"""Rounds without any average before one over all workers: where that comes late it is late by one of these only."""
DENSITIES = tuple((m, n) for n in range(3, 13) for m in range(2, n) if gcd(m, n) == 1)
"""Averages over all workers in so many of so many rounds, spread evenly, where not only the time decides."""

PLAIN_ROUNDS = (2, 3, 4, 6, 8, 12, 16, 24)
"""Steps of a round for which All-Reduce is always shown, in addition to those that suit the job best."""


def competitors(
    job: PlanRequest,
    *,
    until: float = inf,
    stop: float = inf,
    clock: Clock | None = None,
    left_out: Callable[[str], None] | None = None,
    names: Sequence[str] | None = None,
) -> list[CandidateSchedule]:
    """Every catalogue entry that fits the cluster, on all axes, measured; entries that cannot run are left out.

    Rules and All-Reduce are measured until the clock's position `stop`, All-Reduce in every step in any case, others,
    baselines first, until `until`; the name of each that the time did not reach goes to `left_out`. With `names` only
    the entries of these names are measured.
    """
    clock = clock or Clock(seconds=MANY_SECONDS)

    pay = payer(clock, stop)

    def fits(schedule: Schedule) -> bool:
        """Whether there is time for a schedule; All-Reduce in every step, the first, is measured in any case."""
        return pay(work_of(schedule, job)) or not options

    options: list[CandidateSchedule] = []
    for name, is_rule, schedules in _sources(job, names or registry.names()):
        if options and clock.passed(stop if is_rule else until):
            if left_out is not None:
                left_out(name)
            continue
        for label, schedule in schedules:
            if not fits(schedule):
                if left_out is not None:
                    left_out(label)
                continue
            plain = schedule.strategy.averages_everyone
            # Where speeds differ, steps per round in proportion to them are the strongest competitors, so they come
            # first.
            for paced in _paced(schedule, job):
                if fits(paced):
                    options += Axes.of(paced, job).options(Label(name=f"paced {label}"))
            options += Axes.of(schedule, job).options(
                Label(name=label), PLAIN_ROUNDS if plain else (), lambda: pay(work_of_setting(job))
            )
            if plain and not any(option.name == label for option in options):
                options.append(measure(schedule, job, label=Label(name=label), algorithm=AllReduceAlgorithm.RING))
    return options


def _sources(job: PlanRequest, names: Sequence[str]) -> Iterator[tuple[str, bool, Iterator[tuple[str, Schedule]]]]:
    """What is measured, in this order: a name, whether its metrics cost little at any size, and its schedules."""
    seen: set[object] = set()
    kinds = {name: registry.entry(name).kind for name in names}
    ordered = sorted(names, key=lambda one: (*(one != first for first in FIRST), one not in PUBLISHED))
    for is_rule in (True, False):
        for name in ordered:
            if (kinds[name] in RULES_FIRST) is is_rule and _offered(entry := registry.entry(name), job):
                yield name, is_rule, _schedules(entry, job, seen)
        if is_rule and FIRST[-1] in names:
            yield RESTS, True, _with_rests(job, seen)


def _schedules(entry: Entry, job: PlanRequest, seen: set[object]) -> Iterator[tuple[str, Schedule]]:
    for parameters in VARIANTS.get(entry.name, [{}]):
        try:
            if entry.why_not(job.cluster, **parameters):
                continue
            schedule = entry.build(job.cluster, **parameters)
        except PartreduceError:
            continue  # an entry whose default parameters do not fit this cluster is no competitor
        if schedule.strategy in seen or not within_limits(schedule, job.limits):
            continue
        seen.add(schedule.strategy)
        yield schedule.name, schedule


def _with_rests(job: PlanRequest, seen: set[object]) -> Iterator[tuple[str, Schedule]]:
    """Averages over all workers, and rounds without any between them."""
    cluster = job.cluster
    ranks, radices = local_ranks(cluster), all_digits(cluster.num_nodes)
    everyone = (Block(ranks, tuple(range(len(radices)))),)
    rounds = [(f"rest_rounds={rests}", 1, rests + 1) for rests in REST_ROUNDS]
    if job.is_limited:
        rounds += [(f"averages={m}, rounds={n}", m, n) for m, n in DENSITIES]
    for words, averages, period in rounds:
        phases = tuple(everyone if t * averages % period < averages else () for t in range(period))
        schedule = Schedule(f"{RESTS}({words})", cluster, static(cluster, RulePhases(radices, phases)))
        if schedule.strategy not in seen and within_limits(schedule, job.limits):
            seen.add(schedule.strategy)
            yield schedule.name, schedule


def _paced(schedule: Schedule, job: PlanRequest) -> Iterator[Schedule]:
    """The schedule with steps per round in proportion to speed where speeds differ, so that nobody waits for the slow.

    Where workers see different data their progress is normalized, so that the slow ones' data count as much.
    """
    strategy = schedule.strategy
    if not schedule.is_phased or strategy.steps_per_round != 1 or strategy.is_delayed:
        return
    if job.cluster.num_workers > MAX_GRAPH_WORKERS:  # metrics of unequal steps per round are dense
        return
    averaging = Averaging.MEAN if job.data is Data.SHUFFLED else Averaging.STEP_NORMALIZED
    for worker_steps in derived_worker_steps(job.cluster):
        if len(set(worker_steps)) > 1:
            unequal = replace(strategy, steps_per_round=worker_steps, averaging=averaging)
            named = Schedule(f"{schedule.name}-paced", schedule.cluster, unequal)
            yield timed(named, SYNCHRONOUS, worker_steps)


def _offered(entry: Entry, job: PlanRequest) -> bool:
    """Outer steps have prices of their own, by which `KINDS` weighs them."""
    if entry.kind == "outer":
        return False
    return entry.kind in RULES_FIRST or job.cluster.num_workers <= MAX_GRAPH_WORKERS


GRAPHS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ring", {}),
    ("ring-based", {}),
    ("double-ring", {}),
    ("exponential", {}),
    ("clustered", {}),
    ("clustered", {"links": 2}),
    ("clustered", {"across": "complete"}),
)
"""Those of Hop's evaluation, one of degree log n, and graphs that know who shares a node."""
KEPT = 3
"""Graphs in an order, serial or parallel, that are run under all settings."""
MOST_ON_REQUEST = 64
"""Workers: messages of all are on the links at once, which takes a run that grows with their square."""
FRAGMENTS = (2, 4, 8)
"""Into how many a model is cut where its fragments are merged late, as far as they fit into a round."""
LEAST_ROUNDS, MOST_ROUNDS, SLOW_STEPS = 120, 480, 12
"""Rounds of a run under a quorum, and steps of the slowest worker in it."""
MOST_LATE = 64
"""The longest queue that is proposed for a quorum."""
ORDER_LABELS = {UpdateOrder.ADAPT_THEN_COMBINE: "serial", UpdateOrder.DPSGD: "parallel"}
"""What names of candidates say of the update order."""
Pay = Callable[[float], bool]


class Kind(NamedTuple):
    """A kind that is tried: its name in sentences, its share of the time, whether a job weighs it, and what is tried.

    A quick answer leaves out those whose absence never cost a job anything.
    """

    name: str
    share: float
    weighs: Callable[[PlanRequest], bool]
    candidates: Callable[[PlanRequest, Pay], Iterator[Candidate]]
    is_quick: bool = True


def is_open(job: PlanRequest) -> bool:
    """Whether a job leaves it open who averages with whom and when."""
    return job.sync is None and not (job.gap or job.quorum or job.tables) and job.objective is Objective.BALANCED


def is_thin(job: PlanRequest) -> bool:
    """Whether the sums of one step take longer than its computing."""
    everyone = Schedule("all", job.cluster, AllReduce())
    return communication(everyone, job.hardware, algorithm=job.algorithms[-1]).per_step > job.compute_times().base


def why_no_outer_steps(job: PlanRequest) -> str:
    """Why outer steps have no price here, as a clause; empty where they have one, or something else is asked for."""
    if not is_open(job):
        return "another kind is asked for"
    if job.pilot is not None:
        return "a pilot does not price them"
    if job.data is not Data.SHUFFLED:
        return "they were measured on shuffled data"
    if job.optimizer not in MEASURED:
        return f"they were measured under {', '.join(MEASURED)}, which --optimizer can say"
    return ""


def _outer(job: PlanRequest, pay: Pay) -> Iterator[Candidate]:  # noqa: ARG001 - the signature of all
    for measured in MEASURED[Optimizer(job.optimizer or "")]:
        name = "regions-diloco" if measured.in_nodes else "diloco"
        outer: dict[str, object] = {
            "every": measured.every, "lr": float(measured.outer.lr), "momentum": float(measured.outer.momentum),
        }  # fmt: skip
        late: dict[str, object] = {"late": measured.late, "alpha": float(measured.alpha)}
        more: list[dict[str, object]] = [late | {"fragments": count} for count in FRAGMENTS] if measured.late else [{}]
        for one in more:
            with suppress(PartreduceError):  # a cluster that has no such
                schedule = registry.build(name, job.cluster, **outer, **one)
                if within_limits(schedule, job.limits):
                    make, work = partial(_priced_outer, schedule, measured, job), work_of(schedule, job)
                    yield Candidate(
                        "outer", schedule.name, schedule.name, schedule, job.algorithms[0], work=work, make=make
                    )


def _priced_outer(schedule: Schedule, measured: Measured, job: PlanRequest) -> CandidateSchedule:
    """With the seconds of the event graph, or of samples where step times vary, and the measured price."""
    optimizer, option = Optimizer(job.optimizer or ""), measure(schedule, job, label=Label(name=schedule.name))
    arrays = ScheduleFacts(option.schedule).numbers("memory")["arrays"]
    cost = communication(option.schedule, job.hardware, algorithm=option.algorithm)
    basis = "9 of 10 measured outer steps on kinds of networks held out"
    return replace(
        option,
        steps_ratio=measured.ratio,
        model=replace(option.model, errors=((str(job.data), ERRORS[optimizer]),), late_errors=(), basis=basis),
        extrapolated=option.schedule.strategy.payload.num_fragments > MEASURED_FRAGMENTS,
        facts=Facts(
            kind="outer",
            words=schedule.name,
            memory_bytes=arrays * (job.hardware.model_bytes or 0),
            least_share=1.0,
            gradients=float(schedule.num_workers),
            peak=cost.peak_nic_bytes,
            by_task=measured.by_task(optimizer),
            rate=measured.share,
        ),
    )


def _weighs_gaps(job: PlanRequest) -> bool:
    is_small = job.cluster.num_workers <= MAX_GRAPH_WORKERS and not job.quorum
    return is_small and (bool(job.gap) or (job.gap is None and not Slowdown.of(job).is_even))


def _gaps(job: PlanRequest, pay: Pay) -> Iterator[Candidate]:
    """All settings of the graphs that are best at even speeds, as far as their queues may be as large.

    If none may, and nothing else is asked for, the smallest one.
    """
    slowdown, too_large, kept = Slowdown.of(job), list[tuple[float, Candidate]](), 0
    for base, order in sorted(_graphs(job, pay), key=lambda one: (one[0].time, one[0].name)):
        fits = False
        for words, gap in slowdown.settings(base.schedule.strategy.graphs[0], order):
            with suppress(PartreduceError):  # a setting that does not fit the graph
                strategy = replace(base.schedule.strategy, sync=gap)
                schedule = replace(base.schedule, name=f"{base.schedule.name} gap: {words}", strategy=strategy)
                name, held = f"{schedule.name}, {ORDER_LABELS[order]}", memory_bytes(strategy, job)
                one = Candidate("iteration_gap", name, words, schedule, AllReduceAlgorithm.RING, rounds=ROUNDS)
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
    """The graphs in both orders, with their metrics and costs if all workers took the same time in all steps."""
    even = calm(job)
    for name, parameters in GRAPHS:
        with suppress(PartreduceError):  # a graph that does not fit this cluster, or whose metrics are out of reach
            entry = registry.entry(name)
            if entry.why_not(job.cluster, **parameters):
                continue
            schedule = entry.build(job.cluster, **parameters)
            if not within_limits(schedule, job.limits) or not pay(work_of(schedule, even, 2)):
                continue
            for order, sync in ((UpdateOrder.ADAPT_THEN_COMBINE, SYNCHRONOUS), (UpdateOrder.DPSGD, DelayedAveraging())):
                yield measure(timed(schedule, sync, 1), even, algorithm=AllReduceAlgorithm.RING), order


def calm(job: PlanRequest) -> PlanRequest:
    """The same job with equal workers, synchronous rounds and no codec."""
    cluster = replace(job.cluster, hardware=replace(job.hardware, slowdown=(), jitter=0.0))
    plain = {"sync": Delay.SYNCHRONOUS, "codec": Codec.NONE, "quorum": False, "gap": False}
    return replace(job, cluster=cluster, disturbance=None, **plain)  # type: ignore[arg-type]


def all_reduce(job: PlanRequest) -> CandidateSchedule:
    """Synchronous All-Reduce in every step, without a codec, by its cheapest algorithm."""
    return measure(registry.build("allreduce", job.cluster), replace(job, codec=Codec.NONE))


def _quorums(job: PlanRequest, pay: Pay) -> Iterator[Candidate]:  # noqa: ARG001 - the signature of all
    base, count = all_reduce(job), job.cluster.num_workers
    if not within_limits(base.schedule, job.limits):
        return
    seconds = sampled(job.compute_times(), count, seed=job.seed)
    for setting in quorum_settings(base, job, seconds):
        words = str(setting.quorum) if isinstance(setting.quorum, QuorumStart) else f"{setting.quorum} of {count}"
        name, strategy = (
            f"quorum: {words}, up to {setting.staleness} late",
            replace(base.schedule.strategy, sync=setting),
        )
        schedule = replace(base.schedule, name=name, strategy=strategy, certificate=None)
        period = _round_seconds(base, setting, job, seconds)
        wanted = SLOW_STEPS * float(seconds.mean(axis=0).max()) / period if period else 0.0
        rounds = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, wanted)))  # in which the slowest worker has some calls
        yield Candidate("partial", name, words, schedule, base.algorithm, rounds=rounds)


def quorum_settings(
    base: CandidateSchedule, job: PlanRequest, seconds: npt.NDArray[np.float64]
) -> list[PartialAllReduce]:
    """Of All-Reduce: all but the slow workers or one, half of them, majority, and solo, with queues that suit them.

    A queue holds the rounds which pass during the longest step, so that nobody waits for it; it is shorter where memory
    does not allow that. `seconds` (samples, num_workers) are those of steps.
    """
    count, slow = job.cluster.num_workers, len(Slowdown.of(job).slow)
    numbers = [number for number in (count - max(1, slow), count - 1, count // 2) if 2 <= number < count]
    longest = float(np.quantile(seconds, 1 - 1 / (4 * count)))  # of which each worker has one in 4n
    found = []
    starts: list[QuorumStart | int] = [*dict.fromkeys(numbers), QuorumStart.MAJORITY, QuorumStart.SOLO]
    for start in starts:
        made = PartialAllReduce(quorum=start)
        period = _round_seconds(base, made, job, seconds)
        wanted = min(MOST_LATE, ceil(longest / period) + 1) if period else 1
        while wanted > 1 and job.max_queues is not None:
            if (
                memory_bytes(replace(base.schedule.strategy, sync=replace(made, staleness=wanted)), job)
                <= job.max_queues
            ):
                break
            wanted -= 1
        found.append(replace(made, staleness=max(1, wanted)))
    return found


def _round_seconds(
    base: CandidateSchedule, setting: PartialAllReduce, job: PlanRequest, seconds: npt.NDArray[np.float64]
) -> float:
    """About how long a round under a quorum takes."""
    word = max(job.hardware.inside.latency, job.hardware.nic.latency)
    return balance(seconds, setting, word=word, sum_seconds=base.communication).seconds


def _weighs_on_request(job: PlanRequest) -> bool:
    return is_open(job) and job.cluster.num_workers <= MOST_ON_REQUEST and not Slowdown.of(job).is_even


def _groups(cluster: Cluster) -> Iterator[tuple[str, Strategy]]:
    """Prague's divisions with stragglers that hold nobody up, in pairs and threes; the rare meeting of all."""
    make = partial(DynamicGroups, slow_worker_policy=SlowWorkerPolicy.DEFER)
    for division, size in product((GroupSplit.RANDOM, GroupSplit.GLOBAL, GroupSplit.INTER_INTRA), (2, 3)):
        yield f"generated: {division}, groups of {size}", make(division=division, group_size=size)
    if max(cluster.node_sizes()) > 1:
        for every in (4, 16):
            split = GroupSplit.NODE_THEN_ALL
            yield f"generated: {split}, all every {every}", make(division=split, all_every=every)


def _pairs(cluster: Cluster) -> Iterator[tuple[str, Strategy]]:
    """Every second worker asks, so that there are some of both sides on a node; after its step or beside the next."""
    active = tuple(range(0, cluster.num_workers, 2))
    yield "pairwise: AD-PSGD", Pairwise(active=active)
    yield "pairwise: AD-PSGD, late", Pairwise(active=active, sync=DelayedAveraging())


def _servers(cluster: Cluster) -> Iterator[tuple[str, Strategy]]:
    """A shard on each node."""
    hosts = tuple(cluster.workers_of(node)[0] for node in range(cluster.num_nodes))
    yield "server: synchronous", Server(hosts=hosts)
    yield "server: asynchronous", Server(hosts=hosts, synchronous=False)


def _on_request(
    kind: str,
    listed: Callable[[Cluster], Iterator[tuple[str, Strategy]]],
    job: PlanRequest,
    pay: Pay,  # noqa: ARG001
) -> Iterator[Candidate]:
    """The strategies of a kind that suit the cluster and the limits."""
    for name, strategy in listed(job.cluster):
        size = getattr(strategy, "group_size", 2)
        with suppress(PartreduceError):
            schedule = Schedule(name, job.cluster, strategy)
            if job.limits.max_group is None or size <= job.limits.max_group:
                yield Candidate(kind, name, name, schedule, strategy.transport.algorithm)


KINDS: dict[str, Kind] = {
    "outer": Kind("outer steps", 0.1, lambda job: not why_no_outer_steps(job) and is_thin(job), _outer),
    "iteration_gap": Kind("neighbors that keep a gap", 0.15, _weighs_gaps, _gaps),
    "partial": Kind("quorums", 0.15, weighs_quorums, _quorums),
    "dynamic_groups": Kind(
        "groups on request", 0.05, _weighs_on_request, partial(_on_request, "dynamic_groups", _groups), is_quick=False
    ),
    "pairwise": Kind("pairs", 0.05, _weighs_on_request, partial(_on_request, "pairwise", _pairs)),
    "server": Kind("servers", 0.05, _weighs_on_request, partial(_on_request, "server", _servers), is_quick=False),
}
"""By `Facts.kind`, in the order in which they are tried: DiLoCo's, Hop's, eager-SGD's, Prague's and AD-PSGD's kinds."""


def weighed_kinds(job: PlanRequest) -> dict[str, Kind]:
    """Those that this job weighs; one may be selected by its name."""
    is_open_to_all = job.searches or job.take is not None
    return {word: kind for word, kind in KINDS.items() if (is_open_to_all or kind.is_quick) and kind.weighs(job)}
