"""Define the planner's request: a cluster, an objective and limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Literal

import numpy as np

from partreduce.planner.calibration import steps_model
from partreduce.planner.steps_model import Optimizer, StepsModel, shipped_model
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.schedulers.synthesis.problem import SEARCHED, Limits, Objective, Problem, check_cluster
from partreduce.topo.argument_types import check_fields
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.failure_plan import MAX_FAILURES
from partreduce.topo.hardware import Hardware
from partreduce.topo.pilot import Pilot
from partreduce.topo.strategies.axes import SYNCHRONOUS, AllReduceAlgorithm, Codec, DelayedAveraging, Pipeline, Sync
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.timing.compute import ComputeTimes, StragglerModel


class Delay(StrEnum):
    """The delays between an average and its use that the planner considers.

    `SYNCHRONOUS`: a round waits for its average. `LATE`: parameters are averaged one round late. `PIPELINE`: gradients
    arrive one step late on all workers (Pipe-SGD with two overlapping iterations).
    """

    SYNCHRONOUS = "synchronous"
    LATE = "delay"
    PIPELINE = "pipeline"

    @classmethod
    def of(cls, strategy: Strategy) -> Delay | None:
        """Return the delay of a strategy; None where the lateness of gradients varies."""
        if strategy.sync.delays_gradients:
            return cls.PIPELINE if strategy.sync.word == Pipeline.word else None
        return cls.LATE if strategy.sync.lag else cls.SYNCHRONOUS

    @property
    def sync(self) -> Sync:
        """Return the delay as the `Sync` of strategies and schedule files."""
        if self is Delay.SYNCHRONOUS:
            return SYNCHRONOUS
        return DelayedAveraging() if self is Delay.LATE else Pipeline()

    def suits(self, strategy: Strategy) -> bool:
        """Return whether a strategy, with its steps per round, can have this delay."""
        if not isinstance(self.sync, strategy.sync_types):
            return False
        return self is not Delay.PIPELINE or replace(strategy, sync=SYNCHRONOUS).averages_gradients


EFFORTS = {"quick": 2.0, "thorough": 20.0}
"""Named planning efforts in nominal seconds, about the time on one idle core; the quick effort omits the search."""
MOST_DRIFT = {Optimizer.ADAM: 0.0, Optimizer.MOMENTUM: 2.9}
"""Largest drift, by optimizer, at which training on data that differ between workers still reached its loss."""
SAMPLED_STEPS, MOST_SAMPLED = 64, 2**18
"""Most steps to sample for the mean step time, and most sampled step times over all workers."""
LEAST_CAP, CAP_PER_EFFORT = 60.0, 5.0
"""The time limit if only an effort is given: a minimum in seconds, and a multiple of the effort."""


def effort_of(text: str) -> float:
    """Return an effort in nominal seconds from a name of `EFFORTS` or a number; raise InputError for other texts."""
    if text in EFFORTS:
        return EFFORTS[text]
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text[:40]!a} is no effort; write {', '.join(EFFORTS)} or a number such as 20") from None


class Data(StrEnum):
    """The distribution of training data: the same mixture on all workers, or different per worker, or per node."""

    SHUFFLED = "shuffled"
    PER_WORKER = "per-worker"
    PER_NODE = "per-node"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A request to the planner: a cluster with its hardware, the objective, the limits, and restrictions.

    `disturbance` is the random variation of sampled step times. `effort` is the amount of computing in nominal seconds
    (see `EFFORTS`): the same `seed` then gives the same answer. `time_limit`, in seconds, ends the planning if no
    effort is given, and caps the effort otherwise; without either the effort is quick. `algorithm` and `sync` restrict
    the all-reduce algorithm and the delay of every candidate; None lets the planner choose the best for each. `codec`
    is the codec of sums, used where a strategy allows it and it saves enough; None allows float16 and int8.

    `optimizer` selects the calibrated tasks that the job resembles if there is no pilot; None: any. `gap` restricts the
    plan to iteration gaps (True) or excludes them (False); None considers a few if step times differ. `quorum` likewise
    restricts the plan to quorums, or excludes them. `max_queues` limits the bytes of the queues on a worker. `tables`:
    embedding tables are exchanged in every step, so that all workers must have common steps. `tolerate_failures` is the
    number of failed workers after which the survivors continue by a failure plan. A `pilot` of the user's job replaces
    the shipped prices of consensus distance, drift and delay. `take` names the candidate to return.
    """

    cluster: Cluster
    objective: Objective = Objective.BALANCED
    limits: Limits = field(default_factory=Limits)
    data: Data = Data.SHUFFLED
    algorithm: AllReduceAlgorithm | None = None
    sync: Delay | None = None
    codec: Codec | None = Codec.NONE
    optimizer: Optimizer | None = None
    disturbance: StragglerModel | None = None
    time_limit: float | None = None
    effort: float | None = None
    seed: int = 0
    pilot: Pilot | None = None
    gap: bool | None = None
    max_queues: float | None = None
    quorum: bool | None = None
    tables: bool = False
    tolerate_failures: int = 0
    take: str | None = None

    def __post_init__(self) -> None:
        """Raise InputError for a job that cannot be planned.

        It has one worker, no links, no model size, no time or effort, limits that its cluster cannot meet, restrictions
        that exclude each other, or a pilot that does not apply to it.
        """
        check_fields(self)
        check_cluster(self.cluster)
        self.compute_times.check(self.cluster.num_workers)
        self.limits.check(self.cluster)
        for message, is_wrong in self._wrong().items():
            if is_wrong:
                raise InputError(message)
        if self.pilot is not None and self.pilot.data != self.data:
            raise InputError(
                f"pilot: ran on {self.pilot.data} data and the job's are {self.data}; plan with "
                f"data={self.pilot.data}, or run the pilot with data={self.data}"
            )

    def _wrong(self) -> dict[str, bool]:
        """Return the error messages about arguments and their combinations, each with whether it applies."""
        limit, effort, queues, inf = self.time_limit, self.effort, self.max_queues, float("inf")
        most = min(MAX_FAILURES, self.cluster.num_workers - 2)
        failures, advice = (f"1 to {most}", "tolerate fewer failures") if most > 0 else ("0", "use more workers")
        kind, waits = ("a gap", "iteration_gap") if self.gap else ("a quorum", "partial")
        is_alone, tolerates = bool(self.gap or self.quorum), bool(self.tolerate_failures)
        return {
            f"time_limit: is {limit} s; give the search some time, such as 30s": limit is not None and not limit > 0,
            f"time_limit: is {limit}; it is a finite number > 0": limit == inf,
            f"effort: is {effort}; it is a finite number > 0, such as {EFFORTS['thorough']:g}": (
                effort is not None and not 0 < effort < inf
            ),
            "codec: is int4, whose price in steps was never measured; plan without it and set transport.codec in the "
            "file": self.codec is Codec.INT4,
            f"max_queues: is {queues} bytes; it is a finite number >= 0": queues is not None and not 0 <= queues < inf,
            f"tolerate_failures: expected {failures}, got {self.tolerate_failures} of {self.cluster.num_workers} "
            f"workers; {advice}": tolerates and not 0 < self.tolerate_failures <= most,
            "sync: a gap is kept between parameters, a pipeline is one of gradients; choose one of them": (
                bool(self.gap) and self.sync is Delay.PIPELINE
            ),
            f"sync: {kind} leaves workers without common steps, in which tables go their own way; choose synchronous, "
            "delay or pipeline": self.tables and is_alone,
            "sync: a quorum is asked for, and something else, too; choose one of them": (
                bool(self.quorum) and (bool(self.gap) or self.sync is not None)
            ),
            f"sync: expected synchronous, delay or pipeline with tolerate_failures, got {waits}; leave one of them "
            "out": tolerates and is_alone,
            "tolerate_failures: expected no tables, whose rows fail with their owner, got some; leave one of the two "
            "out": tolerates and self.tables,
        }

    @cached_property
    def steps_model(self) -> StepsModel:
        """Return the model that predicts steps: with the pilot's prices, or the shipped one."""
        pilot, count = self.pilot, self.cluster.num_workers
        return shipped_model(self.optimizer, count) if pilot is None else steps_model(pilot)

    @cached_property
    def as_measured(self) -> PlanRequest:
        """Return the request reduced to the fields that affect measurements, as a key for their cache."""
        return PlanRequest(
            cluster=self.cluster,
            algorithm=self.algorithm,
            codec=self.codec,
            disturbance=self.disturbance,
            seed=self.seed,
            data=Data.PER_NODE if self.push == "node" else Data.SHUFFLED,
        )

    @cached_property
    def hardware(self) -> Hardware:
        """Return the cluster's hardware, which a request must have."""
        return check_cluster(self.cluster)

    @property
    def push(self) -> Literal["worker", "node"]:
        """Return whose data differ, "worker" or "node", as the argument of `topo.metrics.drift`."""
        return "node" if self.data is Data.PER_NODE else "worker"

    @property
    def algorithms(self) -> tuple[AllReduceAlgorithm, ...]:
        """Return the all-reduce algorithms that a candidate may use, the simplest first."""
        every = (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)
        return every if self.algorithm is None else (self.algorithm,)

    @property
    def sync_types(self) -> tuple[Delay, ...]:
        """Return the delays that a candidate may have."""
        return tuple(Delay) if self.sync is None else (self.sync,)

    def bears_drift(self, drift: float) -> bool:
        """Return whether the extra steps predicted for this drift (workers' data differ) can be trusted for the job.

        The price of drift was measured under SGD, or by the job's pilot. Under Adam with any drift, and under momentum
        with a drift of 3, networks did not reach All-Reduce's loss in five times its steps
        (benchmarks/results/regret.md).
        """
        if self.data is Data.SHUFFLED or self.pilot is not None:
            return True
        return self.optimizer not in MOST_DRIFT or drift <= MOST_DRIFT[self.optimizer]

    def pushed_by(self, drift: float) -> float:
        """Return the drift if it costs steps for the job's data: 0 if all workers have the same mixture."""
        return 0.0 if self.data is Data.SHUFFLED else drift

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """Return the codecs that a candidate may have where its strategy allows them, the finest first."""
        if self.codec is None:
            return (Codec.NONE, Codec.FLOAT16, Codec.INT8)
        return (Codec.NONE,) if self.codec is Codec.NONE else (Codec.NONE, self.codec)

    @property
    def is_open(self) -> bool:
        """Return whether the planner may choose freely which workers average together and when."""
        is_asked = self.sync is not None or self.gap or self.quorum or self.tables
        return not is_asked and self.objective is Objective.BALANCED

    def delayed(self, sync: Sync) -> float:
        """Return the extra steps, as a fraction of All-Reduce's, if `sync` makes gradients late; else 0."""
        return self.steps_model.delay * sync.lag if sync.delays_gradients else 0.0

    @cached_property
    def compute_times(self) -> ComputeTimes:
        """Return the workers' compute times (zero if the hardware does not state them)."""
        return replace(ComputeTimes.of(self.hardware), disturbance=self.disturbance)

    @cached_property
    def at_mean_speeds(self) -> PlanRequest:
        """Return the same job with every step at its mean time; no schedule is faster with varying times."""
        times, count = self.compute_times, self.cluster.num_workers
        if times.is_fixed:
            return self
        base = times.base
        if self.disturbance is not None:
            rng, fixed = np.random.default_rng(self.seed), float(times.fixed(count).mean())
            steps = range(max(4, min(SAMPLED_STEPS, MOST_SAMPLED // count)))
            mean = float(np.mean([times.step_seconds(count, step, rng).mean() for step in steps]))
            base = base * mean / fixed if fixed > 0 else mean
        hardware = replace(self.hardware, jitter=0.0, compute=base)
        return replace(self, cluster=replace(self.cluster, hardware=hardware), disturbance=None)

    def clock(self) -> Clock:
        """Return a clock that starts now, with the job's effort and time limit."""
        if self.effort is None and self.time_limit is not None:
            return Clock(seconds=self.time_limit)
        effort = EFFORTS["quick"] if self.effort is None else self.effort
        if self.time_limit is not None:
            return Clock(seconds=self.time_limit, effort=effort)
        return Clock(seconds=max(LEAST_CAP, CAP_PER_EFFORT * effort) if self.searches else MANY_SECONDS, effort=effort)

    @property
    def is_limited(self) -> bool:
        """Return whether the objective, or a limit other than `max_period`, may exclude the fastest schedule."""
        return self.objective is not Objective.BALANCED or self.limits != Limits(max_period=self.limits.max_period)

    @property
    def searches(self) -> bool:
        """Return whether the planner also searches for schedules: with only a time limit, or any effort but quick."""
        return self.effort != EFFORTS["quick"] and (self.effort is not None or self.time_limit is not None)

    def problem(self) -> Problem:
        """Return the problem for the search, whose objective is consensus distance where it cannot minimize the job's.

        If any algorithm is allowed, costs are those of the hierarchical one, since no phase costs less with rings.
        """
        return Problem(
            cluster=self.cluster,
            objective=self.objective if self.objective in SEARCHED else Objective.CONSENSUS_DISTANCE,
            limits=self.limits,
            algorithm=self.algorithm or AllReduceAlgorithm.HIERARCHICAL,
        )
