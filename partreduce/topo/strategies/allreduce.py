"""Strategy `allreduce`: all workers average together (steps_per_round 1 is DDP, H > 1 is local SGD)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block, RuleView
from partreduce.topo.strategies.axes import (
    AllReduceAlgorithm,
    DelayedAveraging,
    DelayedMerge,
    GradientBuckets,
    Pipeline,
    Sync,
    Synchronous,
)
from partreduce.topo.strategies.base import HasGroups
from partreduce.topo.strategies.partial import PartialAllReduce


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(HasGroups):
    """Average over all workers once per round.

    *Gradients* are averaged before the step if steps_per_round is 1 and averaging is synchronous, pipelined or partial;
    synchronously this equals DDP for every optimizer. Otherwise, and for outer steps, *parameters* are averaged after
    the last step of each round.
    """

    kind: ClassVar[str] = "allreduce"
    averages_everyone: ClassVar[bool] = True
    sync_types: ClassVar[tuple[type[Sync], ...]] = (
        Synchronous,
        DelayedAveraging,
        DelayedMerge,
        Pipeline,
        PartialAllReduce,
    )
    algorithms: ClassVar[tuple[AllReduceAlgorithm, ...]] = (AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)

    def codec_unsupported_reason(self, cluster: Cluster) -> str:  # noqa: ARG002 - the same for all clusters
        return "a quorum's sums are sent as they are; leave it out" if isinstance(self.sync, PartialAllReduce) else ""

    def fragments_unsupported_reason(self) -> str:
        has_turns = isinstance(self.sync, Synchronous | DelayedMerge)
        return "" if has_turns else f"sync.{self.sync.word} is for whole models; leave it out"

    def check_kind(self, cluster: Cluster) -> None:
        if not isinstance(self.sync, PartialAllReduce):
            return
        self.sync.check_workers(cluster.num_workers)
        if self.transport.gradient_buckets is GradientBuckets.PER_LAYER:
            raise ScheduleError(
                "transport.gradient_buckets: is per_layer; a quorum's sums are added to the send buffer when they "
                "are whole; leave it out"
            )

    @property
    def averages_gradients(self) -> bool:
        is_plain = self.payload.outer.is_plain and not isinstance(self.sync, DelayedMerge)
        return self.steps_once and not self.mixes_late and is_plain

    @property
    def sends_layers(self) -> bool:
        return self.averages_gradients

    @property
    def period(self) -> int:
        return 1

    def phase(self, index: int, cluster: Cluster) -> Phase:
        return Phase.from_groups(cluster.num_workers, [self.group_of(0, index, cluster)])

    def group_of(self, worker: int, index: int, cluster: Cluster) -> Group:  # noqa: ARG002 - all groups are one
        return Group(tuple(range(cluster.num_workers)), self._relaxation)

    @property
    def _relaxation(self) -> Fraction:
        """The relaxation of the group of all workers: 1 minus the weight of a worker's own parameters (`sync.kept`)."""
        return 1 - self.sync.kept

    def rule(self, cluster: Cluster, *, by_node: bool = False) -> RuleView | None:
        """Return a rule with one phase and one block of all workers, in which each worker counts as a node.

        With `by_node` the rule's nodes are those of the cluster; return None if these are unequal.
        """
        if not by_node:
            return RuleView((cluster.num_workers,), ((Block((0,), (0,), self._relaxation),),), 1)
        if cluster.workers_per_node is None:
            return None
        radices = (cluster.num_nodes,) if cluster.num_nodes > 1 else ()
        everyone = Block(tuple(range(cluster.workers_per_node)), tuple(range(len(radices))), self._relaxation)
        return RuleView(radices, ((everyone,),), cluster.workers_per_node)

    def num_distinct_phases(self, cluster: Cluster) -> int:  # noqa: ARG002 - the same for all clusters
        return 1
