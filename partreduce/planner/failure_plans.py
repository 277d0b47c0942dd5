"""What survivors run after a failure, planned beforehand: the first of three rules that still does.

The rules are those of `topo.failure_plan.SurvivorRule`, in that order: the schedule's own groups, its own rule on the
nodes that are left, All-Reduce. The first is taken after which the survivors of every failure reach consensus, proved,
and whose predicted time to the loss is at most FACTOR of that of the fastest such rule. The time of a rule is that
after the slowest failure, of one of each class (`verify.failure_plans`). A large rule is compared on fewer nodes, of
which each lost one is a larger part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import NamedTuple

from partreduce.planner.job import PlanRequest
from partreduce.planner.measuring import measure
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError, ScheduleError
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule, check_planned
from partreduce.topo.hardware import Hardware, Switch
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import RulePhases, StaticGroups
from partreduce.topo.survivors import after_failure, planned_failures
from partreduce.verify.base import Status
from partreduce.verify.checker.refusal import TooLarge
from partreduce.verify.failure_plans import planned_classes, prove_survives

FACTOR = 1.1
"""A rule is taken if it takes at most so many times the least predicted time to the loss."""
COMPARED = 128
"""Workers of a rule on as many nodes as times are compared on; explicit groups of more are not measured."""
MEASURED = 64
"""Classes of failures whose time is predicted, at equal distances among all."""

WORDS = {
    SurvivorRule.KEEP_GROUPS: "keep their groups",
    SurvivorRule.REAPPLY_RULE: "apply the schedule's rule to the nodes that are left",
    SurvivorRule.ALL_REDUCE: "average all together",
}


class Survival(NamedTuple):
    """A schedule with its failure plan, and in words what survivors do."""

    schedule: Schedule
    words: str


def has_plan(schedule: Schedule) -> bool:
    """Whether a failure plan of the schedule can be made, and run."""
    try:
        check_planned(schedule.strategy)
    except ScheduleError:
        return False
    return True


def survival(schedule: Schedule, job: PlanRequest, *, say: Callable[[str], None] = lambda _: None) -> Survival:
    """Plan for the failure of up to `job.tolerate_failures` workers, and of one node.

    Raises:
        ScheduleError: no plan of such a schedule can be made.
    """
    check_planned(schedule.strategy)
    bare = replace(schedule, failure_plan=None, certificate=None)
    say(f"planning for the failure of up to {job.tolerate_failures} workers or one node")
    has_groups = isinstance(bare.strategy, StaticGroups)
    has_rule = has_groups and isinstance(getattr(bare.strategy, "phases", None), RulePhases)
    possible = {SurvivorRule.KEEP_GROUPS: has_groups, SurvivorRule.REAPPLY_RULE: has_rule}
    rules = [rule for rule in SurvivorRule if possible.get(rule, True)]
    plans = [replace(bare, failure_plan=FailurePlan(rule, job.tolerate_failures)) for rule in rules]
    plans = [plan for plan in plans if prove_survives(plan).status is Status.PROVED]
    times = [_time(plan, job) for plan in plans] if len(plans) > 1 else [0.0]
    chosen = next(plan for plan, time in zip(plans, times, strict=True) if time <= FACTOR * min(times))
    return Survival(chosen, _words(chosen))


def _time(planned: Schedule, job: PlanRequest) -> float:
    """The predicted time to the loss after the slowest failure, of one of each class; infinite where there is none.

    All-Reduce's survivors differ in where they are: the classes of kept groups stand for them.
    """
    schedule, job = _compared(planned, job)
    if schedule.num_workers > COMPARED:
        return inf
    plan = schedule.failure_plan
    assert plan is not None, "planned"
    rule = SurvivorRule.KEEP_GROUPS if plan.rule is SurvivorRule.ALL_REDUCE else plan.rule
    try:
        failures = planned_classes(replace(schedule, failure_plan=replace(plan, rule=rule)))
    except TooLarge:
        failures = list(planned_failures(schedule, replace(plan, failures=1)))
    return max(_time_after(schedule, failed, job) for failed in failures[:: -(-len(failures) // MEASURED)])


def _time_after(schedule: Schedule, failed: tuple[int, ...], job: PlanRequest) -> float:
    try:
        found = after_failure(schedule, failed)
        left = replace(job, cluster=survivors_of(job.cluster, failed), tolerate_failures=0, take=None)
        return measure(found, left, algorithm=found.strategy.transport.algorithm).time
    except PartreduceError:
        return inf


def _words(schedule: Schedule) -> str:
    plan = schedule.failure_plan
    assert plan is not None, "just made"
    workers = f"{'up to ' * (plan.failures > 1)}{plan.failures} worker{'s' * (plan.failures > 1)}"
    failed = f"after the failure of {workers} or of one node survivors"
    if not isinstance(schedule.strategy, StaticGroups):
        return f"{failed} continue with All-Reduce" + " in a pipeline" * schedule.strategy.sync.delays_gradients
    return f"{failed} {WORDS[plan.rule]}"


def _compared(schedule: Schedule, job: PlanRequest) -> tuple[Schedule, PlanRequest]:
    """The schedule that times are compared on: a large rule on fewer nodes, without what single ones have."""
    strategy, size = schedule.strategy, schedule.cluster.workers_per_node
    if not isinstance(strategy, StaticGroups) or not isinstance(strategy.phases, RulePhases):
        return schedule, job
    if schedule.num_workers <= COMPARED or not isinstance(strategy.steps_per_round, int):
        return schedule, job
    assert size is not None, "rules have equal nodes"
    radices = list(strategy.phases.node_radices)
    least = job.tolerate_failures + 1
    while prod(radices) * size > COMPARED and max(radices) > least:
        largest = radices.index(max(radices))
        radices[largest] = max(least, radices[largest] // 2)
    hardware = replace(job.hardware, node_inside=(), node_nic=(), switches=(), slowdown=())
    cluster = Cluster.regular(prod(radices), size, hardware=hardware)
    smaller = replace(strategy, phases=RulePhases(tuple(radices), strategy.phases.phases))
    return replace(schedule, cluster=cluster, strategy=smaller), replace(job, cluster=cluster)


def survivors_of(cluster: Cluster, failed: tuple[int, ...]) -> Cluster:
    """The cluster that is left, with the hardware of its nodes and workers under their new numbers."""
    shape, hardware, gone = cluster.without(failed), cluster.hardware, frozenset(failed)
    if hardware is None:
        return shape
    kept = [node for node in range(cluster.num_nodes) if set(cluster.workers_of(node)) - gone]
    node = {old: new for new, old in enumerate(kept)}
    left = (worker for worker in range(cluster.num_workers) if worker not in gone)
    rank = {old: new for new, old in enumerate(left)} if hardware.slowdown else {}
    switches: dict[frozenset[int], Switch] = {}
    for switch in hardware.switches:
        below = frozenset(node[old] for old in switch.nodes if old in node)
        slowest = switches.get(below, switch).uplink
        uplink = max(slowest, switch.uplink, key=lambda link: (link.seconds_per_byte, link.latency))
        if below:
            switches[below] = Switch(tuple(below), uplink)
    left_over: Hardware = replace(
        hardware,
        node_inside=tuple((node[old], link) for old, link in hardware.node_inside if old in node),
        node_nic=tuple((node[old], link) for old, link in hardware.node_nic if old in node),
        switches=tuple(switches.values()),
        slowdown=tuple((rank[old], factor) for old, factor in hardware.slowdown if old in rank),
    )
    return Cluster(shape.num_nodes, shape.workers_per_node, shape.nodes, left_over)
