"""Schedules: queries by worker and round agree with the phases, also after failures."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import prod

import pytest

from helpers.refusals import check_error
from helpers.small import of_rule
from partreduce import Cluster, Hardware, Schedule
from partreduce.errors import ScheduleError
from partreduce.schedulers.registry import build
from partreduce.strategies import Block, FailurePlan, Group, Phase, SurvivorRule
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.strategies import (
    AllReduce,
    AllReduceAlgorithm,
    Codec,
    DelayedAveraging,
    DrainPolicy,
    DynamicGroups,
    GradientBuckets,
    GroupPhases,
    GroupSplit,
    IterationGap,
    NeighborAveraging,
    Pairwise,
    PartialAllReduce,
    Pipeline,
    Round,
    RulePhases,
    Server,
    SkipPolicy,
    StaticGroups,
    Transport,
)
from partreduce.topo.survivors import after_failure, after_failure_of_nodes, planned_failures, reapply_rule
from partreduce.verify.failure_plans import planned_classes

CLUSTER = Cluster.regular(4, 2)
RULE = StaticGroups(
    phases=RulePhases((2, 2), ((Block((0,), (0, 1), Fraction(1, 2)),), (Block((0, 1)),), ())), prologue=2
)
GROUPS = StaticGroups(
    phases=GroupPhases(
        (Phase.from_groups(8, [[0, 7], [1, 2, 3]]), Phase.from_groups(8, [Group((0, 1), Fraction(3, 2))]))
    ),
    steps_per_round=(1, 2, 1, 1, 1, 1, 1, 5),
)
RING = NeighborAveraging(rounds=(Round.from_edges(8, [(w, (w + 1) % 8, Fraction(1, 2)) for w in range(8)]),))


@pytest.mark.parametrize("strategy", [RULE, GROUPS, AllReduce(steps_per_round=4)], ids=["rule", "groups", "allreduce"])
def test_group_of_agrees_with_the_phases(strategy):
    schedule = Schedule("s", CLUSTER, strategy)
    for round_ in range(2 * schedule.period + schedule.prologue):
        for worker in range(8):
            group = schedule.group_of(worker, round_)
            if round_ < schedule.prologue:
                assert group.members == tuple(range(8))
                continue
            expected = [g for g in schedule.phase(round_ - schedule.prologue) if worker in g.members]
            assert expected == ([group] if group else [])


def test_steps_per_round():
    schedule = Schedule("s", CLUSTER, GROUPS)
    assert (
        schedule.worker_steps().tolist()
        == [schedule.steps_per_round_of(w) for w in range(8)]
        == list(GROUPS.steps_per_round)
    )
    assert Schedule("s", CLUSTER, AllReduce(steps_per_round=3)).worker_steps().tolist() == [3] * 8
    assert AllReduce().averages_gradients
    assert not AllReduce(steps_per_round=2).averages_gradients
    assert AllReduce(steps_per_round=(1, 1)).averages_gradients, "the same hash as 1, so the same meaning"
    assert not AllReduce(steps_per_round=(1, 2)).averages_gradients
    assert not AllReduce(sync=DelayedAveraging()).averages_gradients


def test_periods():
    assert [Schedule("s", CLUSTER, s).period for s in (RULE, GROUPS, RING, AllReduce())] == [3, 2, 1, 1]
    assert [Schedule("s", CLUSTER, s).num_distinct_phases() for s in (RULE, GROUPS, RING, AllReduce())] == [2, 2, 1, 1]
    assert Schedule("s", CLUSTER, RULE).phase(-1) == Schedule("s", CLUSTER, RULE).phase(2)
    check_error(ScheduleError, "has no groups", Schedule("s", CLUSTER, RING).phase, 0)
    check_error(ScheduleError, "has no groups", Schedule("s", CLUSTER, RING).group_of, 0, 0)


def test_equality_ignores_hardware_and_certificate():
    bare = Schedule("s", CLUSTER, RULE)
    equipped = Schedule("s", Cluster.regular(4, 2, hardware=Hardware(num_nics=2)), RULE)
    assert equipped == bare
    assert equipped.cluster.hardware is None
    assert bare.with_certificate({"x": 1}) == bare


@pytest.mark.parametrize(("strategy", "words"), [
    (StaticGroups(phases=GroupPhases(())), "at least 1 phase"),
    (StaticGroups(phases=GroupPhases((Phase.from_groups(4, []),))), "is for 4 workers, the cluster has 8"),
    (AllReduce(steps_per_round=(1, 2)), "has 2 entries"),
    (NeighborAveraging(rounds=()), "at least 1 round"),
    (NeighborAveraging(rounds=(Round.from_edges(3, []),)), "is for 3 workers"),
    (DynamicGroups(sync=DelayedAveraging()), "sync: strategy 'dynamic_groups' has no late averaging"),
    (AllReduce(sync=DelayedAveraging(2)), "sync.delay: is 2; an averaging is late by 1 round"),
    (Server(transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL)),
        "transport.algorithm: is hierarchical; strategy 'server' travels as ring"),
], ids=range(8))  # fmt: skip
def test_strategies_that_do_not_fit_are_rejected(strategy, words):
    check_error(ScheduleError, words, Schedule, "s", CLUSTER, strategy)
    check_error(ScheduleError, "at least 2 workers", Schedule, "s", Cluster.regular(1, 1), AllReduce())


@pytest.mark.parametrize(("build", "line"), [
    (lambda: StaticGroups(phases=GROUPS.phases, prologue=-1), "prologue: is -1; it must be >= 0"),
    (lambda: AllReduce(steps_per_round=(1, 2, -3)), "steps_per_round: is -3; it must be >= 1"),
    (lambda: Transport(codec="int9"),
        "transport.codec: is 'int9'; it must be one of none, float16, bfloat16, int8, int4"),
    (lambda: IterationGap(max_ig=2**31), "sync.iteration_gap.max_ig: is 2147483648; it must be <= 2147483647"),
    (lambda: SkipPolicy(limit=2, trigger=1), "sync.iteration_gap.skip.trigger: is 1; it must be >= 2"),
    (lambda: Pairwise(active=(0,), edges=((0, 1), (-1, 2))), "edges: is -1; it must be >= 0"),
], ids=range(6))  # fmt: skip
def test_number_out_of_range_is_rejected_at_construction(build, line):
    with pytest.raises(ScheduleError) as caught:
        build()
    assert str(caught.value) == line


def test_phases_of_the_wrong_form_are_rejected():
    check_error(ScheduleError, "explicit groups are expected", GroupPhases, ((),))
    check_error(ScheduleError, "rule phases are expected", RulePhases, (4,), (Phase.from_groups(8, []),))


@pytest.mark.parametrize(
    ("edge", "words"), [((0, 8), "ranks are"), ((3, 3), "what the others leave"), ((0, 1), "given twice")]
)
def test_invalid_edges_are_rejected(edge, words):
    check_error(ScheduleError, words, Round.from_edges, 8, [(0, 1, Fraction(1, 2)), (*edge, Fraction(1, 2))])


GLOBAL, NODES = (Block((0, 1), (0,)),), (Block((0, 1)),)
PAIRS, ALL_FOUR = Phase.from_groups(4, [[0, 1], [2, 3]]), Phase.from_groups(4, [range(4)])
HALF = Phase.from_groups(4, [Group((0, 1, 2, 3), Fraction(1, 2))])
CODED = Transport(codec=Codec.INT8)


@pytest.mark.parametrize(("strategy", "reason"), [
    (StaticGroups(phases=GroupPhases((PAIRS, ALL_FOUR))), ""),
    (StaticGroups(phases=GroupPhases((PAIRS, HALF))), ""),
    (StaticGroups(phases=RulePhases((2,), (NODES, GLOBAL)), sync=DelayedAveraging()), ""),
    (AllReduce(steps_per_round=4), ""),
    (StaticGroups(phases=GroupPhases((PAIRS,)), prologue=3), "no round of the period averages over all workers"),
    (StaticGroups(phases=RulePhases((2,), (NODES,))), "no round of the period averages over all workers"),
    (DynamicGroups(division=GroupSplit.NODE_THEN_ALL, slow_threshold=None), "its groups may leave out any worker"),
    (Pairwise(active=(0, 1)), "strategy 'pairwise' sends parameters, and rounded parameters lose every update"),
    (Server(steps_per_round=2), "strategy 'server' sends parameters, and rounded parameters lose every update"),
])  # fmt: skip
def test_parameter_codecs_need_a_recurring_global_average(strategy, reason):
    cluster = Cluster.regular(2, 2)
    if not reason:
        assert Schedule("coded", cluster, replace(strategy, transport=CODED)).strategy.transport is CODED
        return
    with pytest.raises(ScheduleError, match=rf"transport\.codec: is int8; .*{reason}"):
        Schedule("coded", cluster, replace(strategy, transport=CODED))


def test_strings_stand_for_choices_and_unknown_ones_are_named():
    assert Transport(codec="int8", algorithm="hierarchical") == Transport(
        codec=Codec.INT8, algorithm=AllReduceAlgorithm.HIERARCHICAL
    )
    assert isinstance(Pipeline(drain="drop").drain, DrainPolicy)
    check_error(ScheduleError, r"drain: is \['drop'\]", Pipeline, drain=["drop"])


@pytest.mark.parametrize(
    ("phases", "rounds"),
    [
        ([[[0, 1], [2, 3]], [[1, 2]], [[0, 1, 2, 3]]], 2),  # indirectly
        ([[[0, 1], [2, 3]], [[0, 1]], [[0, 1, 2, 3]]], 3),
        ([[[0, 1, 2, 3]], [[0, 1]]], 1),
        ([[[0, 1], [2, 3]], [[0, 1]]], 2),  # never, so one period
        ([[], [[0, 1, 2, 3]]], 2),
    ],
)
def test_rounds_to_connect_include_indirect_averaging(phases, rounds):
    made = GroupPhases(tuple(Phase.from_groups(4, groups) for groups in phases))
    assert Schedule("x", Cluster.regular(1, 4), StaticGroups(phases=made)).rounds_to_connect() == rounds
    assert Schedule("x", Cluster.regular(1, 4), StaticGroups(phases=made, prologue=2)).rounds_to_connect() == 1


def test_fewer_steps_per_round_are_spread_evenly():
    paced = Schedule("x", Cluster.regular(1, 4), AllReduce(steps_per_round=(5, 3, 1, 5)))
    steps = [paced.stepping_at(step).tolist() for step in range(5)]
    assert steps == [[1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    assert [paced.stepping_at(step).tolist() for step in range(5, 10)] == steps
    assert Schedule("x", Cluster.regular(1, 4), AllReduce(steps_per_round=3)).stepping_at(1).all()


# Schedules of survivors: by the rule of the failure plan, or All-Reduce over all survivors


PAIRS_OF_5 = StaticGroups(
    phases=GroupPhases((Phase.from_groups(5, [[0, 3], [1, 4]]), Phase.from_groups(5, [[0, 1, 2]]))),
    steps_per_round=(1, 2, 3, 4, 5),
    prologue=2,
)
UNEVEN = Cluster.irregular([[0, 1, 2], [3, 4]])
RULE_OF_4 = StaticGroups(phases=RulePhases((4,), ((Block((0, 1), ()),), (Block((0,), (0,)), Block((1,), (0,))))))


def test_failure_without_a_plan_leaves_one_group_of_survivors():
    found = after_failure(Schedule("pairs", UNEVEN, PAIRS_OF_5), {1, 3})
    assert found.cluster == Cluster.irregular([[0, 1], [2]])
    assert found.strategy == StaticGroups(
        phases=GroupPhases((Phase.from_groups(3, [[0, 1, 2]]),)), steps_per_round=(1, 3, 5), prologue=2
    )


@pytest.mark.parametrize("strategy", [
    AllReduce(steps_per_round=3), AllReduce(steps_per_round=3, sync=DelayedAveraging()),
    AllReduce(sync=Pipeline(), transport=Transport(codec=Codec.BFLOAT16)),
])  # fmt: skip
def test_allreduce_keeps_its_sync_after_a_failure(strategy):
    found = after_failure(Schedule("all", Cluster.regular(4, 2), strategy), {2, 3})
    assert found == Schedule("all", Cluster.regular(3, 2), strategy)


def test_survivors_average_unequal_models_even_at_steps_per_round_1():
    """All-Reduce at steps_per_round 1 averages gradients and would leave the models unequal."""
    found = after_failure(Schedule("all", Cluster.regular(2, 2), AllReduce(steps_per_round=(1, 1, 1, 5))), {3})
    assert found.group_of(0, 0) == Group((0, 1, 2))
    assert not found.strategy.averages_gradients


@pytest.mark.parametrize(("strategy", "failed", "text"), [
    (RULE_OF_4, {8}, "failed worker 8: is out of range"),
    (RULE_OF_4, {-1}, "failed worker -1: is out of range"),
    (RULE_OF_4, set(range(7)), "7 of 8 workers failed"),
    (DynamicGroups(), {1}, "strategy.kind"),
    (AllReduce(sync=PartialAllReduce(quorum=3)), {1}, "strategy.sync"),
    (AllReduce(sync=Pipeline(), transport=Transport(gradient_buckets=GradientBuckets.PER_LAYER)), {1},
        "strategy.transport.gradient_buckets"),
])  # fmt: skip
def test_unsupported_failures_are_rejected(strategy, failed, text):
    check_error(ScheduleError, text, after_failure, Schedule("it", Cluster.regular(4, 2), strategy), failed)


def _groups_by_old_rank(found, schedule, failed):
    """Return the groups of each phase by the workers' ranks in the first schedule."""
    left = [worker for worker in range(schedule.num_workers) if worker not in failed]
    return [
        {frozenset(left[member] for member in group.members) for group in phase}
        for phase in map(found.phase, range(found.period))
    ]


def _groups_without(schedule, failed):
    phases = map(schedule.phase, range(schedule.period))
    left = ({frozenset(set(group.members) - set(failed)) for group in phase} for phase in phases)
    return [{group for group in phase if len(group) > 1} for phase in left]


@pytest.mark.parametrize("strategy", [PAIRS_OF_5, RULE_OF_4])
def test_keep_groups_removes_only_the_failed_workers(strategy):
    cluster = UNEVEN if strategy is PAIRS_OF_5 else Cluster.regular(4, 2)
    plan = FailurePlan(SurvivorRule.KEEP_GROUPS, 2)
    schedule = Schedule("it", cluster, strategy, failure_plan=plan)
    failures = list(planned_failures(schedule, plan))
    assert {failed for count in (1, 2) for failed in combinations(range(schedule.num_workers), count)} <= set(failures)
    for failed in failures:
        found = after_failure(schedule, failed)
        assert _groups_by_old_rank(found, schedule, failed) == _groups_without(schedule, failed)
        assert found.worker_steps().tolist() == [
            steps_per_round for w, steps_per_round in enumerate(schedule.worker_steps()) if w not in failed
        ]
        assert found.failure_plan is None
        assert found.prologue == schedule.prologue


def test_failure_plan_covers_k_workers_or_one_node():
    """Uneven nodes with ranks out of order; a whole node is covered even if it exceeds the plan's count."""
    plan, cluster = FailurePlan(SurvivorRule.KEEP_GROUPS, 1), Cluster.irregular([[5, 1, 3], [0], [4, 2]])
    covered = {failed for k in range(7) for failed in combinations(range(6), k) if plan.covers(cluster, failed)}
    assert covered == {(0,), (1,), (2,), (3,), (4,), (5,), (1, 3, 5), (2, 4)}
    assert plan.most_failures(cluster) == 3
    pair = Cluster.irregular([[0], [2, 1]])
    assert not plan.covers(pair, (1, 2)), "only 1 worker remains"
    assert plan.most_failures(pair) == 1


def test_reapply_rule_uses_the_remaining_nodes():
    schedule = Schedule("it", Cluster.regular(4, 2), RULE_OF_4, failure_plan=FailurePlan(SurvivorRule.REAPPLY_RULE, 2))
    for node in range(4):
        smaller = RulePhases((3,), RULE_OF_4.phases.phases)
        failed = {2 * node, 2 * node + 1}
        assert after_failure(schedule, failed) == Schedule("it", Cluster.regular(3, 2), StaticGroups(phases=smaller))
    for failed in ((3,), (0, 6)):  # no whole node failed, so the groups are kept
        assert _groups_by_old_rank(after_failure(schedule, failed), schedule, failed) == _groups_without(
            schedule, failed
        )


@pytest.mark.parametrize(("radices", "nodes", "fitted"), [
    ((2, 2), 3, (3,)), ((4, 4), 15, (5, 3)), ((4, 9), 36, (4, 9)), ((4, 9), 35, (5, 7)), ((8, 2), 15, (5, 3)),
    ((2, 2, 2), 7, (7,)), ((3, 5), 14, (2, 7)), ((3, 5), 1, ()),
])  # fmt: skip
def test_radices_for_fewer_nodes_stay_close(radices, nodes, fitted):
    phases = tuple((Block((0,), (digit,)),) for digit in range(len(radices)))
    old = Cluster.regular(prod(radices), 2)
    found = reapply_rule(of_rule("it", old, radices, phases), nodes)
    assert found.node_radices == fitted
    found.check(Cluster.regular(nodes, 2))
    kept = [digit for phase in found.phases for block in phase for digit in block.across]
    assert kept == list(range(len(fitted))), "each remaining digit keeps its phase"


def test_schedule_of_remaining_nodes_is_independent_of_which_failed():
    square = StaticGroups(phases=RulePhases((2, 2), ((Block((0, 1), (0,)),), (Block((0, 1), (1,)),))))
    for rule, count in ((SurvivorRule.REAPPLY_RULE, 1), (SurvivorRule.REAPPLY_RULE, 2), (SurvivorRule.ALL_REDUCE, 2)):
        schedule = Schedule("it", Cluster.regular(4, 2), square, failure_plan=FailurePlan(rule, 4))
        found = after_failure_of_nodes(schedule, count)
        for nodes in combinations(range(4), count):
            assert after_failure(schedule, {2 * node + rank for node in nodes for rank in (0, 1)}) == found
    kept = Schedule("it", Cluster.regular(4, 2), square, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 4))
    check_error(ScheduleError, "not all of one size", after_failure_of_nodes, kept, 2)


def test_failure_plans_of_many_workers_list_no_groups():
    bare = build("prague-figure-10", Cluster.regular(50_000, 4))
    schedule = replace(bare, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 1))
    assert len(schedule_text(schedule)) < 1000
    assert len(planned_classes(schedule)) == 5
    found = after_failure(schedule, {177_777})
    assert found.num_workers == 199_999
    assert found.group_of(177_777, 1) == Group((177_776, 177_777, 177_778))


def test_failure_plans_of_too_many_workers_are_rejected():
    cluster = Cluster.regular(2**23 + 1, 2)
    rule = StaticGroups(phases=RulePhases((cluster.num_nodes,), RULE_OF_4.phases.phases))
    with pytest.raises(ScheduleError, match=r"failure_plan: expected at most 16777216 workers"):
        Schedule("it", cluster, rule, failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 1))
    with pytest.raises(ScheduleError, match=r"failure_plan\.rule: expected keep_groups, reapply_rule, all_reduce"):
        FailurePlan("remaining", 1)  # type: ignore[arg-type]  # a word, as a user may write it
