"""The failure plan of a schedule: by which rule its survivors continue, and which schedules can have one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, Closed
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.base import HasGroups, Strategy
from partreduce.topo.strategies.outer import PLAIN
from partreduce.topo.strategies.payload import PLAIN_PAYLOAD
from partreduce.topo.strategies.static import MAX_EXPLICIT_WORKERS, RulePhases, StaticGroups

MAX_FAILURES = 4
"""Failures that a plan may cover: `verify` looks at every order of their nodes."""


class SurvivorRule(Choice):
    """Which groups the survivors of a failure average in."""

    KEEP_GROUPS = "keep_groups"
    """The schedule's own groups without the failed workers; a worker that is left alone in a group skips."""

    REAPPLY_RULE = "reapply_rule"
    """The schedule's own rule on the nodes with survivors (`survivors.reapplied`), minus failed workers."""

    ALL_REDUCE = "all_reduce"
    """All survivors in one group, in every round."""


@dataclass(frozen=True, slots=True)
class FailurePlan(Closed):
    """What survivors run after any `failures` workers fail, or fewer, or all workers of any one node.

    Only the groups change: steps_per_round, averaging, prologue and how payload travels stay what they are. Survivors
    are numbered 0 … m − 1 in ascending order of their ranks.
    """

    place: ClassVar[str] = "failure_plan."

    rule: SurvivorRule
    failures: Annotated[int, Ge(1), Le(MAX_FAILURES)]

    def __post_init__(self) -> None:
        """Take a word for the rule that it names.

        Raises:
            ScheduleError: an unknown rule, or a number out of range.
        """
        if self.rule not in list(SurvivorRule):
            raise ScheduleError(f"failure_plan.rule: expected {', '.join(SurvivorRule)}, got {self.rule!r}")
        object.__setattr__(self, "rule", SurvivorRule(self.rule))
        Closed.__post_init__(self)

    def covers(self, cluster: Cluster, failed: Collection[int]) -> bool:
        """Whether the plan is for the failure of these workers."""
        if not 0 < len(failed) <= cluster.num_workers - 2:
            return False
        if len(failed) <= self.failures:
            return True
        node = int(cluster.node_of()[next(iter(failed))])
        return set(failed) == set(cluster.workers_of(node))

    def most_failures(self, cluster: Cluster) -> int:
        """The most workers that may fail at once under this plan."""
        sizes = cluster.node_sizes()
        return max(self.failures, int(sizes[sizes <= cluster.num_workers - 2].max(initial=0)))


def check_failure_plan(plan: FailurePlan, cluster: Cluster, strategy: Strategy) -> None:
    """Refuse a plan that cannot be built for some failure. Whether survivors reach consensus, `verify` says.

    Raises:
        ScheduleError: the place, the value and the rule.
    """
    check_covered(strategy)
    n = cluster.num_workers
    most = min(MAX_FAILURES, n - 2)
    if most < 1:
        raise ScheduleError(f"failure_plan: expected a cluster of 3 workers or more, got {n}; remove the plan")
    if plan.failures > most:
        raise ScheduleError(
            f"failure_plan.failures: expected 1 to {most} for {n} workers, got {plan.failures}; choose one of these"
        )
    if isinstance(strategy, AllReduce) and plan.rule is not SurvivorRule.ALL_REDUCE:
        raise ScheduleError(
            f"failure_plan.rule: expected all_reduce for strategy allreduce, got {plan.rule}; write all_reduce"
        )
    has_rule = isinstance(strategy, StaticGroups) and isinstance(strategy.phases, RulePhases)
    if plan.rule is SurvivorRule.REAPPLY_RULE and not has_rule:
        raise ScheduleError(
            "failure_plan.rule: expected a schedule with node_radices for reapply_rule, got listed groups; write "
            "keep_groups or all_reduce"
        )
    lists_groups = isinstance(strategy, StaticGroups) or not isinstance(strategy.steps_per_round, int)
    if lists_groups and n > MAX_EXPLICIT_WORKERS:
        raise ScheduleError(
            f"failure_plan: expected at most {MAX_EXPLICIT_WORKERS} workers, whose groups survivors list, got {n}; "
            "remove the plan"
        )
    if plan.rule is not SurvivorRule.ALL_REDUCE and (index := _first_overlap(cluster, strategy)) is not None:
        raise ScheduleError(
            f"failure_plan.rule: expected groups that share no worker for {plan.rule}, got two that do in "
            f"strategy.phases[{index}]; write all_reduce, or groups that are disjoint"
        )


def _first_overlap(cluster: Cluster, strategy: Strategy) -> int | None:
    """The first phase in which two groups share a worker. Rules: O(blocks); listed groups: O(period · num_workers)."""
    assert isinstance(strategy, HasGroups), "check_covered() lets only kinds with phases through"
    rule = strategy.rule(cluster, by_node=True)
    if rule is not None:
        return rule.shared_rank()
    for index in range(strategy.period):
        if np.bincount(strategy.phase(index, cluster).members).max(initial=0) > 1:
            return index
    return None


def check_covered(strategy: Strategy) -> None:
    """Refuse schedules with which survivors cannot go on yet.

    Raises:
        ScheduleError: the place, and what is not covered.
    """
    if strategy.kind not in ("static", "allreduce"):
        raise ScheduleError(f"strategy.kind: is {strategy.kind}; failure plans are for static and allreduce")
    payload = strategy.payload
    shares_outer_params = (
        replace(payload, outer=PLAIN, fragments=1) == PLAIN_PAYLOAD and not payload.outer.has_own_outer_params
    )
    is_timely = strategy.sync.word in ("synchronous", "pipeline", "delay")
    for name, is_covered in (("sync", is_timely), ("payload", shares_outer_params)):
        if not is_covered:
            raise ScheduleError(
                f"strategy.{name}: failure plans are for what is averaged synchronously, in a pipeline of gradients or "
                f"late by a round, without tables or outer parameters of each worker's own; leave {name} out"
            )
    if strategy.mixes_late and strategy.transport.codec.rounds:
        raise ScheduleError(
            f"strategy.transport.codec: is {strategy.transport.codec}; failure plans are for late averages without "
            "one; leave out codec, or sync"
        )
