"""Schedule: cluster shape + strategy (+ certificate). What a schedule file holds, as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.argument_types import check_fields
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.failure_plan import FailurePlan, check_failure_plan
from partreduce.topo.graphs import Graph
from partreduce.topo.phase import Group, Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.rule import RuleView
from partreduce.topo.strategies.base import HasGroups, HasMixingMatrix, Strategy
from partreduce.topo.strategies.payload import PLAIN, Payload, Placement, TablePlacement


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who averages with whom, and when: the value that is designed, proved, exported and executed.

    It asks its strategy, passing on the cluster, and refuses in one place what a kind cannot do.
    `failure_plan` says what survivors run when workers fail (`topo.survivors.after_failure`).

    Raises:
        ScheduleError: at construction, when the strategy does not fit the cluster. Overlapping groups are *not*
            refused here: `verify` refutes them with a witness. Later, by what asks for rounds, phases or groups of a
            strategy that has none fixed, or for the groups of a rule phase whose blocks overlap.
    """

    name: str
    cluster: Cluster
    strategy: Strategy
    certificate: Mapping[str, Any] | None = field(default=None, compare=False)
    failure_plan: FailurePlan | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "cluster", self.cluster.shape())
        if self.num_workers < 2:
            raise ScheduleError(f"cluster {self.cluster}: has 1 worker; a schedule needs at least 2 workers")
        self.strategy.check(self.cluster)
        if self.failure_plan is not None:
            check_failure_plan(self.failure_plan, self.cluster, self.strategy)

    @property
    def num_workers(self) -> int:
        return self.cluster.num_workers

    @property
    def is_mixing(self) -> bool:
        """Whether its rounds are fixed, so that it has mixing matrices and metrics."""
        return not self.undecided

    @property
    def is_phased(self) -> bool:
        """Whether its rounds are phases of groups."""
        return isinstance(self.strategy, HasGroups)

    @property
    def undecided(self) -> str:
        """What of its rounds is not fixed, so that it has no metrics, as a clause; empty where all is."""
        if not isinstance(self.strategy, HasMixingMatrix):
            return "it has no fixed phases, hence no mixing matrix"
        if self.strategy.payload.outer.has_own_outer_params:
            return "outer steps from each worker's own outer parameters are no mixing matrix of models"
        if self.strategy.sync.takes_all:
            return ""
        return "which updates a round averages is decided while the job runs, so no round has a mixing matrix"

    @property
    def mixing(self) -> HasMixingMatrix:
        """The strategy as one whose rounds are fixed."""
        if not isinstance(self.strategy, HasMixingMatrix):
            raise ScheduleError(f"strategy {self.strategy.kind!r}: {self.undecided}")
        if self.undecided:
            own = self.strategy.payload.outer.has_own_outer_params
            place = "payload.outer.outer_params" if own else f"sync.{self.strategy.sync.word}"
            raise ScheduleError(f"{place}: {self.undecided}; it has no metrics")
        return self.strategy

    @property
    def phased(self) -> HasGroups:
        """The strategy as one that averages in groups fixed beforehand."""
        if not isinstance(self.strategy, HasGroups):
            raise ScheduleError(f"strategy {self.strategy.kind!r}: has no groups")
        return self.strategy

    @property
    def period(self) -> int:
        """The number of phases or rounds, after which they repeat."""
        return self.mixing.period

    @property
    def prologue(self) -> int:
        """First rounds that average over all workers before the period starts."""
        return self.strategy.prologue if isinstance(self.strategy, HasMixingMatrix) else 0

    def steps(self) -> tuple[MixingStep, ...]:
        """What one period averages: its phases, or the rounds of a weighted graph."""
        return self.mixing.steps(self.cluster)

    def phase(self, index: int) -> Phase:
        """The explicit groups of phase `index` (taken modulo the period). O(num_workers) once, then cached."""
        phased = self.phased
        return phased.phase(index % phased.period, self.cluster)

    def group_of(self, worker: int, round_: int) -> Group | None:
        """The group of one worker in one round (prologue included), None if it skips. Rules: O(size of the group)."""
        phased = self.phased
        if round_ < phased.prologue:
            return Group(tuple(range(self.num_workers)))
        return phased.group_of(worker, (round_ - phased.prologue) % phased.period, self.cluster)

    def rounds_to_connect(self) -> int:
        """After how many rounds from the first every worker has averaged with all others, if only by way of others.

        One period, prologue included, where that never comes. O(rounds · num_workers).
        """
        phased = self.phased
        last = 1 if phased.prologue else phased.period
        met: list[tuple[int, int]] = []
        for round_ in range(last - 1):
            met += [(group.members[0], member) for group in self.phase(round_) for member in group.members]
            here, there = np.array(met or [(0, 0)]).T
            if Graph.undirected(self.num_workers, here, there).is_connected:
                return round_ + 1
        return last

    def rule(self, *, by_node: bool = False) -> RuleView | None:
        """The rule behind the schedule; None for explicit groups, graphs and groups on request (`HasGroups.rule`)."""
        return self.strategy.rule(self.cluster, by_node=by_node) if isinstance(self.strategy, HasGroups) else None

    def worker_steps(self) -> npt.NDArray[np.int64]:
        """Steps per round of every worker, shape (num_workers,), to read; one number for all takes no memory."""
        steps_per_round = self.strategy.steps_per_round
        if isinstance(steps_per_round, int):
            return np.broadcast_to(np.int64(steps_per_round), self.num_workers)
        return np.array(steps_per_round, dtype=np.int64)

    @property
    def largest_steps_per_round(self) -> int:
        """The most steps that a worker takes in a round."""
        return max(self.strategy.step_counts)

    @property
    def has_one_steps_per_round(self) -> bool:
        """Whether all workers take as many steps in a round."""
        return len(self.strategy.step_counts) == 1

    def steps_per_round_of(self, worker: int) -> int:
        """Steps per round of one worker."""
        steps_per_round = self.strategy.steps_per_round
        return steps_per_round if isinstance(steps_per_round, int) else steps_per_round[worker]

    def stepping_at(self, step: int) -> npt.NDArray[np.int64]:
        """Who takes a step when those with the largest steps_per_round take this one: 1 or 0, shape (num_workers,).

        A smaller steps_per_round is spread evenly over a round, as it is where all rounds take equally long.
        """
        worker_steps = self.worker_steps()
        longest = int(worker_steps.max())
        at = step % longest
        return (at + 1) * worker_steps // longest - at * worker_steps // longest

    def num_distinct_phases(self) -> int:
        """Distinct partitions in a period: the communicator splits that a run needs; empty phases cost none."""
        return self.mixing.num_distinct_phases(self.cluster)

    @property
    def routes(self) -> Payload:
        """Which tables travel apart from the strategy's own averaging."""
        return self.strategy.payload

    def route_of(self, parameter: str) -> TablePlacement | None:
        """The route of a parameter; None where the strategy averages it as all others."""
        return self.routes.table(parameter)

    def owner_of(self, parameter: str, row: int) -> int | None:
        """The worker on which a row of a sharded table lies; None where every worker has it."""
        route = self.route_of(parameter)
        is_sharded = route is not None and route.way is Placement.SHARDED
        return self.routes.owner(route, row, self.num_workers) if route is not None and is_sharded else None

    @property
    def meetings(self) -> Schedule:
        """Who meets whom and when: itself, or plain means in the place of outer steps from own outer parameters."""
        if not self.strategy.payload.outer.has_own_outer_params:
            return self
        payload = replace(self.strategy.payload, outer=PLAIN)
        return replace(self, strategy=replace(self.strategy, payload=payload), certificate=None)

    def with_certificate(self, certificate: Mapping[str, Any] | None) -> Schedule:
        return replace(self, certificate=certificate)
