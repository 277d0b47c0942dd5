"""Schedule: cluster shape, strategy, failure plan and certificate; the content of a schedule file."""

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
    """A schedule: which workers average with each other, and when. Schedules are designed, proved, exported and run.

    `failure_plan` defines the schedule of the survivors when workers fail (`topo.survivors.after_failure`).

    Raises:
        ScheduleError: at construction, if the strategy does not fit the cluster; later, if rounds, phases or groups are
            requested of a strategy without fixed ones, or groups of a rule phase with overlapping blocks. Overlapping
            groups can be constructed: `verify` refutes them with a witness.
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
        """Whether all rounds are fixed in advance, so that mixing matrices and metrics exist."""
        return not self.undecided

    @property
    def is_phased(self) -> bool:
        """Whether all rounds are phases of groups fixed in advance."""
        return isinstance(self.strategy, HasGroups)

    @property
    def undecided(self) -> str:
        """The reason why rounds are not fixed in advance and have no metrics, as a clause; empty if they are fixed."""
        if not isinstance(self.strategy, HasMixingMatrix):
            return "it has no fixed phases, hence no mixing matrix"
        if self.strategy.payload.outer.has_own_outer_params:
            return "outer steps from each worker's own outer parameters are no mixing matrix of models"
        if self.strategy.sync.takes_all:
            return ""
        return "which updates a round averages is decided while the job runs, so no round has a mixing matrix"

    @property
    def mixing(self) -> HasMixingMatrix:
        """The strategy, typed as one with fixed rounds; raises ScheduleError if it has none."""
        if not isinstance(self.strategy, HasMixingMatrix):
            raise ScheduleError(f"strategy {self.strategy.kind!r}: {self.undecided}")
        if self.undecided:
            own = self.strategy.payload.outer.has_own_outer_params
            place = "payload.outer.outer_params" if own else f"sync.{self.strategy.sync.word}"
            raise ScheduleError(f"{place}: {self.undecided}; it has no metrics")
        return self.strategy

    @property
    def phased(self) -> HasGroups:
        """The strategy, typed as one with fixed groups; raises ScheduleError if it has none."""
        if not isinstance(self.strategy, HasGroups):
            raise ScheduleError(f"strategy {self.strategy.kind!r}: has no groups")
        return self.strategy

    @property
    def period(self) -> int:
        """The number of phases or rounds in one period."""
        return self.mixing.period

    @property
    def prologue(self) -> int:
        """The number of rounds before the first period, all of which average over all workers."""
        return self.strategy.prologue if isinstance(self.strategy, HasMixingMatrix) else 0

    def steps(self) -> tuple[MixingStep, ...]:
        """Return the phases of groups, or rounds over a graph, of one period."""
        return self.mixing.steps(self.cluster)

    def phase(self, index: int) -> Phase:
        """Return the explicit groups of phase `index` modulo the period. O(num_workers) once, then cached."""
        phased = self.phased
        return phased.phase(index % phased.period, self.cluster)

    def group_of(self, worker: int, round_: int) -> Group | None:
        """Return the group of one worker in round `round_` of the run (the first is 0); None if the worker skips.

        O(size of the group) for rules.
        """
        phased = self.phased
        if round_ < phased.prologue:
            return Group(tuple(range(self.num_workers)))
        return phased.group_of(worker, (round_ - phased.prologue) % phased.period, self.cluster)

    def rounds_to_connect(self) -> int:
        """Return the number of rounds until every worker has averaged with all others, directly or through others.

        If that does not happen within a period, return the period; 1 with a prologue. O(rounds · num_workers).
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
        """Return the rule of the schedule; None for explicit groups, graphs and groups formed at run time.

        A rule gives groups by the digits of node indices, for any number of nodes (`topo.rule`). With `by_node` its
        nodes are those of the cluster; otherwise a rule over all workers (allreduce) may count each worker as a node.
        """
        return self.strategy.rule(self.cluster, by_node=by_node) if isinstance(self.strategy, HasGroups) else None

    def worker_steps(self) -> npt.NDArray[np.int64]:
        """Return the steps per round of every worker, shape (num_workers,), read-only."""
        steps_per_round = self.strategy.steps_per_round
        if isinstance(steps_per_round, int):
            return np.broadcast_to(np.int64(steps_per_round), self.num_workers)
        return np.array(steps_per_round, dtype=np.int64)

    @property
    def largest_steps_per_round(self) -> int:
        """The largest steps per round of any worker."""
        return max(self.strategy.step_counts)

    @property
    def has_one_steps_per_round(self) -> bool:
        """Whether all workers have the same steps per round."""
        return len(self.strategy.step_counts) == 1

    @property
    def mean_progress(self) -> float:
        """The mean steps per round of the workers over the largest: their progress per step of the fastest."""
        if self.has_one_steps_per_round:
            return 1.0
        steps = self.worker_steps()
        return float(steps.mean() / steps.max())

    def steps_per_round_of(self, worker: int) -> int:
        """Return the steps per round of one worker."""
        steps_per_round = self.strategy.steps_per_round
        return steps_per_round if isinstance(steps_per_round, int) else steps_per_round[worker]

    def stepping_at(self, step: int) -> npt.NDArray[np.int64]:
        """Return 1 for each worker that takes a step while workers with most steps per round take step `step`, else 0.

        Shape (num_workers,). The steps of a worker with fewer steps per round are spread evenly over the round.
        """
        worker_steps = self.worker_steps()
        longest = int(worker_steps.max())
        at = step % longest
        return (at + 1) * worker_steps // longest - at * worker_steps // longest

    def num_distinct_phases(self) -> int:
        """Return the number of distinct non-empty phases in a period, each of which needs its own communicators."""
        return self.mixing.num_distinct_phases(self.cluster)

    @property
    def routes(self) -> Payload:
        """The payload: which embedding tables are exchanged separately, and how other parameters are averaged."""
        return self.strategy.payload

    def route_of(self, parameter: str) -> TablePlacement | None:
        """Return the placement of an embedding table by its parameter's name; None for other parameters."""
        return self.routes.table(parameter)

    def owner_of(self, parameter: str, row: int) -> int | None:
        """Return the rank that holds row `row` of a sharded table; None for parameters that every worker holds."""
        route = self.route_of(parameter)
        is_sharded = route is not None and route.way is Placement.SHARDED
        return self.routes.owner(route, row, self.num_workers) if route is not None and is_sharded else None

    @property
    def meetings(self) -> Schedule:
        """This schedule; with plain means instead of outer steps if each worker has its own outer parameters.

        Groups and rounds stay the same, so claims about which workers average together are proved for the result.
        """
        if not self.strategy.payload.outer.has_own_outer_params:
            return self
        payload = replace(self.strategy.payload, outer=PLAIN)
        return replace(self, strategy=replace(self.strategy, payload=payload), certificate=None)

    def with_certificate(self, certificate: Mapping[str, Any] | None) -> Schedule:
        return replace(self, certificate=certificate)
