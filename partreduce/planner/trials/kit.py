"""Trials: what no formula says beforehand is run in virtual time, each run paid for, and priced as an option.

A kind of strategy (`Kind`) says which of its strategies answer the job, what a run of one costs and what its steps do
to training. Everything else is the same for all kinds: paying, keeping what was run, naming what was not, and saying
why the recommendation is or is not one of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from partreduce.planner.delay import Delay
from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.predict import ARRAYS
from partreduce.planner.recommend import ms, permitted
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.work import payer
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.base import Strategy

PARTS = 4
"""Of a run after its warm-up, which say how much its seconds vary."""
PER_EVENT = 1.7e-5
"""Nominal seconds of a run for each event of a worker and each message."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A strategy before it is run: what it is called, what its run costs in nominal seconds, and the run."""

    name: str
    work: float
    run: Callable[[], CandidateSchedule | None]
    """The option as the run shows it; None if its workers wait for one another for ever."""


@dataclass
class Trials:
    """What was run for a job so far, by the key of each trial; `left_out` names what the time did not reach."""

    job: PlanRequest
    clock: Clock
    until: float
    left_out: list[str] = field(default_factory=list)
    options: dict[Hashable, CandidateSchedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slowdown = Slowdown.of(self.job)
        self.pay = payer(self.clock, self.until)

    def tried(self, key: Hashable, trial: Trial) -> bool:
        """Run what was not run, if there is time; whether there was."""
        if key in self.options:
            return True
        if not self.pay(trial.work):
            self.left_out.append(trial.name)
            return False
        self._run(key, trial)
        return True

    def try_all(self, trials: Iterable[tuple[Hashable, Trial]], *, in_any_case: bool) -> None:
        """Run those that there is time for; the cheapest one if nothing was run and one is needed `in_any_case`."""
        missed = [(key, trial) for key, trial in trials if not self.tried(key, trial)]
        if missed and not self.options and in_any_case:
            key, trial = min(missed, key=lambda one: one[1].work)
            self.left_out.remove(trial.name)
            self._run(key, trial)

    def again(self, key: Hashable, trial: Trial) -> None:
        """Put a dearer run of the same in its place, if there is time."""
        if self.pay(trial.work):
            self._run(key, trial)

    def best_first(self) -> list[Hashable]:
        """What was run, the least time to a loss first."""
        return sorted(self.options, key=lambda key: (self.options[key].time, self.options[key].name))

    def _run(self, key: Hashable, trial: Trial) -> None:
        if (option := trial.run()) is not None:
            self.options[key] = option


class Kind(ABC):
    """A kind of strategy that is run in virtual time; the registry is `trials.kinds`."""

    word: str
    """Of `Facts.kind` and of an option's JSON."""
    name: str
    """In sentences, without an article."""
    share: float = 0.15
    """Of the time, where it is one kind among others."""
    is_quick: bool = True
    """Whether a quick answer weighs it: where leaving it out cost some job its best schedule."""
    samples_distance: bool = True
    """Whether the consensus distance of one may come from a run, so that `trials.steady` looks at it."""

    @abstractmethod
    def weighs(self, job: PlanRequest) -> bool:
        """Whether strategies of this kind are candidates: where they are asked for, or answer what sets steps apart."""

    @abstractmethod
    def options(self, trials: Trials) -> list[CandidateSchedule]:
        """Those that answer a job which weighs this kind, each run."""

    @abstractmethod
    def reasons(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
        """What a recommended one answers, gains and needs, one sentence each."""

    def cautions(self, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:  # noqa: ARG002
        """What the user of a recommended one should know."""
        return []

    def says(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
        """The sentences about this kind: why it is recommended, or what the best of it would take."""
        if chosen.facts is not None and chosen.facts.kind == self.word:
            return self.reasons(chosen, options, job)
        able = [one for one in permitted(options, job) if one.facts is not None and one.facts.kind == self.word]
        return self.beside(best_of(able), chosen, job) if able else []

    def beside(self, best: CandidateSchedule, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:  # noqa: ARG002
        """What the best of this kind would take, where another kind is recommended."""
        if not best.time > chosen.time > 0:
            return []
        said = (
            f"{self.name} are predicted to take {best.time / chosen.time:.2f} times as long at their best "
            f"({best.name}: {ms(best.step_seconds)} per step, {best.steps_ratio:.2f} times All-Reduce's steps)"
        )
        return [said]


def best_of(options: Sequence[CandidateSchedule]) -> CandidateSchedule:
    """The least time to a loss."""
    return min(options, key=lambda option: (option.time, option.name))


def error_of(ends: npt.NDArray[np.float64], warm_up: int) -> float:
    """The standard error of the seconds of a round, from those of the parts of a run; `ends` (num_rounds,)."""
    marks = np.linspace(warm_up - 1, len(ends) - 1, PARTS + 1).astype(int)
    parts = np.diff(ends[marks]) / np.diff(marks)
    return float(parts.std(ddof=1)) / float(PARTS**0.5)


def memory_bytes(strategy: Strategy, job: PlanRequest) -> float:
    """What the busiest worker keeps beside its parameters, as proved; of a model whose size is known.

    Raises:
        ScheduleError: a queue without a limit.
    """
    return ARRAYS[strategy.protocol](strategy, job.cluster.num_workers) * (job.hardware.model_bytes or 0)


def calm(job: PlanRequest) -> PlanRequest:
    """The same job with equal workers, synchronous rounds and no codec."""
    hardware = replace(job.hardware, slowdown=(), jitter=0.0)
    return replace(
        job,
        cluster=replace(job.cluster, hardware=hardware),
        disturbance=None,
        sync=Delay.SYNCHRONOUS,
        codec=Codec.NONE,
        quorum=False,
        gap=False,
    )
