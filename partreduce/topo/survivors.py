"""The schedule of the survivors after workers fail: by the schedule's failure plan, or All-Reduce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np

from partreduce.topo.arithmetic.whole_numbers import prime_factors
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule, check_covered
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.static import GroupPhases, RulePhases, StaticGroups


def after_failure(schedule: Schedule, failed: Collection[int]) -> Schedule:
    """Return the schedule of the survivors, numbered 0 … m − 1 in ascending order of their ranks in `schedule`.

    It follows the failure plan if that covers the failure, and otherwise is All-Reduce. It depends on the file only, so
    all workers compute the same. After a further failure, pass the original schedule and all ranks that have failed so
    far.

    Raises:
        ScheduleError: survivors of this strategy cannot continue, a rank is out of range, or fewer than two are left.
    """
    check_covered(schedule.strategy)
    gone = frozenset(failed)
    if outside := sorted(rank for rank in gone if not 0 <= rank < schedule.num_workers):
        raise ScheduleError(f"failed worker {outside[0]}: is out of range; ranks are 0..{schedule.num_workers - 1}")
    if schedule.num_workers - len(gone) < 2:
        raise ScheduleError(f"{len(gone)} of {schedule.num_workers} workers failed; a schedule needs at least 2")
    plan = schedule.failure_plan
    is_planned = plan is not None and plan.covers(schedule.cluster, gone)
    return _for_survivors(schedule, gone, plan.rule if plan is not None and is_planned else SurvivorRule.ALL_REDUCE)


def planned_failures(schedule: Schedule, plan: FailurePlan) -> Iterator[tuple[int, ...]]:
    """Yield every failure that the plan covers, as the sorted ranks of the failed workers.

    First all sets of up to `plan.failures` workers, then all workers of each node that has more than that.
    """
    n, cluster = schedule.num_workers, schedule.cluster
    for count in range(1, plan.failures + 1):
        yield from combinations(range(n), count)
    for node in map(cluster.workers_of, range(cluster.num_nodes)):
        if len(node) > plan.failures and n - len(node) >= 2:
            yield tuple(sorted(node))


def after_failure_of_nodes(schedule: Schedule, count: int) -> Schedule:
    """Return the schedule of the survivors after `count` whole nodes fail, if it is the same for any `count` nodes.

    Raises:
        ScheduleError: no plan covers this failure, nodes are unequal, or the result depends on which nodes fail.
    """
    cluster, plan = schedule.cluster, schedule.failure_plan
    if plan is None:
        raise ScheduleError("it plans for no failure (design --tolerate-failures)")
    worker_steps, size = schedule.worker_steps(), len(cluster.workers_of(0))
    is_uniform = cluster.is_regular and (worker_steps.reshape(cluster.num_nodes, -1) == worker_steps[:size]).all()
    rule = schedule.rule(by_node=True)
    # For a rule of one digit, a reapplied rule and All-Reduce, the result does not depend on which nodes fail.
    keeps = plan.rule is SurvivorRule.KEEP_GROUPS
    if not is_uniform or (keeps and (rule is None or (count > 1 and rule.num_digits > 1))):
        raise ScheduleError("its nodes are not all of one size, and which failed is not known")
    failed = range(cluster.num_workers - count * size, cluster.num_workers)
    if not plan.covers(cluster, failed):
        raise ScheduleError(f"it plans for no failure of {f'{count} nodes' if count > 1 else 'a node'}")
    return after_failure(schedule, failed)


def _for_survivors(schedule: Schedule, failed: frozenset[int], rule: SurvivorRule) -> Schedule:
    """Return the schedule without the workers `failed`; `rule` forms its groups."""
    cluster, strategy = schedule.cluster.without(failed), schedule.strategy
    steps_per_round = strategy.steps_per_round
    if not isinstance(steps_per_round, int):
        steps_per_round = tuple(own for worker, own in enumerate(steps_per_round) if worker not in failed)
    strategy = replace(strategy, steps_per_round=steps_per_round)
    if isinstance(strategy, StaticGroups):
        if rule is SurvivorRule.KEEP_GROUPS:
            phases: RulePhases | GroupPhases = _without(failed, map(schedule.phase, range(schedule.period)))
        elif rule is SurvivorRule.REAPPLY_RULE:
            phases = _reapplied_phases(schedule, failed)
        else:
            phases = _one_group(cluster)
        strategy = replace(strategy, phases=phases)
    elif strategy.averages_gradients and not schedule.strategy.averages_gradients:
        # Models differ, so survivors average models even if all that are left have steps_per_round 1.
        transport = replace(strategy.transport, error_feedback=False)  # groups do not support it
        strategy = StaticGroups(
            phases=_one_group(cluster),
            steps_per_round=steps_per_round,
            transport=transport,
            averaging=strategy.averaging,
        )
    return replace(schedule, cluster=cluster, strategy=strategy, certificate=None, failure_plan=None)


def _one_group(cluster: Cluster) -> RulePhases | GroupPhases:
    rule = AllReduce().rule(cluster, by_node=True)
    return GroupPhases((AllReduce().phase(0, cluster),)) if rule is None else RulePhases(rule.radices, rule.phases)


def _without(failed: Collection[int], phases: Iterable[Phase]) -> GroupPhases:
    """Return the groups of these phases without the failed workers, survivors renumbered. O(period · num_workers)."""
    left = []
    for phase in phases:
        factors = dict(enumerate(phase.relaxation or ()))
        left.append(Phase.from_labels(np.delete(phase.labels(), list(failed)), factors))
    return GroupPhases(tuple(left))


def _reapplied_phases(schedule: Schedule, failed: frozenset[int]) -> RulePhases | GroupPhases:
    """Return the schedule's rule on the nodes with survivors, numbered in their order, without the failed workers.

    The result is a rule, or lists of groups if some node has both failed and surviving workers.
    """
    cluster = schedule.cluster
    assert cluster.workers_per_node is not None, "check_failure_plan() refuses listed groups"
    per_node = Counter(worker // cluster.workers_per_node for worker in failed)
    nodes = [node for node in range(cluster.num_nodes) if per_node[node] < cluster.workers_per_node]
    smaller = reapply_rule(schedule, len(nodes))
    number = {node: place for place, node in enumerate(nodes)}
    size = cluster.workers_per_node
    missing = [number[node] * size + rank for node, rank in (divmod(w, size) for w in failed) if node in number]
    if not missing:
        return smaller
    shape = Cluster.regular(len(nodes), size)
    return _without(missing, (smaller.phase(index, shape) for index in range(len(smaller))))


def reapply_rule(schedule: Schedule, num_nodes: int) -> RulePhases:
    """Return the schedule's rule (groups given by node digits), refitted to another number of nodes.

    Each prime factor of the number of nodes, largest first, is assigned to the digit that is furthest below its old
    radix (the first of several); digits of radix 1 are removed. The old number of nodes gives the old rule. Raises
    ScheduleError if the schedule lists its groups.
    """
    phases = schedule.strategy.phases if isinstance(schedule.strategy, StaticGroups) else None
    if not isinstance(phases, RulePhases):
        raise ScheduleError("node_radices: expected a rule, got listed groups; only a rule fits other nodes")
    if num_nodes == schedule.cluster.num_nodes:
        return phases
    radices = [1] * len(phases.node_radices)
    for factor in reversed(prime_factors(num_nodes)):
        ratios = [Fraction(old, new) for old, new in zip(phases.node_radices, radices, strict=True)]
        radices[ratios.index(max(ratios))] *= factor
    number = {digit: place for place, digit in enumerate(d for d, radix in enumerate(radices) if radix > 1)}
    fitted = tuple(
        tuple(replace(block, across=tuple(number[d] for d in block.across if d in number)) for block in phase)
        for phase in phases.phases
    )
    return RulePhases(tuple(radix for radix in radices if radix > 1), fitted)
