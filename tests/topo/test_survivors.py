"""What survivors run: by the rule of the schedule's failure plan, or All-Reduce over all who are left."""

from dataclasses import replace
from itertools import combinations
from math import prod

import pytest

from partreduce import Cluster, Schedule
from partreduce.errors import ScheduleError
from partreduce.schedulers.registry import build
from partreduce.strategies import Block, FailurePlan, Group, Phase, SurvivorRule
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    DelayedAveraging,
    DynamicGroups,
    GradientBuckets,
    GroupPhases,
    PartialAllReduce,
    Pipeline,
    RulePhases,
    StaticGroups,
    Transport,
)
from partreduce.topo.survivors import after_failure, after_failure_of_nodes, planned_failures, reapply_rule
from partreduce.verify.failure_plans import planned_classes

PAIRS = StaticGroups(
    phases=GroupPhases((Phase.from_groups(5, [[0, 3], [1, 4]]), Phase.from_groups(5, [[0, 1, 2]]))),
    steps_per_round=(1, 2, 3, 4, 5),
    prologue=2,
)
UNEVEN = Cluster.irregular([[0, 1, 2], [3, 4]])
RULE = StaticGroups(phases=RulePhases((4,), ((Block((0, 1), ()),), (Block((0,), (0,)), Block((1,), (0,))))))


def test_a_loss_that_no_plan_covers_leaves_all_survivors_in_one_group():
    found = after_failure(Schedule("pairs", UNEVEN, PAIRS), {1, 3})
    assert found.cluster == Cluster.irregular([[0, 1], [2]])
    assert found.strategy == StaticGroups(
        phases=GroupPhases((Phase.from_groups(3, [[0, 1, 2]]),)), steps_per_round=(1, 3, 5), prologue=2
    )


def test_all_reduce_stays_all_reduce():
    found = after_failure(Schedule("all", Cluster.regular(4, 2), AllReduce(steps_per_round=3)), {2, 3})
    assert found == Schedule("all", Cluster.regular(3, 2), AllReduce(steps_per_round=3))


@pytest.mark.parametrize(
    "strategy",
    [
        AllReduce(steps_per_round=3, sync=DelayedAveraging()),
        AllReduce(sync=Pipeline(), transport=Transport(codec=Codec.BFLOAT16)),
    ],
)
def test_what_comes_late_stays_late(strategy):
    assert after_failure(Schedule("all", Cluster.regular(4, 2), strategy), {2}).strategy == strategy


def test_models_that_differ_are_averaged_also_where_only_workers_of_steps_per_round_1_are_left():
    """All-Reduce at steps_per_round 1 averages gradients, which would leave the models apart for ever."""
    found = after_failure(Schedule("all", Cluster.regular(2, 2), AllReduce(steps_per_round=(1, 1, 1, 5))), {3})
    assert found.group_of(0, 0) == Group((0, 1, 2))
    assert not found.strategy.averages_gradients


@pytest.mark.parametrize(
    ("strategy", "failed", "said"),
    [
        (RULE, {8}, "failed worker 8: is out of range"),
        (RULE, {-1}, "failed worker -1: is out of range"),
        (RULE, set(range(7)), "7 of 8 workers failed"),
        (DynamicGroups(), {1}, "strategy.kind"),
        (AllReduce(sync=PartialAllReduce(quorum=3)), {1}, "strategy.sync"),
        (
            AllReduce(sync=Pipeline(), transport=Transport(gradient_buckets=GradientBuckets.PER_LAYER)),
            {1},
            "strategy.transport.gradient_buckets",
        ),
    ],
)
def test_what_cannot_continue_is_refused_by_name(strategy, failed, said):
    with pytest.raises(ScheduleError, match=said):
        after_failure(Schedule("it", Cluster.regular(4, 2), strategy), failed)


def _moved(found, schedule, failed):
    """The groups of each phase, by the workers' ranks in the first schedule."""
    left = [worker for worker in range(schedule.num_workers) if worker not in failed]
    return [
        {frozenset(left[member] for member in group.members) for group in phase}
        for phase in map(found.phase, range(found.period))
    ]


def _groups_without(schedule, failed):
    left = [
        {frozenset(set(group.members) - set(failed)) for group in phase}
        for phase in map(schedule.phase, range(schedule.period))
    ]
    return [{group for group in phase if len(group) > 1} for phase in left]


@pytest.mark.parametrize("strategy", [PAIRS, RULE])
def test_kept_groups_are_the_schedule_s_without_the_lost_whatever_the_loss(strategy):
    cluster = UNEVEN if strategy is PAIRS else Cluster.regular(4, 2)
    plan = FailurePlan(SurvivorRule.KEEP_GROUPS, 2)
    schedule = Schedule("it", cluster, strategy, failure_plan=plan)
    failures = list(planned_failures(schedule, plan))
    assert {failed for count in (1, 2) for failed in combinations(range(schedule.num_workers), count)} <= set(failures)
    for failed in failures:
        found = after_failure(schedule, failed)
        assert _moved(found, schedule, failed) == _groups_without(schedule, failed)
        assert found.worker_steps().tolist() == [
            steps_per_round for w, steps_per_round in enumerate(schedule.worker_steps()) if w not in failed
        ]
        assert found.failure_plan is None
        assert found.prologue == schedule.prologue


def test_a_plan_covers_so_many_workers_or_one_whole_node_wherever_its_workers_stand():
    """Nodes are uneven, and their workers not in order; a node with more workers than the plan says is covered."""
    plan, cluster = FailurePlan(SurvivorRule.KEEP_GROUPS, 1), Cluster.irregular([[5, 1, 3], [0], [4, 2]])
    covered = {failed for k in range(7) for failed in combinations(range(6), k) if plan.covers(cluster, failed)}
    assert covered == {(0,), (1,), (2,), (3,), (4,), (5,), (1, 3, 5), (2, 4)}
    assert plan.most_failures(cluster) == 3
    pair = Cluster.irregular([[0], [2, 1]])
    assert not plan.covers(pair, (1, 2)), "1 worker is left"
    assert plan.most_failures(pair) == 1


def test_a_rule_applied_again_is_the_rule_on_the_nodes_that_are_left():
    schedule = Schedule("it", Cluster.regular(4, 2), RULE, failure_plan=FailurePlan(SurvivorRule.REAPPLY_RULE, 2))
    for node in range(4):
        smaller = RulePhases((3,), RULE.phases.phases)
        failed = {2 * node, 2 * node + 1}
        assert after_failure(schedule, failed) == Schedule("it", Cluster.regular(3, 2), StaticGroups(phases=smaller))
    for failed in ((3,), (0, 6)):  # no node failed as a whole: the groups stay
        assert _moved(after_failure(schedule, failed), schedule, failed) == _groups_without(schedule, failed)


@pytest.mark.parametrize(
    ("radices", "nodes", "fitted"),
    [
        ((2, 2), 3, (3,)),
        ((4, 4), 15, (5, 3)),
        ((4, 9), 36, (4, 9)),
        ((4, 9), 35, (5, 7)),
        ((8, 2), 15, (5, 3)),
        ((2, 2, 2), 7, (7,)),
        ((3, 5), 14, (2, 7)),
        ((3, 5), 1, ()),
    ],
)
def test_radices_for_other_nodes_stay_near_the_old_ones(radices, nodes, fitted):
    phases = tuple((Block((0,), (digit,)),) for digit in range(len(radices)))
    old = Cluster.regular(prod(radices), 2)
    found = reapply_rule(Schedule("it", old, StaticGroups(phases=RulePhases(radices, phases))), nodes)
    assert found.node_radices == fitted
    found.check(Cluster.regular(nodes, 2))
    kept = [digit for phase in found.phases for block in phase for digit in block.across]
    assert kept == list(range(len(fitted))), "each digit that is left keeps its phase"


def test_what_the_nodes_left_run_is_the_same_whichever_are_lost():
    square = StaticGroups(phases=RulePhases((2, 2), ((Block((0, 1), (0,)),), (Block((0, 1), (1,)),))))
    for rule, count in ((SurvivorRule.REAPPLY_RULE, 1), (SurvivorRule.REAPPLY_RULE, 2), (SurvivorRule.ALL_REDUCE, 2)):
        schedule = Schedule("it", Cluster.regular(4, 2), square, failure_plan=FailurePlan(rule, 4))
        found = after_failure_of_nodes(schedule, count)
        for nodes in combinations(range(4), count):
            assert after_failure(schedule, {2 * node + rank for node in nodes for rank in (0, 1)}) == found
    kept = Schedule("it", Cluster.regular(4, 2), square, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 4))
    with pytest.raises(ScheduleError, match="not all of one size"):
        after_failure_of_nodes(kept, 2)


def test_planned_losses_of_a_million_workers_need_no_list_of_groups():
    bare = build("prague-figure-10", Cluster.regular(250_000, 4))
    schedule = replace(bare, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 1))
    assert len(schedule_text(schedule)) < 1000
    assert len(planned_classes(schedule)) == 5
    found = after_failure(schedule, {777_777})
    assert found.num_workers == 999_999
    assert found.group_of(777_777, 1) == Group((777_776, 777_777, 777_778))


def test_groups_that_no_survivor_could_list_are_refused_before_a_loss():
    cluster = Cluster.regular(2**23 + 1, 2)
    rule = StaticGroups(phases=RulePhases((cluster.num_nodes,), RULE.phases.phases))
    with pytest.raises(ScheduleError, match=r"failure_plan: expected at most 16777216 workers"):
        Schedule("it", cluster, rule, failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 1))
    with pytest.raises(ScheduleError, match=r"failure_plan\.rule: expected keep_groups, reapply_rule, all_reduce"):
        FailurePlan("remaining", 1)  # type: ignore[arg-type]  # a word, as a user may write it
