"""Job: what the planner is asked, in the words of the search below it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from partreduce.planner.calibration import steps_model
from partreduce.planner.delay import Delay
from partreduce.planner.steps_model import Optimizer, StepsModel, shipped
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.schedulers.synthesis.problem import SEARCHED, Limits, Objective, Problem, check_cluster
from partreduce.topo.argument_types import check_fields
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.failure_plan import MAX_FAILURES
from partreduce.topo.hardware import Hardware
from partreduce.topo.metrics.pipeline import stability_limit
from partreduce.topo.pilot import Pilot
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, Pipeline, Sync
from partreduce.topo.timing.compute import ComputeTimes, StragglerModel

EFFORTS = {"quick": 2.0, "thorough": 20.0}
"""Efforts by name, in nominal seconds: about what one quiet core takes. Only the quick one does not search."""
PIPELINE_WIDTH = Pipeline().width
"""Iterations side by side in a pipeline that the planner weighs."""
MOST_DRIFT = {Optimizer.ADAM: 0.0, Optimizer.MOMENTUM: 2.9}
"""On data that differ between workers: with more, networks did not reach their loss."""
SAMPLED_STEPS, MOST_SAMPLED = 64, 2**18
"""Steps that a mean is taken over, and step times at most."""
LEAST_CAP, CAP_PER_EFFORT = 60.0, 5.0
"""The time limit where only an effort is given: so many seconds, and so many times the effort."""


def effort_of(text: str) -> float:
    """What an effort's name or number means, in nominal seconds.

    Raises:
        InputError: neither a known name nor a number.
    """
    if text in EFFORTS:
        return EFFORTS[text]
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text[:40]!a} is no effort; write {', '.join(EFFORTS)} or a number such as 20") from None


class Data(StrEnum):
    """How samples are spread over workers: it decides whether consensus distance or drift costs steps."""

    SHUFFLED = "shuffled"
    """Every worker sees the same mixture."""

    PER_WORKER = "per-worker"
    """Every worker sees its own kind of data."""

    PER_NODE = "per-node"
    """The workers of one node see the same mixture, nodes differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A cluster with its hardware, what matters, and the limits.

    `disturbance` is what the step times are sampled with. `effort` is how much to compute, in nominal seconds
    (`EFFORTS` names some): the same `seed` then gives the same answer. `time_limit`, in seconds, alone ends the
    planning where no effort is given, and caps the effort otherwise; without either the effort is quick. `algorithm`
    and `sync` restrict how sums of every candidate may travel and whether they may come late; None lets the planner
    take the best for each. `codec` is what sums may be written in, where a strategy allows it and it pays; the
    default changes no number, and None allows float16 and int8. `optimizer` says which tasks
    the job resembles where no pilot says it; None: any. `curvature` is the
    learning rate times the largest curvature of the loss: it prices gradients that come late. `fastest` takes the
    least predicted time also within 2 % of something simpler, and what comes late at its predicted price. `gap`
    asks for neighbors that keep a gap, and for nothing else (True) or for none (False); None weighs a few of them
    where step times differ. `max_queues` is the most bytes that their queues may take of a worker. `quorum` asks
    for rounds that a quorum starts, and for nothing else (True) or for none (False); None weighs a few of them
    where step times differ. `tables` says that tables go their own way beside it in every step, so that only
    schedules whose workers have common steps will do. `tolerate_failures` asks for one that continues after the failure
    of up to so many workers, and of one node, with what survivors run then. A `pilot` of the user's own job brings the
    prices of consensus distance, drift and delay that stand in for the shipped ones. `take` names the option
    that is wanted, whatever the objective says.
    """

    cluster: Cluster
    objective: Objective = Objective.BALANCED
    limits: Limits = field(default_factory=Limits)
    data: Data = Data.SHUFFLED
    algorithm: AllReduceAlgorithm | None = None
    sync: Delay | None = None
    codec: Codec | None = Codec.NONE
    optimizer: Optimizer | None = None
    curvature: float | None = None
    fastest: bool = False
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
        """Refuse jobs that cannot be planned.

        Raises:
            InputError: one worker, no links, no model size, no time or effort, limits that this cluster cannot meet, or
                a pilot that says nothing about this job.
        """
        check_fields(self)
        check_cluster(self.cluster)
        self.compute_times().check(self.cluster.num_workers)
        if self.time_limit is not None and not self.time_limit > 0:
            raise InputError(f"time_limit: is {self.time_limit} s; give the search some time, such as 30s")
        if self.time_limit == float("inf"):
            raise InputError(f"time_limit: is {self.time_limit}; it is a finite number > 0")
        if self.effort is not None and not 0 < self.effort < float("inf"):
            raise InputError(f"effort: is {self.effort}; it is a finite number > 0, such as {EFFORTS['thorough']:g}")
        if self.codec is Codec.INT4:
            raise InputError(
                "codec: is int4, whose price in steps was never measured; plan without it and set transport.codec in "
                "the file"
            )
        self.limits.check(self.cluster)
        if self.max_queues is not None and not 0 <= self.max_queues < float("inf"):
            raise InputError(f"max_queues: is {self.max_queues} bytes; it is a finite number >= 0")
        if self.gap and self.sync is Delay.PIPELINE:
            raise InputError(
                "sync: a gap is kept between parameters, a pipeline is one of gradients; choose one of them"
            )
        if self.tables and (self.gap or self.quorum):
            raise InputError(
                f"sync: {'a gap' if self.gap else 'a quorum'} leaves workers without common steps, in which tables go "
                "their own way; choose synchronous, delay or pipeline"
            )
        if self.quorum and (self.gap or self.sync is not None):
            raise InputError("sync: a quorum is asked for, and something else, too; choose one of them")
        self._check_tolerate_failures()
        self._check_curvature()
        if self.pilot is not None and self.pilot.data != self.data:
            raise InputError(
                f"pilot: ran on {self.pilot.data} data and the job's are {self.data}; plan with "
                f"data={self.pilot.data}, or run the pilot with data={self.data}"
            )

    def _check_tolerate_failures(self) -> None:
        most = min(MAX_FAILURES, self.cluster.num_workers - 2)
        if self.tolerate_failures and not 0 < self.tolerate_failures <= most:
            expected, advice = (f"1 to {most}", "tolerate fewer failures") if most > 0 else ("0", "use more workers")
            raise InputError(
                f"tolerate_failures: expected {expected}, got {self.tolerate_failures} of {self.cluster.num_workers} "
                f"workers; {advice}"
            )
        waits = "iteration_gap" if self.gap else "partial" if self.quorum else self.sync
        if self.tolerate_failures and waits in ("iteration_gap", "partial"):
            raise InputError(
                f"sync: expected synchronous, delay or pipeline with tolerate_failures, got {waits}; leave one of them "
                "out"
            )
        if self.tolerate_failures and self.tables:
            raise InputError(
                "tolerate_failures: expected no tables, whose rows fail with their owner, got some; leave one of "
                "the two out"
            )

    def _check_curvature(self) -> None:
        if self.curvature is None:
            return
        most, limit = stability_limit(1), stability_limit(PIPELINE_WIDTH)
        if not 0 < self.curvature < most:
            raise InputError(
                f"curvature: is {self.curvature}; learning rate times curvature lies between 0 and {most:g}, where "
                "training synchronously diverges"
            )
        if self.sync is Delay.PIPELINE and not self.bears_pipeline:
            raise InputError(
                f"curvature: is {self.curvature}; gradients that come a step late diverge from {limit:g} on, so the "
                f"learning rate would have to be less than {limit / self.curvature:.2g} times as large; leave out "
                "when=pipeline"
            )

    @property
    def steps_model(self) -> StepsModel:
        """What predicts the steps of a schedule: the pilot's prices, or the shipped model."""
        model = shipped(self.optimizer, self.cluster.num_workers) if self.pilot is None else steps_model(self.pilot)
        return model if self.curvature is None else model.at_curvature(self.curvature)

    @property
    def hardware(self) -> Hardware:
        """The cluster's hardware (checked at construction)."""
        return check_cluster(self.cluster)

    @property
    def push(self) -> Literal["worker", "node"]:
        """Which drift matters: `worker` or `node`."""
        return "node" if self.data is Data.PER_NODE else "worker"

    @property
    def algorithms(self) -> tuple[AllReduceAlgorithm, ...]:
        """The algorithms that a candidate may use, the simplest first."""
        return (
            (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL) if self.algorithm is None else (self.algorithm,)
        )

    @property
    def sync_types(self) -> tuple[Delay, ...]:
        """What of a candidate may be late; no pipeline where the curvature is said to be beyond what it bears."""
        allowed = tuple(Delay) if self.sync is None else (self.sync,)
        return tuple(one for one in allowed if one is not Delay.PIPELINE or self.bears_pipeline)

    @property
    def bears_pipeline(self) -> bool:
        """Whether gradients may come a step late, as far as the curvature is known."""
        return self.curvature is None or self.curvature < stability_limit(PIPELINE_WIDTH)

    def bears_drift(self, drift: float) -> bool:
        """Whether a drift of so much on the job's data has a price that may be trusted.

        What drift costs was measured under SGD, or by the job's pilot. Under Adam two of two jobs with any, drawn at
        random, had not reached All-Reduce's loss after five times its steps; under momentum one of two seeds of a
        convolution with a drift of 3 had not (benchmarks/results/regret.md).
        """
        if self.data is Data.SHUFFLED or self.pilot is not None:
            return True
        return self.optimizer not in MOST_DRIFT or drift <= MOST_DRIFT[self.optimizer]

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """The codecs that a candidate takes where its strategy allows it and it pays, the finest first."""
        if self.codec is None:
            return (Codec.NONE, Codec.FLOAT16, Codec.INT8)
        return (Codec.NONE,) if self.codec is Codec.NONE else (Codec.NONE, self.codec)

    @property
    def sends_layers(self) -> bool:
        """Whether gradients may go layer by layer: where the hardware says which layers there are."""
        return self.hardware.layers is not None

    @property
    def is_open_to_quorums(self) -> bool:
        """Whether they are candidates beside everything else, where steps differ and there are not too many workers."""
        is_open = self.quorum is None and self.sync is None and not self.gap and not self.tables
        return is_open and self.objective is Objective.BALANCED

    def delayed(self, sync: Sync) -> float:
        """How many of All-Reduce's steps more it takes that gradients come late like this, as a part of them."""
        return self.steps_model.delayed(sync.lag + 1, self.curvature) if sync.delays_gradients else 0.0

    def compute_times(self) -> ComputeTimes:
        """How long the workers compute (no time at all when the hardware does not say)."""
        return replace(ComputeTimes.of(self.hardware), disturbance=self.disturbance)

    @property
    def at_mean_speeds(self) -> PlanRequest:
        """The same job where every step takes what it takes on average, so that no schedule is slower there."""
        times, count = self.compute_times(), self.cluster.num_workers
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
        """A clock that starts now, with the effort and the time limit that hold."""
        if self.effort is None and self.time_limit is not None:
            return Clock(seconds=self.time_limit)
        effort = EFFORTS["quick"] if self.effort is None else self.effort
        if self.time_limit is not None:
            return Clock(seconds=self.time_limit, effort=effort)
        return Clock(seconds=max(LEAST_CAP, CAP_PER_EFFORT * effort) if self.searches else MANY_SECONDS, effort=effort)

    @property
    def is_limited(self) -> bool:
        """Whether not only the time decides: limits on what is sent, how or with whom, or another objective."""
        shape = Limits(min_period=self.limits.min_period, max_period=self.limits.max_period)
        return self.objective is not Objective.BALANCED or self.limits != shape

    @property
    def searches(self) -> bool:
        """Whether schedules are searched for, too: with a time limit alone, or any effort but the quick one."""
        return self.effort != EFFORTS["quick"] and (self.effort is not None or self.time_limit is not None)

    def problem(self) -> Problem:
        """What the search is asked: little consensus distance at every cost, whatever the objective.

        Where any algorithm will do, costs are those of the hierarchical one, since no phase costs less as rings.
        """
        return Problem(
            cluster=self.cluster,
            objective=self.objective if self.objective in SEARCHED else Objective.CONSENSUS_DISTANCE,
            limits=self.limits,
            algorithm=self.algorithm or AllReduceAlgorithm.HIERARCHICAL,
        )
