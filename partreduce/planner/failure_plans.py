"""Choose in advance the rule by which survivors continue after a failure: the first of three that works.

The rules are those of `topo.failure_plan.SurvivorRule`, in that order: the schedule's own groups, its own rule on the
remaining nodes, All-Reduce. The plan takes the first rule for which the survivors of every failure provably reach
consensus, and whose predicted time to the loss is at most FACTOR times that of the fastest such rule. The time of a
rule is that after the slowest failure, taken over one failure of each class (`verify.failure_plans`).
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
from partreduce.topo.hardware import Switch
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import RulePhases, StaticGroups
from partreduce.topo.survivors import after_failure, planned_failures
from partreduce.verify.base import Status
from partreduce.verify.checker.refusal import TooLarge
from partreduce.verify.failure_plans import planned_classes, prove_survives

FACTOR = 1.1
"""Largest ratio of a rule's predicted time to the least predicted time."""
COMPARED = 128
"""Most workers of the schedule on which times are compared; larger rules are reduced to fewer nodes."""
MEASURED = 64
"""Most failure classes whose time is predicted, evenly spaced among all."""

WORDS = {
    SurvivorRule.KEEP_GROUPS: "keep their groups",
    SurvivorRule.REAPPLY_RULE: "apply the schedule's rule to the nodes that are left",
    SurvivorRule.ALL_REDUCE: "average all together",
}


class Survival(NamedTuple):
    """A schedule with its failure plan (the rule that survivors follow), and the survivors' schedule in words."""

    schedule: Schedule
    words: str


def has_plan(schedule: Schedule) -> bool:
    """Return whether a schedule's strategy allows a failure plan."""
    try:
        check_planned(schedule.strategy)
    except ScheduleError:
        return False
    return True


def survival(schedule: Schedule, job: PlanRequest, *, say: Callable[[str], None] = lambda _: None) -> Survival:
    """Return the schedule with a plan for the failure of up to `job.tolerate_failures` workers, or of one node.

    Args:
        schedule: the schedule that all workers run until one fails.
        job: the request, by which the rules' times are predicted.
        say: called with a line of progress.

    Raises:
        ScheduleError: the schedule's strategy allows no failure plan.
    """
    check_planned(schedule.strategy)
    count, sync = job.tolerate_failures, schedule.strategy.sync
    say(f"planning for the failure of up to {count} workers or one node")
    has_groups = isinstance(schedule.strategy, StaticGroups)
    has_rule = has_groups and isinstance(getattr(schedule.strategy, "phases", None), RulePhases)
    possible = {SurvivorRule.KEEP_GROUPS: has_groups, SurvivorRule.REAPPLY_RULE: has_rule}
    rules = [rule for rule in SurvivorRule if possible.get(rule, True)]
    plans = {rule: replace(schedule, failure_plan=FailurePlan(rule, count), certificate=None) for rule in rules}
    plans = {rule: plan for rule, plan in plans.items() if prove_survives(plan).status is Status.PROVED}
    times = {rule: _time(plan, rule, job) if len(plans) > 1 else 0.0 for rule, plan in plans.items()}
    chosen = next(rule for rule, time in times.items() if time <= FACTOR * min(times.values()))
    workers = f"up to {count} workers" if count > 1 else f"{count} worker"
    runs = WORDS[chosen] if has_groups else "continue with All-Reduce" + " in a pipeline" * sync.delays_gradients
    return Survival(plans[chosen], f"after the failure of {workers} or of one node survivors {runs}")


def _time(planned: Schedule, rule: SurvivorRule, job: PlanRequest) -> float:
    """Return the predicted time (`CandidateSchedule.time`) of the survivors after the slowest failure.

    `planned` has a failure plan with `rule`. Failures that the symmetry of the groups makes equal are a class; at most
    `MEASURED` classes are predicted, by one failure each. The rule `all_reduce` has no classes, but its time depends on
    the survivors' nodes, so it is predicted for the classes of the rule `keep_groups`. The time is infinite if no loss
    is reached, or if the schedule remains too large.
    """
    schedule, job = _smaller_copy(planned, job)
    if schedule.num_workers > COMPARED:
        return inf
    represented = SurvivorRule.KEEP_GROUPS if rule is SurvivorRule.ALL_REDUCE else rule
    try:
        failures = planned_classes(replace(schedule, failure_plan=FailurePlan(represented, job.tolerate_failures)))
    except TooLarge:
        failures = list(planned_failures(schedule, FailurePlan(rule, 1)))
    return max(_time_after(schedule, failed, job) for failed in failures[:: -(-len(failures) // MEASURED)])


def _time_after(schedule: Schedule, failed: tuple[int, ...], job: PlanRequest) -> float:
    try:
        found = after_failure(schedule, failed)
        left = replace(job, cluster=survivors_of(job.cluster, failed), tolerate_failures=0, take=None)
        return measure(found, left, algorithm=found.strategy.transport.algorithm).time
    except PartreduceError:
        return inf


def _smaller_copy(schedule: Schedule, job: PlanRequest) -> tuple[Schedule, PlanRequest]:
    """Return the schedule and job for which times are predicted: a rule for a large cluster gets fewer, equal nodes."""
    strategy, size = schedule.strategy, schedule.cluster.workers_per_node
    if not isinstance(strategy, StaticGroups) or not isinstance(strategy.phases, RulePhases):
        return schedule, job
    if schedule.num_workers <= COMPARED or not isinstance(strategy.steps_per_round, int):
        return schedule, job
    assert size is not None, "rules have equal nodes"
    radices, least = list(strategy.phases.node_radices), job.tolerate_failures + 1
    while prod(radices) * size > COMPARED and max(radices) > least:
        largest = radices.index(max(radices))
        radices[largest] = max(least, radices[largest] // 2)
    hardware = replace(job.hardware, node_inside=(), node_nic=(), switches=(), slowdown=())
    cluster = Cluster.regular(prod(radices), size, hardware=hardware)
    smaller = replace(strategy, phases=RulePhases(tuple(radices), strategy.phases.phases))
    return replace(schedule, cluster=cluster, strategy=smaller), replace(job, cluster=cluster)


def survivors_of(cluster: Cluster, failed: tuple[int, ...]) -> Cluster:
    """Return the cluster without the failed workers, with its nodes, workers and their hardware renumbered."""
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
    left_over = replace(
        hardware,
        node_inside=tuple((node[old], link) for old, link in hardware.node_inside if old in node),
        node_nic=tuple((node[old], link) for old, link in hardware.node_nic if old in node),
        switches=tuple(switches.values()),
        slowdown=tuple((rank[old], factor) for old, factor in hardware.slowdown if old in rank),
    )
    return Cluster(shape.num_nodes, shape.workers_per_node, shape.nodes, left_over)
