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
from partreduce.topo.phase import Group, Phase
from partreduce.topo.round import MixingStep
from partreduce.topo.rule import RuleView
from partreduce.topo.strategies.axes import Form
from partreduce.topo.strategies.base import Mixing, Phased, Strategy
from partreduce.topo.strategies.outer import PLAIN
from partreduce.topo.strategies.routes import Route, Routes, TableWay


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who averages with whom, and when: the value that is designed, proved, exported and executed.

    It asks its strategy, passing on the cluster, and refuses in one place what a kind cannot do.
    `failure_plan` says what survivors run when workers fail (`topo.survivors.after_loss`).

    Raises:
        ScheduleError: at construction, when the strategy does not fit the cluster. Overlapping groups are *not*
            refused here: `verify` refutes them with a witness.
    """

    name: str
    cluster: Cluster
    strategy: Strategy
    certificate: Mapping[str, Any] | None = field(default=None, compare=False)
    failure_plan: FailurePlan | None = None

    def __post_init__(self) -> None:
        """Keep only the cluster's shape; check that the strategy fits it."""
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
        """Whether its rounds are fixed, so that it has mixing matrices and figures."""
        return not self.undecided

    @property
    def is_phased(self) -> bool:
        """Whether its rounds are phases of groups."""
        return isinstance(self.strategy, Phased)

    @property
    def undecided(self) -> str:
        """What of its rounds is not fixed, so that it has no figures, as a clause; empty where all is."""
        if not isinstance(self.strategy, Mixing):
            return "it has no fixed phases, hence no mixing matrix"
        if self.strategy.what.outer.has_own_anchors:
            return "outer steps from anchors of each worker's own are no mixing matrix of models"
        if self.strategy.when.takes_all:
            return ""
        return "which updates a round averages is decided while the job runs, so no round has a mixing matrix"

    @property
    def mixing(self) -> Mixing:
        """The strategy as one whose rounds are fixed."""
        if not isinstance(self.strategy, Mixing):
            raise ScheduleError(f"strategy {self.strategy.kind!r}: {self.undecided}")
        if self.undecided:
            own = self.strategy.what.outer.has_own_anchors
            place = "what.outer.anchor" if own else f"when.{self.strategy.when.word}"
            raise ScheduleError(f"{place}: {self.undecided}; it has no figures")
        return self.strategy

    @property
    def phased(self) -> Phased:
        """The strategy as one that averages in groups fixed beforehand."""
        if not isinstance(self.strategy, Phased):
            raise ScheduleError(f"strategy {self.strategy.kind!r}: has no groups")
        return self.strategy

    @property
    def period(self) -> int:
        """The number of phases or rounds, after which they repeat.

        Raises:
            ScheduleError: the strategy has no fixed phases.
        """
        return self.mixing.period

    @property
    def prologue(self) -> int:
        """First rounds that average over all workers before the period starts."""
        return self.strategy.prologue if isinstance(self.strategy, Mixing) else 0

    def steps(self) -> tuple[MixingStep, ...]:
        """What one period averages: its phases, or the rounds of a weighted graph.

        Raises:
            ScheduleError: the strategy has no fixed phases, or a rule phase has overlapping blocks.
        """
        return self.mixing.steps(self.cluster)

    def phase(self, index: int) -> Phase:
        """The explicit groups of phase `index` (taken modulo the period). O(num_workers) once, then cached.

        Raises:
            ScheduleError: the strategy has no fixed groups, or a rule phase has overlapping blocks.
        """
        phased = self.phased
        return phased.phase(index % phased.period, self.cluster)

    def group_of(self, worker: int, round_: int) -> Group | None:
        """The group of one worker in one round (prologue included), None if it skips. O(size of the group) for rules.

        Raises:
            ScheduleError: the strategy has no fixed groups.
        """
        phased = self.phased
        if round_ < phased.prologue:
            return Group(tuple(range(self.num_workers)))
        return phased.group_of(worker, (round_ - phased.prologue) % phased.period, self.cluster)

    def rounds_to_connect(self) -> int:
        """After how many rounds from the first every worker has averaged with all others, if only by way of others.

        One period, prologue included, where that never comes. O(rounds · num_workers).

        Raises:
            ScheduleError: the strategy has no fixed groups, or a rule phase has overlapping blocks.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        phased, n = self.phased, self.num_workers
        last = 1 if phased.prologue else phased.period
        met: list[tuple[int, int]] = []
        for round_ in range(last - 1):
            met += [(group.members[0], member) for group in self.phase(round_) for member in group.members]
            here, there = np.array(met or [(0, 0)]).T
            if (
                connected_components(coo_array((np.ones(len(here)), (here, there)), shape=(n, n)), directed=False)[0]
                == 1
            ):
                return round_ + 1
        return last

    def rule(self, *, by_node: bool = False) -> RuleView | None:
        """The rule behind the schedule, None for explicit groups, graphs and groups on request; see `Phased.rule`."""
        return self.strategy.rule(self.cluster, by_node=by_node) if isinstance(self.strategy, Phased) else None

    def paces(self) -> npt.NDArray[np.int64]:
        """Steps per round of every worker, shape (num_workers,), to read; one pace for all takes no memory."""
        pace = self.strategy.pace
        if isinstance(pace, int):
            return np.broadcast_to(np.int64(pace), self.num_workers)
        return np.array(pace, dtype=np.int64)

    @property
    def largest_pace(self) -> int:
        """The most steps that a worker takes in a round."""
        pace = self.strategy.pace
        return pace if isinstance(pace, int) else max(pace)

    @property
    def has_one_pace(self) -> bool:
        """Whether all workers take as many steps in a round."""
        pace = self.strategy.pace
        return isinstance(pace, int) or len(set(pace)) == 1

    def pace_of(self, worker: int) -> int:
        """Steps per round of one worker."""
        pace = self.strategy.pace
        return pace if isinstance(pace, int) else pace[worker]

    def stepping_at(self, step: int) -> npt.NDArray[np.int64]:
        """Who takes a step beside this one of the workers with the largest pace: 1 or 0, shape (num_workers,).

        A smaller pace is spread evenly over a round, as it is where all rounds take equally long.
        """
        paces = self.paces()
        longest = int(paces.max())
        at = step % longest
        return (at + 1) * paces // longest - at * paces // longest

    def num_distinct_phases(self) -> int:
        """Distinct partitions in a period: the communicator splits that a run needs; empty phases cost none.

        Raises:
            ScheduleError: the strategy has no fixed phases.
        """
        return self.mixing.num_distinct_phases(self.cluster)

    @property
    def routes(self) -> Routes:
        """Which tables travel apart from the strategy's own averaging."""
        return self.strategy.what

    def route_of(self, parameter: str) -> Route | None:
        """The route of a parameter; None where the strategy averages it as all others."""
        return self.routes.table(parameter)

    def owner_of(self, parameter: str, row: int) -> int | None:
        """The worker on which a row of a sharded table lies; None where every worker has it."""
        route = self.route_of(parameter)
        return (
            None
            if route is None or route.way is not TableWay.SHARDED
            else self.routes.owner(route, row, self.num_workers)
        )

    @property
    def meetings(self) -> Schedule:
        """Who meets whom and when: itself, or plain means in the place of outer steps from own anchors."""
        if not self.strategy.what.outer.has_own_anchors:
            return self
        what = replace(self.strategy.what, outer=PLAIN)
        return replace(self, strategy=replace(self.strategy, what=what), certificate=None)

    def travelling(self, form: Form) -> Schedule:
        """The same schedule with sums of this form; unchanged where its kind or the run-time has no such form."""
        if form not in self.strategy.forms or form is self.strategy.how.form:
            return self
        how = replace(self.strategy.how, form=form)
        return replace(self, strategy=replace(self.strategy, how=how), certificate=None)

    def with_certificate(self, certificate: Mapping[str, Any] | None) -> Schedule:
        return replace(self, certificate=certificate)
