"""Schedules: what they answer about a worker and a round agrees with their phases."""

from dataclasses import replace
from fractions import Fraction

import pytest

from partreduce import Cluster, Hardware, Schedule
from partreduce.errors import ScheduleError
from partreduce.strategies import Block, Group, Phase
from partreduce.topo.strategies import (
    AllReduce,
    AllReduceAlgorithm,
    Codec,
    DelayedAveraging,
    DrainPolicy,
    DynamicGroups,
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

CLUSTER = Cluster.regular(4, 2)
RULE = StaticGroups(phases=RulePhases((2, 2), ((Block((0,), (0, 1)),), (Block((0, 1)),), ())), prologue=2)
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


def test_rule_and_its_groups_are_the_same_phases():
    rule = Schedule("s", CLUSTER, RULE)
    phases = tuple(rule.phase(t) for t in range(rule.period))
    explicit = Schedule("s", CLUSTER, StaticGroups(phases=GroupPhases(phases), prologue=2))
    assert [explicit.phase(t) for t in range(3)] == [rule.phase(t) for t in range(3)]
    assert explicit.num_distinct_phases() == rule.num_distinct_phases() == 2


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
    with pytest.raises(ScheduleError, match="has no groups"):
        Schedule("s", CLUSTER, RING).phase(0)
    with pytest.raises(ScheduleError, match="has no groups"):
        Schedule("s", CLUSTER, RING).group_of(0, 0)


def test_hardware_and_certificate_take_no_part_in_equality():
    bare = Schedule("s", CLUSTER, RULE)
    equipped = Schedule("s", Cluster.regular(4, 2, hardware=Hardware(num_nics=2)), RULE)
    assert equipped == bare
    assert equipped.cluster.hardware is None
    assert bare.with_certificate({"x": 1}) == bare


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (StaticGroups(phases=GroupPhases(())), "at least 1 phase"),
        (StaticGroups(phases=GroupPhases((Phase.from_groups(4, []),))), "is for 4 workers, the cluster has 8"),
        (AllReduce(steps_per_round=(1, 2)), "has 2 entries"),
        (NeighborAveraging(rounds=()), "at least 1 round"),
        (NeighborAveraging(rounds=(Round.from_edges(3, []),)), "is for 3 workers"),
    ],
    ids=range(5),
)
def test_strategies_that_do_not_fit_are_refused(strategy, words):
    with pytest.raises(ScheduleError, match=words):
        Schedule("s", CLUSTER, strategy)


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: StaticGroups(phases=GROUPS.phases, prologue=-1), "prologue: is -1; it must be >= 0"),
        (lambda: AllReduce(steps_per_round=0), "steps_per_round: is 0; it must be >= 1"),
        (lambda: AllReduce(steps_per_round=(1, 2, -3)), "steps_per_round: is -3; it must be >= 1"),
        (lambda: Transport(codec="int8", block=0), "transport.block: is 0; it must be >= 1"),
        (
            lambda: Transport(codec="int9"),
            "transport.codec: is 'int9'; it must be one of none, float16, bfloat16, int8, int4",
        ),
        (lambda: IterationGap(max_ig=2**31), "sync.iteration_gap.max_ig: is 2147483648; it must be <= 2147483647"),
        (lambda: IterationGap(staleness=-1), "sync.iteration_gap.staleness: is -1; it must be >= 0"),
        (lambda: IterationGap(backup=(0, 0, -2)), "sync.iteration_gap.backup: is -2; it must be >= 0"),
        (lambda: SkipPolicy(limit=2, behind=1), "sync.iteration_gap.skip.behind: is 1; it must be >= 2"),
        (lambda: SkipPolicy(limit=2, trigger=1), "sync.iteration_gap.skip.trigger: is 1; it must be >= 2"),
        (lambda: PartialAllReduce(quorum="solo", staleness=0), "sync.partial.staleness: is 0; it must be >= 1"),
        (lambda: Pairwise(active=(0,), edges=((0, 1), (-1, 2))), "edges: is -1; it must be >= 0"),
        (lambda: DynamicGroups(max_known=0), "max_known: is 0; it must be >= 1"),
    ],
    ids=range(13),
)
def test_a_number_out_of_the_range_that_its_type_states_is_refused_where_the_value_is_built(build, line):
    with pytest.raises(ScheduleError) as refusal:
        build()
    assert str(refusal.value) == line


def test_phases_of_the_other_form_are_refused():
    with pytest.raises(ScheduleError, match="explicit groups are expected"):
        GroupPhases(((),))
    with pytest.raises(ScheduleError, match="rule phases are expected"):
        RulePhases((4,), (Phase.from_groups(8, []),))


def test_values_of_an_axis_that_a_kind_does_not_take_are_refused():
    for strategy, words in (
        (DynamicGroups(sync=DelayedAveraging()), "sync: strategy 'dynamic_groups' has no late averaging"),
        (AllReduce(sync=DelayedAveraging(2)), "sync.delay: is 2; an averaging is late by 1 round"),
        (
            Server(transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL)),
            "transport.algorithm: is hierarchical; strategy 'server' travels as ring",
        ),
    ):
        with pytest.raises(ScheduleError, match=words):
            Schedule("s", CLUSTER, strategy)


def test_one_worker_is_no_schedule():
    with pytest.raises(ScheduleError, match="at least 2 workers"):
        Schedule("s", Cluster.regular(1, 1), AllReduce())


@pytest.mark.parametrize(
    ("edge", "words"), [((0, 8), "ranks are"), ((3, 3), "what the others leave"), ((0, 1), "given twice")]
)
def test_rounds_refuse_edges(edge, words):
    with pytest.raises(ScheduleError, match=words):
        Round.from_edges(8, [(0, 1, Fraction(1, 2)), (*edge, Fraction(1, 2))])


EVERYBODY, NODES = (Block((0, 1), (0,)),), (Block((0, 1)),)
PAIRS, ALL_FOUR = Phase.from_groups(4, [[0, 1], [2, 3]]), Phase.from_groups(4, [range(4)])
HALF = Phase.from_groups(4, [Group((0, 1, 2, 3), Fraction(1, 2))])
CODED = Transport(codec=Codec.INT8)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (StaticGroups(phases=GroupPhases((PAIRS, ALL_FOUR))), ""),
        (StaticGroups(phases=GroupPhases((PAIRS, HALF))), ""),
        (StaticGroups(phases=RulePhases((2,), (NODES, EVERYBODY)), sync=DelayedAveraging()), ""),
        (AllReduce(steps_per_round=4), ""),
        (StaticGroups(phases=GroupPhases((PAIRS,)), prologue=3), "no round of the period averages over all workers"),
        (StaticGroups(phases=RulePhases((2,), (NODES,))), "no round of the period averages over all workers"),
        (DynamicGroups(division=GroupSplit.NODE_THEN_ALL, slow_threshold=None), "its groups may leave out any worker"),
        (Pairwise(active=(0, 1)), "strategy 'pairwise' sends parameters, and rounded parameters lose every update"),
        (Server(steps_per_round=2), "strategy 'server' sends parameters, and rounded parameters lose every update"),
    ],
)
def test_parameters_may_be_rounded_where_all_meet_again_and_again(strategy, reason):
    cluster = Cluster.regular(2, 2)
    if not reason:
        assert Schedule("coded", cluster, replace(strategy, transport=CODED)).strategy.transport is CODED
        return
    with pytest.raises(ScheduleError, match=rf"transport\.codec: is int8; .*{reason}"):
        Schedule("coded", cluster, replace(strategy, transport=CODED))


def test_words_may_stand_for_choices_and_unknown_ones_are_named():
    assert Transport(codec="int8", algorithm="hierarchical") == Transport(
        codec=Codec.INT8, algorithm=AllReduceAlgorithm.HIERARCHICAL
    )
    assert isinstance(Pipeline(drain="drop").drain, DrainPolicy)
    with pytest.raises(ScheduleError, match="codec: is 'int9'; it must be one of none, float16, bfloat16, int8, int4"):
        Transport(codec="int9")
    with pytest.raises(ScheduleError, match=r"drain: is \['drop'\]"):
        Pipeline(drain=["drop"])


@pytest.mark.parametrize(
    ("phases", "rounds"),
    [
        ([[[0, 1], [2, 3]], [[1, 2]], [[0, 1, 2, 3]]], 2),  # by way of others
        ([[[0, 1], [2, 3]], [[0, 1]], [[0, 1, 2, 3]]], 3),
        ([[[0, 1, 2, 3]], [[0, 1]]], 1),
        ([[[0, 1], [2, 3]], [[0, 1]]], 2),  # never: a period
        ([[], [[0, 1, 2, 3]]], 2),
    ],
)
def test_rounds_to_connect_are_those_after_which_all_have_averaged_if_by_way_of_others(phases, rounds):
    made = GroupPhases(tuple(Phase.from_groups(4, groups) for groups in phases))
    assert Schedule("x", Cluster.regular(1, 4), StaticGroups(phases=made)).rounds_to_connect() == rounds
    assert Schedule("x", Cluster.regular(1, 4), StaticGroups(phases=made, prologue=2)).rounds_to_connect() == 1


def test_a_smaller_steps_per_round_is_spread_evenly_over_every_round():
    paced = Schedule("x", Cluster.regular(1, 4), AllReduce(steps_per_round=(5, 3, 1, 5)))
    steps = [paced.stepping_at(step).tolist() for step in range(5)]
    assert steps == [[1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    assert [paced.stepping_at(step).tolist() for step in range(5, 10)] == steps
    assert Schedule("x", Cluster.regular(1, 4), AllReduce(steps_per_round=3)).stepping_at(1).all()
