"""Schedules: what they answer about a worker and a round agrees with their phases."""

from dataclasses import replace
from fractions import Fraction

import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.hardware import Hardware
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    Drain,
    Form,
    Gap,
    Generated,
    GroupPhases,
    How,
    Late,
    Neighbor,
    Pairwise,
    Pipeline,
    Quorum,
    Round,
    RulePhases,
    Server,
    Skip,
    Static,
)
from partreduce.topo.strategies.generated import Division

CLUSTER = Cluster.regular(4, 2)
RULE = Static(phases=RulePhases((2, 2), ((Block((0,), (0, 1)),), (Block((0, 1)),), ())), prologue=2)
GROUPS = Static(
    phases=GroupPhases(
        (Phase.from_groups(8, [[0, 7], [1, 2, 3]]), Phase.from_groups(8, [Group((0, 1), Fraction(3, 2))]))
    ),
    pace=(1, 2, 1, 1, 1, 1, 1, 5),
)
RING = Neighbor(rounds=(Round.from_edges(8, [(w, (w + 1) % 8, Fraction(1, 2)) for w in range(8)]),))


@pytest.mark.parametrize("strategy", [RULE, GROUPS, AllReduce(pace=4)], ids=["rule", "groups", "allreduce"])
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
    explicit = Schedule("s", CLUSTER, Static(phases=GroupPhases(phases), prologue=2))
    assert [explicit.phase(t) for t in range(3)] == [rule.phase(t) for t in range(3)]
    assert explicit.num_distinct_phases() == rule.num_distinct_phases() == 2


def test_paces():
    schedule = Schedule("s", CLUSTER, GROUPS)
    assert schedule.paces().tolist() == [schedule.pace_of(w) for w in range(8)] == list(GROUPS.pace)
    assert Schedule("s", CLUSTER, AllReduce(pace=3)).paces().tolist() == [3] * 8
    assert AllReduce().averages_gradients
    assert not AllReduce(pace=2).averages_gradients
    assert AllReduce(pace=(1, 1)).averages_gradients, "the same hash as 1, so the same meaning"
    assert not AllReduce(pace=(1, 2)).averages_gradients
    assert not AllReduce(when=Late()).averages_gradients


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
        (Static(phases=GroupPhases(())), "at least 1 phase"),
        (Static(phases=GroupPhases((Phase.from_groups(4, []),))), "is for 4 workers, the cluster has 8"),
        (AllReduce(pace=(1, 2)), "has 2 entries"),
        (Neighbor(rounds=()), "at least 1 round"),
        (Neighbor(rounds=(Round.from_edges(3, []),)), "is for 3 workers"),
    ],
    ids=range(5),
)
def test_strategies_that_do_not_fit_are_refused(strategy, words):
    with pytest.raises(ScheduleError, match=words):
        Schedule("s", CLUSTER, strategy)


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda: Static(phases=GROUPS.phases, prologue=-1), "prologue: is -1; it must be >= 0"),
        (lambda: AllReduce(pace=0), "pace: is 0; it must be >= 1"),
        (lambda: AllReduce(pace=(1, 2, -3)), "pace: is -3; it must be >= 1"),
        (lambda: How(codec="int8", block=0), "how.block: is 0; it must be >= 1"),
        (lambda: How(codec="int9"), "how.codec: is 'int9'; it must be one of none, float16, bfloat16, int8, int4"),
        (lambda: Gap(max_ig=2**31), "when.gap.max_ig: is 2147483648; it must be <= 2147483647"),
        (lambda: Gap(staleness=-1), "when.gap.staleness: is -1; it must be >= 0"),
        (lambda: Gap(backup=(0, 0, -2)), "when.gap.backup: is -2; it must be >= 0"),
        (lambda: Skip(limit=2, behind=1), "when.gap.skip.behind: is 1; it must be >= 2"),
        (lambda: Skip(limit=2, trigger=1), "when.gap.skip.trigger: is 1; it must be >= 2"),
        (lambda: Quorum(quorum="solo", staleness=0), "when.quorum.staleness: is 0; it must be >= 1"),
        (lambda: Pairwise(active=(0,), edges=((0, 1), (-1, 2))), "edges: is -1; it must be >= 0"),
        (lambda: Generated(max_known=0), "max_known: is 0; it must be >= 1"),
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
        (Generated(when=Late()), "when: strategy 'generated' has no late averaging"),
        (AllReduce(when=Late(2)), "when.late: is 2; an averaging is late by 1 round"),
        (Server(how=How(form=Form.HIERARCHICAL)), "how.form: is hierarchical; strategy 'server' travels as ring"),
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
CODED = How(codec=Codec.INT8)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Static(phases=GroupPhases((PAIRS, ALL_FOUR))), ""),
        (Static(phases=GroupPhases((PAIRS, HALF))), ""),
        (Static(phases=RulePhases((2,), (NODES, EVERYBODY)), when=Late()), ""),
        (AllReduce(pace=4), ""),
        (Static(phases=GroupPhases((PAIRS,)), prologue=3), "no round of the period averages over all workers"),
        (Static(phases=RulePhases((2,), (NODES,))), "no round of the period averages over all workers"),
        (Generated(division=Division.NODE_THEN_ALL, slow_threshold=None), "its groups may leave out any worker"),
        (Pairwise(active=(0, 1)), "strategy 'pairwise' sends parameters, and rounded parameters lose every update"),
        (Server(pace=2), "strategy 'server' sends parameters, and rounded parameters lose every update"),
    ],
)
def test_parameters_may_be_rounded_where_all_meet_again_and_again(strategy, reason):
    cluster = Cluster.regular(2, 2)
    if not reason:
        assert Schedule("coded", cluster, replace(strategy, how=CODED)).strategy.how is CODED
        return
    with pytest.raises(ScheduleError, match=rf"how\.codec: is int8; .*{reason}"):
        Schedule("coded", cluster, replace(strategy, how=CODED))


def test_words_may_stand_for_choices_and_unknown_ones_are_named():
    assert How(codec="int8", form="hierarchical") == How(codec=Codec.INT8, form=Form.HIERARCHICAL)
    assert isinstance(Pipeline(drain="drop").drain, Drain)
    with pytest.raises(ScheduleError, match="codec: is 'int9'; it must be one of none, float16, bfloat16, int8, int4"):
        How(codec="int9")
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
    assert Schedule("x", Cluster.regular(1, 4), Static(phases=made)).rounds_to_connect() == rounds
    assert Schedule("x", Cluster.regular(1, 4), Static(phases=made, prologue=2)).rounds_to_connect() == 1


def test_a_smaller_pace_is_spread_evenly_over_every_round():
    paced = Schedule("x", Cluster.regular(1, 4), AllReduce(pace=(5, 3, 1, 5)))
    steps = [paced.stepping_at(step).tolist() for step in range(5)]
    assert steps == [[1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    assert [paced.stepping_at(step).tolist() for step in range(5, 10)] == steps
    assert Schedule("x", Cluster.regular(1, 4), AllReduce(pace=3)).stepping_at(1).all()
