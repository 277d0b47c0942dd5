"""The failure plan of a schedule: how survivors form groups after a failure, and which schedules can have a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Choice, JsonObject
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import GradientBuckets
from partreduce.topo.strategies.base import Averaging, HasGroups, Strategy
from partreduce.topo.strategies.static import MAX_EXPLICIT_WORKERS, RulePhases, StaticGroups

MAX_FAILURES = 4
"""The most failures that a plan may cover; `verify` checks every combination of nodes on which workers fail."""


class SurvivorRule(Choice):
    """The rule that forms the survivors' groups after a failure."""

    KEEP_GROUPS = "keep_groups"
    """The schedule's own groups without the failed workers; a worker left alone in its group skips the round."""
    REAPPLY_RULE = "reapply_rule"
    """The schedule's rule, refitted to the nodes with survivors (`survivors.reapply_rule`), without failed workers."""
    ALL_REDUCE = "all_reduce"
    """All survivors in one group, in every round."""


@dataclass(frozen=True, slots=True)
class FailurePlan(JsonObject):
    """The plan by which survivors average after up to `failures` workers fail, or all workers of one node.

    Only the groups change: steps_per_round, averaging, prologue and transport stay the same. Survivors are numbered
    0 … m − 1 in ascending order of their ranks.
    """

    place: ClassVar[str] = "failure_plan."

    rule: SurvivorRule
    failures: Annotated[int, Ge(1), Le(MAX_FAILURES)]

    def __post_init__(self) -> None:
        if self.rule not in list(SurvivorRule):
            raise ScheduleError(f"failure_plan.rule: expected {', '.join(SurvivorRule)}, got {self.rule!r}")
        object.__setattr__(self, "rule", SurvivorRule(self.rule))
        JsonObject.__post_init__(self)

    def covers(self, cluster: Cluster, failed: Collection[int]) -> bool:
        if not 0 < len(failed) <= cluster.num_workers - 2:
            return False
        if len(failed) <= self.failures:
            return True
        node = int(cluster.node_of()[next(iter(failed))])
        return set(failed) == set(cluster.workers_of(node))

    def most_failures(self, cluster: Cluster) -> int:
        """Return the largest number of workers that may fail at once under this plan."""
        sizes = cluster.node_sizes()
        return max(self.failures, int(sizes[sizes <= cluster.num_workers - 2].max(initial=0)))


def check_failure_plan(plan: FailurePlan, cluster: Cluster, strategy: Strategy) -> None:
    """Raise ScheduleError if the plan cannot be applied to the strategy on this cluster.

    Whether survivors reach consensus is not checked here, but by `verify`.
    """
    check_planned(strategy)
    n = cluster.num_workers
    most = min(MAX_FAILURES, n - 2)
    if most < 1:
        raise _mismatch("", "a cluster of 3 workers or more", n, "remove the plan")
    if plan.failures > most:
        raise _mismatch(".failures", f"1 to {most} for {n} workers", plan.failures, "choose one of these")
    if isinstance(strategy, AllReduce) and plan.rule is not SurvivorRule.ALL_REDUCE:
        raise _mismatch(".rule", "all_reduce for strategy allreduce", plan.rule, "write all_reduce")
    has_rule = isinstance(strategy, StaticGroups) and isinstance(strategy.phases, RulePhases)
    if plan.rule is SurvivorRule.REAPPLY_RULE and not has_rule:
        needed = "a schedule with node_radices for reapply_rule"
        raise _mismatch(".rule", needed, "listed groups", "write keep_groups or all_reduce")
    is_plain = strategy.payload.outer.is_plain
    if isinstance(strategy, StaticGroups) and plan.rule is not SurvivorRule.ALL_REDUCE and not is_plain:
        strategy.check_outer_settles(strategy.phases.relaxations())  # any group may become a group of all survivors
    lists_groups = isinstance(strategy, StaticGroups) or not isinstance(strategy.steps_per_round, int)
    if lists_groups and n > MAX_EXPLICIT_WORKERS:
        most_listed = f"at most {MAX_EXPLICIT_WORKERS} workers, whose groups survivors list"
        raise _mismatch("", most_listed, n, "remove the plan")
    if plan.rule is not SurvivorRule.ALL_REDUCE and (index := _first_overlap(cluster, strategy)) is not None:
        needed, place = f"groups that share no worker for {plan.rule}", f"two that do in strategy.phases[{index}]"
        raise _mismatch(".rule", needed, place, "write all_reduce, or groups that are disjoint")


def _mismatch(member: str, expected: str, got: object, way_out: str) -> ScheduleError:
    return ScheduleError(f"failure_plan{member}: expected {expected}, got {got}; {way_out}")


def _first_overlap(cluster: Cluster, strategy: Strategy) -> int | None:
    """Return the index of the first phase in which two groups share a worker; None if there is none.

    O(blocks) for rules, O(period · num_workers) for listed groups.
    """
    assert isinstance(strategy, HasGroups), "check_covered() lets only kinds with phases through"
    rule = strategy.rule(cluster, by_node=True)
    if rule is not None:
        return rule.shared_rank()
    for index in range(strategy.period):
        if np.bincount(strategy.phase(index, cluster).members).max(initial=0) > 1:
            return index
    return None


class AfterFailure(Choice):
    """How a run reacts when a worker fails."""

    CONTINUES = "continues"
    """Survivors continue in place."""
    RESTARTS = "restarts"
    """All workers restart from their last checkpoint (`--max-restarts`); `--tolerate-failures` raises an error."""
    REFUSED = "refused"
    """An error is raised."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table of failures: the reaction of a run, `answer`, if `applies` is True for its strategy."""

    name: str
    answer: AfterFailure
    words: str
    """How survivors continue, or why they cannot; text of the documentation and of error messages."""
    place: str = ""
    """Path in `strategy` of the feature that prevents continuing; empty if no field of the strategy does."""
    is_: str = ""
    """The predicate of the error message about the value at `place`, such as "is per_layer"."""
    applies: Callable[[Strategy], bool] = lambda _: False


def _kind(kind: str, words: str, *, name: str = "", answer: AfterFailure = AfterFailure.RESTARTS) -> Case:
    is_ = f"is {kind}, and failure plans are for static and allreduce"
    return Case(name or kind, answer, words, "kind", is_, lambda strategy: strategy.kind == kind)


CONTINUES, RESTARTS, REFUSED = AfterFailure
UNPLANNED = (
    Case("failure plan for outer parameters per worker", REFUSED,
         "none is proved; leave failure_plan out, and survivors average all together",
         "payload.outer.outer_params", "is per_worker", lambda s: s.payload.outer.has_own_outer_params),
)  # fmt: skip
"""Features with which survivors can continue, averaging all together, but no failure plan is valid."""
CASES = (
    Case("allreduce of gradients", CONTINUES, "the step is done, or done again by the survivors; models stay equal"),
    Case("allreduce of parameters", CONTINUES, "the round is done, or done again by the survivors"),
    Case("static", CONTINUES, "the same, in the groups of the failure plan, or all together"),
    Case("unequal steps per round", CONTINUES, "each survivor keeps its own, also where averaging is by steps"),
    Case("sync.pipeline", CONTINUES, "sums in flight begin again, of gradients that each worker keeps until then"),
    Case("sync.delay", CONTINUES, "a sum in flight begins again from the models with which the round began"),
    Case("sync.merge", CONTINUES, "sums in flight begin again from what each survivor had sent"),
    Case("transport.codec", CONTINUES, "a sum that begins again is rounded again; what roundings left over is dropped"),
    Case("payload.outer", CONTINUES, "outer parameters and momentum stay, also where each worker has its own"),
    Case("payload.fragments", CONTINUES, "the turn is done, or done again; the other fragments keep what they have"),
    Case("gradient_buckets per_layer", CONTINUES, "all layers of the step are sent again, also those that had left"),
    Case("dynamic_groups", CONTINUES, "the group generator hands out groups of the survivors, by default of any"),
    Case("neighbor with sync.iteration_gap", RESTARTS, "what a worker waits for may never come", "sync",
         "is iteration_gap", lambda s: s.sync.word == "iteration_gap"),
    _kind("neighbor", "neighborhoods overlap, so that no group commits an average, or does not, as one"),
    _kind("pairwise", "workers agree on pairs as it comes"),
    _kind("server", "what a server holds fails with its host"),
    _kind("dynamic_groups", "the group generator plans; leave failure_plan out", answer=REFUSED,
          name="failure plan for dynamic_groups"),
    Case("sync.partial", RESTARTS, "gradients that came too late wait on their worker for a later sum", "sync",
         "is partial", lambda s: s.sync.word == "partial"),
    Case("payload.tables", RESTARTS, "rows fail with the worker that holds them", "payload.tables", "are there",
         lambda s: bool(s.payload)),
    Case("per_layer in a pipeline", RESTARTS, "no worker keeps late gradients that left by layers",
         "transport.gradient_buckets", "is per_layer",
         lambda s: s.sync.delays_gradients and s.transport.gradient_buckets is GradientBuckets.PER_LAYER),
    Case("sync.delay with averaging by steps", RESTARTS, "a worker that joins a late average took as many as its donor",
         "averaging", "is by steps", lambda s: s.mixes_late and s.averaging is not Averaging.MEAN
         and len(s.step_counts) > 1),
    Case("sharded replicas", RESTARTS, "its replicas are sharded"),
    Case("a second DistributedOptimizer", RESTARTS, "it belongs to the second DistributedOptimizer of this process"),
    Case("groups of NCCL", RESTARTS, "its groups are not gloo's"),
)  # fmt: skip
"""Kinds and features in the order of the checks; the first that applies is the reason in the error message."""
BY_NAME = {case.name: case for case in (*CASES, *UNPLANNED)}
"""Every row of the table of failures, by its name."""


def table() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the documentation's table of failures: kind or feature, reaction, explanation."""
    yield from ((case.name, str(case.answer), case.words) for case in BY_NAME.values())


def check_covered(strategy: Strategy) -> None:
    """Raise ScheduleError if survivors of this strategy cannot continue, with or without a failure plan."""
    _check(strategy, CASES)


def check_planned(strategy: Strategy) -> None:
    """Raise ScheduleError if survivors of this strategy cannot continue, or no failure plan can exist for it."""
    _check(strategy, (*CASES, *UNPLANNED))


def _check(strategy: Strategy, cases: Iterable[Case]) -> None:
    for case in cases:
        if case.applies(strategy):
            raise ScheduleError(f"strategy.{case.place}: {case.is_}; {case.words}")
