"""Define a candidate, a schedule with its predicted costs, and the order in which objectives prefer candidates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from partreduce.planner.job import Data, Delay
from partreduce.planner.steps_model import FailurePoint, StepsModel, step_progress
from partreduce.schedulers.synthesis.problem import Limits, Objective
from partreduce.topo.metrics.base import Metric
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Transport
from partreduce.topo.strategies.base import StepsPerRound

SUMMING = ("partial", "server")
"""Simulated kinds whose workers add up gradients, of which some are late (`Facts.delay`)."""
MAX_STEPS_RATIO_WHEN_CHEAP = 1.25
"""Under `--objective communication`, the most steps of the cheapest candidate, relative to All-Reduce's."""

NOTHING = 1e-12
"""Values below this are rounding errors of zero."""


class Costs(NamedTuple):
    """The costs by which candidates are compared: seconds per step, metrics (infinite if unknown), and steps ratio."""

    communication: float
    step_seconds: float
    consensus_distance: float
    drift: float
    steps_ratio: float

    @property
    def time(self) -> float:
        return self.step_seconds * self.steps_ratio

    def keep(self, limits: Limits, exactly: Callable[[], Fraction | None] = lambda: None) -> bool:
        """Return whether the loss is reached within the limits; `exactly` as in `Limits.allow_consensus_distance`."""
        if not math.isfinite(self.steps_ratio) or not limits.allow_communication(self.communication):
            return False
        return limits.allow_consensus_distance(self.consensus_distance, exactly)

    def all(self) -> tuple[float, ...]:
        return (self.communication, self.consensus_distance, self.drift, self.step_seconds, self.steps_ratio)


def merit(costs: Costs, objective: Objective) -> tuple[float, ...]:
    """Return the costs that an objective minimizes, the most important first (compared as tuples)."""
    if objective is Objective.COMMUNICATION:
        return (float(costs.steps_ratio > MAX_STEPS_RATIO_WHEN_CHEAP), costs.communication, costs.time)
    if objective is Objective.CONSENSUS_DISTANCE:
        return (costs.consensus_distance, costs.communication)
    if objective is Objective.DRIFT:
        return (costs.drift, costs.communication)
    if objective is Objective.WAITING:
        return (costs.step_seconds, costs.steps_ratio)
    return (costs.time, costs.communication)


def preference(costs: Costs, objective: Objective) -> tuple[float, ...]:
    """Return `merit` rounded to nine digits, so that schedules whose costs differ by rounding are ties."""
    return tuple(float(f"{value:.9g}") if abs(value) > NOTHING else 0.0 for value in merit(costs, objective))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Results of a candidate that was simulated or measured, with the values specific to its `kind` of protocol.

    Kinds are the keys of `SHOWN`: Hop's iteration gap, quorums, groups on request, pairs, servers, and outer steps.
    `words` describe the setting; `memory_bytes` is the busiest worker's memory in addition to its parameters;
    `least_share` is the smallest weight of a worker's gradients, where an even share is 1; `without_share` lists the
    workers with a weight near 0. `more` is the possible extra cost of delay, as a fraction of All-Reduce's steps.

    Quorum: `active` is the mean number of workers in a round, `gradients` that of their gradients in it;
    `gradients_per_second` is the total. `age` is the mean delay in rounds, `delay` the same in steps of All-Reduce, and
    `bound` the proved maximum in rounds. Iteration gap: `gradients` is the fraction of all workers whose gradients
    would leave as much noise in the mean, `progress` the progress per step relative to synchronous rounds, and
    `computed` the fraction of steps that were computed rather than skipped. Outer steps: `peak` is the most bytes that
    one step sends out of a node, `by_task` the measured steps ratio on each task of the steps model, and `rate` the
    fraction of All-Reduce's best learning rate with which it was measured.
    """

    kind: str
    words: str
    memory_bytes: float
    least_share: float
    gradients: float
    more: float = 0.0
    without_share: tuple[int, ...] = ()
    active: float = 0.0
    gradients_per_second: float = 0.0
    age: float = 0.0
    delay: float = 0.0
    bound: int = 0
    progress: float = 1.0
    computed: float = 1.0
    peak: float = 0.0
    by_task: tuple[float, ...] = ()
    rate: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a candidate's JSON; infinite values are null."""
        shown = {key: getattr(self, name) for key, name in SHOWN[self.kind].items()}
        finite = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in shown.items()}
        return {"setting": self.words, **finite}


SHOWN = {
    "iteration_gap": {name: name for name in ("memory_bytes", "progress", "gradients", "computed", "least_share")},
    "partial": {
        "mean_active": "active", "gradients_per_round": "gradients", "gradients_per_second": "gradients_per_second",
        "mean_age": "age", "delay_steps": "delay", "proved_age": "bound", "least_share": "least_share",
        "memory_bytes": "memory_bytes",
    },
    "outer": {"peak_nic_bytes": "peak", "memory_bytes": "memory_bytes", "learning_rate": "rate"},
    **{kind: {"mean_age": "age", "memory_bytes": "memory_bytes"} for kind in ("dynamic_groups", "pairwise", "server")},
}  # fmt: skip
"""The keys of a candidate's JSON by kind of protocol, and the fields of `Facts` that they show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSchedule:
    """A schedule on the job's cluster with all settings of its run: steps per round, algorithm, codec and delay.

    Seconds are per step of the workers that take most steps per round. `step_seconds` includes computing, waiting and
    communication, `step_error` is its relative standard error where it was sampled; `steps_ratio` is the predicted
    number of steps to a loss over All-Reduce's, by `model`; `status` is `feasible` where the search found it, or
    `catalogue`. `late_distance` is above 0 where averages are late (`topo.metrics.late_distance`). `surprise` is the
    change of the steps ratio by its own run in a pilot, None if it did not run. `facts` is set for kinds that were
    simulated, and for outer steps. `extrapolated`: its metrics lie outside the range that `model` was fitted to.
    `longer` is its `trials.Candidate` while its consensus distance comes from a run that may be too short
    (`trials.SteadyCheck`).
    """

    name: str
    schedule: Schedule
    period: int
    communication: float
    nic_bytes: float
    step_seconds: float
    step_error: float
    waiting: float
    consensus_distance: Metric
    drift: Metric
    contraction: Metric
    late_distance: float = 0.0
    steps_ratio: float
    model: StepsModel
    extrapolated: bool
    status: str
    surprise: float | None = None
    facts: Facts | None = None
    longer: object = field(default=None, repr=False, compare=False)

    @property
    def gap(self) -> Facts | None:
        """Return the results of an iteration gap; None for other kinds."""
        return self.facts if self.facts is not None and self.facts.kind == "iteration_gap" else None

    @property
    def quorum(self) -> Facts | None:
        """Return the results of a quorum, whose rounds count as steps with fewer gradients; None for other kinds."""
        return self.facts if self.facts is not None and self.facts.kind == "partial" else None

    @property
    def costs(self) -> Costs:
        return Costs(
            communication=self.communication,
            step_seconds=self.step_seconds,
            consensus_distance=known(self.consensus_distance),
            drift=known(self.drift),
            steps_ratio=self.steps_ratio,
        )

    @property
    def time(self) -> float:
        """Return the predicted seconds to a loss, divided by the number of steps in which All-Reduce reaches it."""
        return self.step_seconds * self.steps_ratio

    @property
    def time_at_worst(self) -> float:
        """Return `time` with the most extra steps that delays, iteration gaps or outer steps took in measurements.

        It equals `time` if the schedule has none of them, or if its own run in a pilot has corrected the prediction.
        """
        more = 0.0
        if self.surprise is None and self.facts is not None:
            more = max((0.0, self.facts.more, *(ratio - self.steps_ratio for ratio in self.facts.by_task)))
        elif self.surprise is None:
            more = self._pipeline_more or self.model.late_more(self.late_distance)
        return self.step_seconds * (self.steps_ratio + more)

    @property
    def _pipeline_more(self) -> float:
        """Return the possible extra steps of a pipeline, as a fraction of All-Reduce's; 0 without a pipeline."""
        is_pipeline = self.delay is Delay.PIPELINE
        return self.model.delay_more * self.schedule.strategy.sync.lag if is_pipeline else 0.0

    @property
    def may_fail(self) -> bool:
        """Return whether a calibrated task failed with averages as rare or as late as those of this schedule.

        False if the schedule ran in a pilot, averages gradients, or was simulated.
        """
        if self.facts is not None or self.surprise is not None or self.schedule.strategy.averages_gradients:
            return False
        return self.is_among(self.model.lost)

    def is_among(self, failures: FailurePoint) -> bool:
        return failures.includes(self.synchronous_distance, self.late_distance)

    @property
    def synchronous_distance(self) -> float:
        """Return the consensus distance without the part that delay adds; it measures how rare averages are."""
        return known(self.consensus_distance) - (
            added_by_delay(self.steps_per_round, self.schedule.num_workers) if self.late else 0.0
        )

    def time_in(self, case: StepsModel, usual: StepsModel, *, delay: bool) -> float:
        """Return `time` at the prices (extra steps per metric) of `case`, which is one of `usual.cases`.

        Delay is priced as in `case` only if `delay` is true. If the candidate ran in a pilot, all cases are equal.
        """
        facts = self.facts
        if self.surprise is not None:
            return self.time
        if not math.isfinite(self.steps_ratio):
            return math.inf
        if facts is not None and facts.by_task:
            tasks = dict(zip(usual.cases, facts.by_task, strict=True))
            return self.step_seconds * tasks.get(case, self.steps_ratio)
        spread, late = known(self.consensus_distance), self.late_distance if delay and not facts else 0.0
        here, there = (
            model.steps_ratio(spread, 0.0, late=late, gradients=self.sums_gradients, progress=self.progress)
            for model in (case, usual)
        )
        more = self.steps_ratio - there  # subtract before `here` is added, which may be infinite
        if delay:
            more += self._pipeline_more if facts is None else facts.more
        return self.step_seconds * (here + more)

    @property
    def progress(self) -> float:
        """What a step is worth, in synchronous steps of all workers: `step_progress`, or what a simulation measured.

        At most 1: a mean that moves further in each step has a larger learning rate, which the job could also have set.
        """
        return step_progress(self.schedule) if self.facts is None else max(min(1.0, self.facts.progress), 1e-9)

    @property
    def sums_gradients(self) -> bool:
        """Return whether workers average or add up gradients, not parameters."""
        sums = self.facts is not None and self.facts.kind in SUMMING
        return sums or self.schedule.strategy.averages_gradients

    @property
    def late(self) -> bool:
        """Return whether averages of parameters or gradients overlap computing and arrive one round late."""
        return self.schedule.strategy.is_delayed

    @property
    def delay(self) -> Delay | None:
        """Return the delay of the schedule's averages; None if the delay of gradients varies."""
        return Delay.of(self.schedule.strategy)

    @property
    def kind(self) -> tuple[Delay | None, bool, str]:
        """Return the kind: the delay, whether gradients are averaged, and `Facts.kind` (empty without facts)."""
        return self.delay, self.schedule.strategy.averages_gradients, self.facts.kind if self.facts else ""

    @property
    def transport(self) -> Transport:
        return self.schedule.strategy.transport

    @property
    def algorithm(self) -> AllReduceAlgorithm:
        return self.transport.algorithm

    @property
    def steps_per_round(self) -> StepsPerRound:
        """Return the steps per round, one number or one per worker."""
        return self.schedule.strategy.steps_per_round

    @property
    def is_plain(self) -> bool:
        """Return whether the candidate is All-Reduce every k steps, with the same k for all workers."""
        return self.schedule.strategy.averages_everyone and isinstance(self.steps_per_round, int) and self.facts is None

    @property
    def is_every_step(self) -> bool:
        """Return whether the candidate is synchronous All-Reduce in every step."""
        return self.is_plain and self.steps_per_round == 1 and not self.late

    @property
    def is_usual(self) -> bool:
        """Return whether the candidate is All-Reduce as usually run: gradients in every step, ring, no codec."""
        averages = self.schedule.strategy.averages_gradients and not self.late
        return self.is_plain and averages and self.transport == Transport()

    def steps_ratio_error(self, data: Data) -> float:
        """Return the relative error of `steps_ratio` within which 9 of 10 measured schedules stayed.

        It is 0 for synchronous gradients, which need All-Reduce's steps.
        """
        if self.delay is Delay.PIPELINE:
            return self.model.delay_error
        if self.quorum:
            return self.model.delay_error * min(1.0, self.quorum.delay)
        if self.schedule.strategy.averages_gradients:
            return 0.0
        return self.model.error(data, late=self.late)

    @property
    def basis(self) -> str:
        """Return in words the measurements behind `steps_ratio_error`, such as "9 of 10 measured schedules"."""
        return "measured pipelines" if self.delay is Delay.PIPELINE or self.quorum else self.model.basis

    @property
    def num_phases(self) -> int:
        """Return the number of distinct phases in a period; 1 for schedules without mixing matrices."""
        return self.schedule.num_distinct_phases() if self.schedule.is_mixing else 1

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-able data; null for an infinite or unknown metric."""
        return {
            "name": self.name,
            "algorithm": str(self.algorithm),
            "codec": str(self.transport.codec),
            "where": str(self.transport.where),
            "gradient_buckets": str(self.transport.gradient_buckets),
            "sync": self.schedule.strategy.sync.word if self.facts else str(self.delay),
            "steps_per_round": steps if isinstance(steps := self.steps_per_round, int) else list(steps),
            "communication_seconds_per_step": self.communication,
            "nic_bytes_per_step": self.nic_bytes,
            "consensus_distance": self.consensus_distance.json_value(),
            "drift": self.drift.json_value(),
            "contraction": self.contraction.json_value(),
            "step_seconds": self.step_seconds,
            "waiting_seconds_per_step": self.waiting,
            "steps_ratio": self.steps_ratio if math.isfinite(self.steps_ratio) else None,
            "period": self.period,
            "status": self.status,
            **({self.facts.kind: self.facts.to_json()} if self.facts else {}),
        }


def added_by_delay(steps: StepsPerRound, num_workers: int) -> float:
    """Return what a delay of one round adds to the consensus distance: the noise of one more round.

    It is exact if all workers take the same number of steps; else it uses their mean.
    """
    return (1 - 1 / num_workers) * (steps if isinstance(steps, int) else sum(steps) / num_workers)


def known(metric: Metric) -> float:
    """Return the value of a metric, or infinity if it was not found."""
    return math.inf if metric.value is None else metric.value
