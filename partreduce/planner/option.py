"""Option: one schedule with everything that decides whether to take it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from partreduce.planner.delay import Delay
from partreduce.planner.job import Data
from partreduce.planner.preference import Costs
from partreduce.planner.steps_model import Lost, StepsModel
from partreduce.topo.metrics.base import Metric
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Transport
from partreduce.topo.strategies.base import StepsPerRound


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of an option from its runs in virtual time, and whatever its `kind` of protocol counts there.

    `words` say the setting; `memory_bytes` is what the busiest worker keeps in addition to its parameters;
    `least_share` is what the least heard worker's gradients count, where an even share is 1; `unheard` lists whose
    count next to nothing. `more` is how many of All-Reduce's steps its delay may cost beyond `steps_ratio`, as a part
    of them.

    Under a quorum `active` workers are in a round on average, with as many `gradients`; `gradients_per_second` is of
    all. `age` is the mean of their delay in rounds, `delay` the same in whole steps, of as many gradients as there are
    workers, and `bound` the most rounds that are proved. Of a gap `gradients` is the part of all workers whose
    gradients would leave as much noise in the mean, `progress` how far a step brings it where synchronous rounds give
    1, and `computed` the part of all steps that were computed rather than skipped. Of outer steps `peak` is the most
    bytes that one step sends out of a node, `by_task` the steps ratio on each task of the steps model, in the place of
    a price, and `rate` the share of All-Reduce's best learning rate that they were measured at.
    """

    kind: str
    words: str
    memory_bytes: float
    least_share: float
    gradients: float
    more: float = 0.0
    unheard: tuple[int, ...] = ()
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
        """As it stands in an option's JSON; null where nothing takes time."""
        shown = {key: getattr(self, name) for key, name in SHOWN[self.kind].items()}
        finite = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in shown.items()}
        return {"setting": self.words, **finite}


SHOWN = {
    "iteration_gap": {name: name for name in ("memory_bytes", "progress", "gradients", "computed", "least_share")},
    "partial": {
        "mean_active": "active",
        "gradients_per_round": "gradients",
        "gradients_per_second": "gradients_per_second",
        "mean_age": "age",
        "delay_steps": "delay",
        "proved_age": "bound",
        "least_share": "least_share",
        "memory_bytes": "memory_bytes",
    },
    "outer": {"peak_nic_bytes": "peak", "memory_bytes": "memory_bytes", "learning_rate": "rate"},
}
SHOWN |= {
    kind: {"mean_age": "age", "memory_bytes": "memory_bytes"} for kind in ("dynamic_groups", "pairwise", "server")
}
"""What an option's JSON says of each kind that is run in virtual time, and the fields of `Facts` with that."""


@dataclass(frozen=True, slots=True)
class LongerRun:
    """How an option whose consensus distance comes from a run in virtual time is run for longer.

    `rounds` are those of the first longer run, `work` gives the nominal seconds of a run of so many rounds, and `run`
    the option with the prices of that run, and its consensus distance in the first quarter, the first half and the
    whole of the run, each after a warm-up; None if the workers wait for one another for ever.
    """

    rounds: int
    work: Callable[[int], float]
    run: Callable[[int], tuple[CandidateSchedule, tuple[float, float, float]] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSchedule:
    """A schedule on the job's cluster, as it is to be run: its steps per round, algorithm, codec and delay.

    Seconds are per step of the workers that take most steps per round. `step_seconds` includes computing, waiting and
    communication, `step_error` is the relative standard error where it was sampled; `steps_ratio` is the predicted
    number of steps to a loss over All-Reduce's, by `model`; `status` is `feasible` where the search found it, or
    `catalogue`. `late_distance` is there where averagings come late (`topo.metrics.late_distance`).
    `surprise` is what its own run in a pilot changed in the prediction, None where it did not run.
    `facts` are there where workers have no common rounds: a protocol decides then, and was run in virtual time.
    `longer` is there as long as its consensus distance comes from a run that may be too short (`trials.steady`).
    """

    name: str
    schedule: Schedule
    algorithm: AllReduceAlgorithm
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
    longer: LongerRun | None = field(default=None, repr=False, compare=False)

    @property
    def gap(self) -> Facts | None:
        """What is known where neighbors keep a gap."""
        return self._of_kind("iteration_gap")

    @property
    def quorum(self) -> Facts | None:
        """What is known where a quorum starts rounds: these are its steps, of fewer gradients."""
        return self._of_kind("partial")

    def _of_kind(self, kind: str) -> Facts | None:
        return self.facts if self.facts is not None and self.facts.kind == kind else None

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
        """Predicted seconds to a loss, per step that All-Reduce would need."""
        return self.step_seconds * self.steps_ratio

    @property
    def time_at_worst(self) -> float:
        """As `time`, if delay costs as much as it may; what ran on the job itself is known to cost what it did."""
        if self.surprise is not None:
            more = 0.0
        elif self.facts is not None:
            more = max((0.0, self.facts.more, *(ratio - self.steps_ratio for ratio in self.facts.by_task)))
        elif self.delay is Delay.PIPELINE:
            more = self.model.delay_more * self.schedule.strategy.sync.lag
        else:
            more = self.averages_more
        return self.step_seconds * (self.steps_ratio + more)

    @property
    def may_fail(self) -> bool:
        """Whether one of the calibrated tasks did not reach its loss with averages as rare, or as late.

        What ran on the job itself is known to reach it.
        """
        if self.facts is not None or self.surprise is not None or self.schedule.strategy.averages_gradients:
            return False
        return self.is_among(self.model.lost)

    def is_among(self, lost: Lost) -> bool:
        """Whether a network failed with averages as rare, or as late, as these."""
        return lost.includes(self.synchronous_distance, self.late_distance)

    @property
    def synchronous_distance(self) -> float:
        """The consensus distance that it would have if its averages came at once: how rare they are."""
        distance = known(self.consensus_distance)
        return distance - added_by_delay(self.schedule) if self.late else distance

    def time_in(self, case: StepsModel, usual: StepsModel, *, delay: bool) -> float:
        """As `time`, at the prices of one case of the `usual` model; that of delay only where it counts.

        What ran on the job itself takes as long in every case.
        """
        if self.surprise is not None:
            return self.time
        if not math.isfinite(self.steps_ratio):
            return math.inf
        if self.facts is not None and self.facts.by_task:
            tasks = dict(zip(usual.cases, self.facts.by_task, strict=True))
            return self.step_seconds * tasks.get(case, self.steps_ratio)
        spread, late = known(self.consensus_distance), self.late_distance if delay and not self.facts else 0.0
        gradients = self.schedule.strategy.averages_gradients or (self.facts is not None and spread == 0)
        here, there = (model.steps_ratio(spread, 0.0, late=late, gradients=gradients) for model in (case, usual))
        more = self.steps_ratio - there  # before `here` is added, which vanishes in an infinite price
        if delay and self.facts is not None:
            more += self.facts.more
        elif delay and self.delay is Delay.PIPELINE:
            more += self.model.delay_more * self.schedule.strategy.sync.lag
        return self.step_seconds * (here + more)

    @property
    def averages_more(self) -> float:
        """What averages that come a round late may cost more than predicted."""
        return self.model.late_more(self.late_distance) if self.late_distance else 0.0

    @property
    def late(self) -> bool:
        """Whether a round's averaging comes one round late, during computing; parameters or gradients."""
        return self.schedule.strategy.is_delayed

    @property
    def delay(self) -> Delay | None:
        """What comes late: nothing, parameters or gradients; None where gradients are late as it comes."""
        return Delay.of(self.schedule.strategy)

    @property
    def kind(self) -> tuple[Delay | None, bool, str]:
        """Options of one kind agree in what is late, in what is averaged, and in the protocol, if one decides."""
        return self.delay, self.schedule.strategy.averages_gradients, self.facts.kind if self.facts else ""

    @property
    def transport(self) -> Transport:
        """How its sums travel; with the field `algorithm`, where that one can only be compared with."""
        return self.schedule.strategy.transport

    @property
    def steps_per_round(self) -> StepsPerRound:
        """Steps per round, one number or one per worker."""
        return self.schedule.strategy.steps_per_round

    @property
    def is_plain(self) -> bool:
        """Whether it is All-Reduce every k steps, k one number for all: what a user has without a planner."""
        return self.schedule.strategy.averages_everyone and isinstance(self.steps_per_round, int) and self.facts is None

    @property
    def is_usual(self) -> bool:
        """Whether it is All-Reduce as it is usually run: gradients in every step, around rings, as they are."""
        synchronous = self.schedule.strategy.averages_gradients and not self.late
        return (
            self.is_plain
            and synchronous
            and self.algorithm is AllReduceAlgorithm.RING
            and self.transport == Transport()
        )

    def steps_ratio_error(self, data: Data) -> float:
        """The relative error of `steps_ratio` that 9 of 10 schedules keep; synchronous gradients define 1."""
        if self.delay is Delay.PIPELINE:
            return self.model.delay_error
        if self.quorum:
            return self.model.delay_error * min(1.0, self.quorum.delay)
        if self.schedule.strategy.averages_gradients:
            return 0.0
        return self.model.error(data, late=self.late)

    @property
    def basis(self) -> str:
        """Whose errors `steps_ratio_error` is, as the subject of a sentence."""
        return "measured pipelines" if self.delay is Delay.PIPELINE or self.quorum else self.model.basis

    @property
    def num_phases(self) -> int:
        """Distinct phases in a period; of neighbors that keep a gap 1, their graph, of a quorum 1, all workers."""
        return self.schedule.num_distinct_phases() if self.schedule.is_mixing else 1

    def to_json(self) -> dict[str, Any]:
        """Finite numbers only; null where a metric is infinite or unknown."""
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


def added_by_delay(schedule: Schedule) -> float:
    """What averages that come a round late add to the consensus distance: the steps of one more round, off the mean.

    That is exact where all workers take the same number of steps (`topo.metrics.late_distance`); else for their mean.
    """
    steps, count = schedule.strategy.steps_per_round, schedule.num_workers
    return (1 - 1 / count) * (steps if isinstance(steps, int) else sum(steps) / count)


def known(metric: Metric) -> float:
    """The value of a metric; infinite where it was not found."""
    return math.inf if metric.value is None else metric.value
