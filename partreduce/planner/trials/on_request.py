"""Groups on request, pairs and servers: what decides while the job runs whom a worker averages with.

Each is run in virtual time by the objects of the run-time, on links that all share. Where models meet, the meetings of
the run are carried out on vectors, which gives the consensus distance and the drift that the steps model prices; where
gradients are added to parameters that others changed meanwhile, their mean age is priced as that of a quorum is.

What is not calibrated is priced pessimistically where it decides (`Facts.more`). AD-PSGD beside its computing needed
42.2 / 27.7 = 1.53 times All-Reduce's steps in rehearsal on the lab's digits, each at its best rate, and 70 / 43 = 1.63
times on the wire; groups on request 0.93 to 1.03 times (benchmarks/lab/rates.json, results/lab-baselines.md). So pairs
pay at least the second at worst, and groups the error that the steps model states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import pushed_by
from partreduce.planner.option import CandidateSchedule, Facts, LongerRun
from partreduce.planner.recommend import ms
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.trials.kit import PER_EVENT, Kind, Trial, Trials, error_of, memory_bytes
from partreduce.planner.trials.quorum_runs import price_of
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.groups import run_groups
from partreduce.schedulers.simulator.pairs import run_pairs
from partreduce.schedulers.simulator.replay import squares_apart
from partreduce.schedulers.simulator.servers import run_servers
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.metrics.base import Kind as MetricKind
from partreduce.topo.metrics.base import Metric, absent
from partreduce.topo.metrics.late_distance import late_distance_like
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import DelayedAveraging
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups, GroupSplit, SlowWorkerPolicy
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.server import Server

MOST_WORKERS = 64
"""Messages of all are on the links at once, which takes a run that grows with their square."""
ROUNDS, STEADY_ROUNDS = 80, 160
"""Of a run, and of the first one that shows whether the consensus distance is steady."""
WARM_UP = 4
"""One part of so many of a run is left out."""
COLUMNS = 64
"""Columns of noise."""
PAIRS_AT_WORST = 0.63
"""What AD-PSGD needed more than All-Reduce's steps where it was measured."""


def is_open(job: PlanRequest) -> bool:
    """Whether a job leaves it open who averages with whom and when."""
    return job.sync is None and not (job.gap or job.quorum or job.tables) and job.objective is Objective.BALANCED


class Meetings:
    """Carries out the meetings of a run on noise, and on one unit vector for each worker. O(n · numbers) for each.

    `apart` holds, after each meeting, how many rounds workers have ended on average and at most, and squared distances
    to the mean: of noise, and of pushes whose mean is zero, by worker and by node.
    """

    def __init__(self, cluster: Cluster, *, seed: int) -> None:
        count = cluster.num_workers
        self._rng = np.random.default_rng(seed)
        self._on_node = np.eye(cluster.num_nodes)[cluster.node_of()]  # (num_workers, num_nodes)
        self._now, self._done = np.zeros((count, COLUMNS + count)), np.zeros(count, dtype=np.int64)
        self.apart: list[tuple[float, float, float, float, float]] = []

    def meet(self, members: Sequence[int], done: npt.NDArray[np.int64]) -> None:
        now, count, listed = self._now, len(done), list(members)
        steps = done - self._done
        self._done = done.copy()
        now[:, :COLUMNS] += np.sqrt(steps)[:, None] * self._rng.standard_normal((count, COLUMNS))
        now[np.arange(count), COLUMNS + np.arange(count)] += steps
        now[listed] = now[listed].mean(axis=0)
        noise, by_worker, by_node = squares_apart(now[listed] - now.mean(axis=0), self._on_node)
        self.apart.append((float(done.mean()), float(done.max()), noise, by_worker, by_node))

    def mean(self, num_rounds: int, part: int = 1) -> tuple[float, float, float]:
        """The squared distances in one `part` of a run of `num_rounds`, its first, without a warm-up; 0 of no meeting.

        The run is looked at as long as nobody has ended it: who has takes no steps any more, but still meets others.
        """
        apart = np.array(self.apart).reshape(-1, 5)
        apart = apart[apart[:, 1] < num_rounds]
        ended, last = apart[:, 0], float(apart[:, 0].max(initial=0.0)) / part
        kept = apart[(ended >= last / WARM_UP) & (ended <= last), 2:]
        noise, by_worker, by_node = kept.mean(axis=0).tolist() if len(kept) else (0.0, 0.0, 0.0)
        return noise, by_worker, by_node


def _divisions(cluster: Cluster) -> Iterator[tuple[str, Strategy]]:
    """Prague's divisions with stragglers that hold nobody up, in pairs and threes; the rare meeting of all."""
    del cluster
    for division in (GroupSplit.RANDOM, GroupSplit.GLOBAL, GroupSplit.INTER_INTRA):
        for size in (2, 3):
            rule = SlowWorkerPolicy.DEFER
            yield (
                f"{division}, groups of {size}",
                DynamicGroups(division=division, group_size=size, slow_worker_policy=rule),
            )
    for every in (4, 16):
        late = SlowWorkerPolicy.DEFER
        words = f"{GroupSplit.NODE_THEN_ALL}, all every {every}"
        yield words, DynamicGroups(division=GroupSplit.NODE_THEN_ALL, all_every=every, slow_worker_policy=late)


def _pairings(cluster: Cluster) -> Iterator[tuple[str, Strategy]]:
    """Every second worker asks, so that there are some of both sides on a node; after its step or beside the next."""
    active = tuple(range(0, cluster.num_workers, 2))
    yield "AD-PSGD", Pairwise(active=active)
    yield "AD-PSGD, late", Pairwise(active=active, sync=DelayedAveraging())


def _servers(cluster: Cluster) -> Iterator[tuple[str, Strategy]]:
    """A shard on each node."""
    hosts = tuple(cluster.workers_of(node)[0] for node in range(cluster.num_nodes))
    yield "synchronous", Server(hosts=hosts)
    yield "asynchronous", Server(hosts=hosts, synchronous=False)


class OnRequest(Kind):
    """A kind with the strategies that are run; all of them under the same price for what models' meetings do."""

    share = 0.05

    def __init__(self, word: str, name: str, strategies: Callable[[Cluster], Iterator[tuple[str, Strategy]]]) -> None:
        self.word, self.name, self._strategies = word, name, strategies
        self.is_quick = word == Pairwise.kind

    def weighs(self, job: PlanRequest) -> bool:
        return is_open(job) and job.cluster.num_workers <= MOST_WORKERS and not Slowdown.of(job).is_even

    def options(self, trials: Trials) -> list[CandidateSchedule]:
        job, count = trials.job, trials.job.cluster.num_workers
        listed = []
        for words, strategy in self._strategies(job.cluster):
            try:
                label = "generated" if self.word == DynamicGroups.kind else self.word
                schedule = Schedule(f"{label}: {words}", job.cluster, strategy)
            except PartreduceError:  # does not suit the cluster, such as rounds inside nodes of one worker
                continue
            trial = Trial(schedule.name, _work(count, ROUNDS), partial(self._measured, schedule, job))
            listed.append((words, trial))
        trials.try_all(listed, in_any_case=False)
        return list(trials.options.values())

    def _measured(self, schedule: Schedule, job: PlanRequest) -> CandidateSchedule | None:
        """One run as an option; None where the strategy does not suit the limits."""
        size = getattr(schedule.strategy, "group_size", 2)
        if job.limits.max_group is not None and size > job.limits.max_group:
            return None
        option, _ = self._run(schedule, job, ROUNDS)
        if isinstance(schedule.strategy, Server):  # of the parameters there is one copy
            return option
        work = partial(_work, schedule.num_workers)
        return replace(option, longer=LongerRun(STEADY_ROUNDS, work, partial(self._run, schedule, job)))

    def _run(
        self, schedule: Schedule, job: PlanRequest, num_rounds: int
    ) -> tuple[CandidateSchedule, tuple[float, float, float]]:
        met = Meetings(job.cluster, seed=job.seed)
        timeline = _timeline(schedule, job, met, num_rounds)
        quarter, half, whole = (met.mean(num_rounds, part)[0] for part in (4, 2, 1))
        return _priced(schedule, timeline, met, job, self.word), (quarter, half, whole)

    def reasons(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:  # noqa: ARG002
        facts = chosen.facts
        assert facts is not None, "chosen is one of this kind"
        models = facts.memory_bytes / (job.hardware.model_bytes or 1)
        said = (
            f"its workers have no common rounds: {ms(chosen.step_seconds)} are the mean over the steps of all, on "
            f"links that all share; a worker keeps {models:.3g} models beside its parameters"
        )
        return [said]

    def cautions(self, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:  # noqa: ARG002
        said = (
            "who averages with whom is decided while the job runs: its seconds, consensus distance and steps are of a "
            "run in virtual time, not proved"
        )
        return [said]


ON_REQUEST = (
    OnRequest("dynamic_groups", "groups on request", _divisions),
    OnRequest("pairwise", "pairs", _pairings),
    OnRequest("server", "servers", _servers),
)
"""Prague's generator, AD-PSGD and parameter servers."""


def _work(num_workers: int, num_rounds: int) -> float:
    return PER_EVENT * num_rounds * num_workers * (8 + num_workers / 4)


def _timeline(schedule: Schedule, job: PlanRequest, met: Meetings, num_rounds: int) -> Timeline:
    algorithm, times = schedule.strategy.transport.algorithm, job.compute_times()
    case = Case(schedule, job.hardware, times, num_rounds, job.seed, model_bytes=None, algorithm=algorithm)
    if isinstance(schedule.strategy, DynamicGroups):
        return run_groups(case, listeners=(met,))
    return run_pairs(case, listeners=(met,)) if isinstance(schedule.strategy, Pairwise) else run_servers(case)


def _priced(schedule: Schedule, timeline: Timeline, met: Meetings, job: PlanRequest, kind: str) -> CandidateSchedule:
    """The option as its run was, with the price of what models' meetings, or late gradients, do to its steps."""
    strategy, model, observed, count = schedule.strategy, job.steps_model, timeline.observed, schedule.num_workers
    assert observed is not None, "every protocol counts what it sends"
    num_rounds = len(timeline.finish)
    how, first = f"by a run of {num_rounds} rounds", num_rounds // WARM_UP
    noise, by_worker, by_node = met.mean(num_rounds)
    spread = Metric(noise, MetricKind.ESTIMATE, how)
    drift = Metric(by_node if job.push == "node" else by_worker, MetricKind.ESTIMATE, how)
    metrics = noise, pushed_by(drift, job)
    age = 0.0 if strategy.averages_gradients else observed.mean_age or 0.0
    if isinstance(strategy, Server):
        late = age * (count - 1) / count  # rounds of as many gradients as there are workers
        steps_ratio, more = 1 + price_of(late, job), late * model.delay_more
    else:
        late = late_distance_like(noise, 1, 1 - 1 / count) if isinstance(strategy, Pairwise) else 0.0
        steps_ratio = model.steps_ratio(*metrics, late=late)
        more = steps_ratio * model.error(job.data)
    if isinstance(strategy, Pairwise):
        more = max(more, 1 + PAIRS_AT_WORST - steps_ratio)
    step = timeline.per_step(warm_up=first)
    num_steps = num_rounds * float(schedule.worker_steps().mean())
    return CandidateSchedule(
        name=schedule.name,
        schedule=schedule,
        algorithm=strategy.transport.algorithm,
        period=1,
        communication=float(timeline.communicating().mean()) / num_steps,
        nic_bytes=float(observed.nic_bytes.max(initial=0.0)) / num_steps,
        step_seconds=step,
        step_error=error_of(timeline.finish.mean(axis=1), first) / step if step else 0.0,
        waiting=float(timeline.waiting().mean()) / num_steps,
        consensus_distance=spread,
        drift=drift,
        contraction=absent("who averages with whom is decided while the job runs"),
        steps_ratio=steps_ratio,
        model=model,
        extrapolated=model.extrapolates(*metrics),
        status="catalogue",
        facts=Facts(
            kind=kind,
            words=schedule.name,
            memory_bytes=memory_bytes(strategy, job),
            least_share=1.0,
            gradients=float(count),
            more=more,
            age=age,
        ),
    )
