"""Schedule: cluster shape + strategy (+ certificate). What a schedule file holds, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from preduce.topo import rule
from preduce.topo.errors import ScheduleError
from preduce.topo.phase import Group, Phase
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.strategies.neighbor import Neighbor
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from preduce.topo.cluster import Cluster
    from preduce.topo.strategies.base import Strategy


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who averages with whom, when: the value that is designed, proved, exported and executed.

    Raises:
        ScheduleError: at construction, when the strategy does not fit the cluster. Overlapping groups are *not*
            refused here: `verify` refutes them with a witness.
    """

    name: str
    cluster: Cluster
    strategy: Strategy
    certificate: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Keep only the cluster's shape; check that the strategy fits it."""
        object.__setattr__(self, "cluster", self.cluster.shape())
        if self.num_workers < 2:
            raise ScheduleError(f"cluster {self.cluster}: has 1 worker; a schedule needs at least 2 workers")
        self.strategy.check(self.cluster)

    @property
    def num_workers(self) -> int:
        """The number of workers, n."""
        return self.cluster.num_workers

    @property
    def period(self) -> int:
        """The number of phases, counted in rounds.

        Raises:
            ScheduleError: the strategy has no fixed phases.
        """
        if isinstance(self.strategy, Static):
            return len(self.strategy.phases)
        if isinstance(self.strategy, Neighbor):
            return len(self.strategy.rounds)
        if isinstance(self.strategy, AllReduce):
            return 1
        raise ScheduleError(f"strategy {self.strategy.kind!r}: has no fixed phases")

    @property
    def prologue(self) -> int:
        """First rounds that average over all workers before the period starts."""
        return self.strategy.prologue if isinstance(self.strategy, Static) else 0

    def phase(self, index: int) -> Phase:
        """The explicit groups of phase `index` (taken modulo the period). O(num_workers) once, then cached.

        Raises:
            ScheduleError: the strategy has no fixed phases, or a rule phase has overlapping blocks.
        """
        strategy, index = self.strategy, index % self.period
        if isinstance(strategy, Static):
            if strategy.node_radices is None:
                return strategy.explicit_phases()[index]
            return _expanded(strategy.rule_phases()[index], self.cluster, strategy.node_radices)
        if isinstance(strategy, AllReduce):
            return Phase.from_groups(self.num_workers, [range(self.num_workers)])
        raise ScheduleError(f"strategy {strategy.kind!r}: has no groups")

    def group_of(self, worker: int, round_: int) -> Group | None:
        """The group of one worker in one round (prologue included), None if it skips. O(size of the group) for rules.

        Raises:
            ScheduleError: the strategy has no fixed phases.
        """
        if isinstance(self.strategy, AllReduce) or round_ < self.prologue:
            return Group(tuple(range(self.num_workers)))
        index = (round_ - self.prologue) % self.period
        if not isinstance(self.strategy, Static):
            raise ScheduleError(f"strategy {self.strategy.kind!r}: has no groups")
        if self.strategy.node_radices is not None:
            size = self.cluster.workers_per_node
            assert size is not None
            return rule.group_of(worker, self.strategy.rule_phases()[index], size, self.strategy.node_radices)
        phase = self.strategy.explicit_phases()[index]
        label = int(phase.labels()[worker])
        return None if label < 0 else phase[label]

    def paces(self) -> npt.NDArray[np.int64]:
        """Steps per round of every worker, shape (num_workers,)."""
        pace = self.strategy.pace
        if isinstance(pace, int):
            return np.full(self.num_workers, pace, dtype=np.int64)
        return np.array(pace, dtype=np.int64)

    def pace_of(self, worker: int) -> int:
        """Steps per round of one worker."""
        pace = self.strategy.pace
        return pace if isinstance(pace, int) else pace[worker]

    @property
    def overlap(self) -> bool:
        """Whether averaging runs while the next round computes."""
        return bool(getattr(self.strategy, "overlap", False))

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients are averaged in each step rather than parameters."""
        return bool(getattr(self.strategy, "averages_gradients", False))

    def num_distinct_phases(self) -> int:
        """Distinct partitions in a period: the communicator splits that a run needs; empty phases cost none."""
        if isinstance(self.strategy, Static) and self.strategy.is_rule:
            distinct = {
                frozenset(
                    (frozenset(block.local), frozenset(block.across))
                    for block in phase
                    if len(block.local) > 1 or block.across
                )
                for phase in self.strategy.rule_phases()
            }
            return len(distinct - {frozenset()})
        if isinstance(self.strategy, Neighbor):
            return len(set(self.strategy.rounds))
        phases = [self.phase(t) for t in range(self.period)]
        return len({phase.members.tobytes() + phase.offsets.tobytes() for phase in phases if len(phase)})

    def with_certificate(self, certificate: Mapping[str, Any] | None) -> Schedule:
        """The same schedule carrying a certificate."""
        return replace(self, certificate=certificate)


@lru_cache(maxsize=64)
def _expanded(phase: rule.RulePhase, cluster: Cluster, radices: tuple[int, ...]) -> Phase:
    return rule.expand(phase, cluster, radices)
