"""What survivors run: the schedule's contingency, or All-Reduce over all who are left."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest

from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import Contingency, after_loss
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.errors import ScheduleError
from partreduce.topo.losses import Symmetries
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    Codec,
    Generated,
    GroupPhases,
    How,
    Late,
    Merge,
    Pipeline,
    RulePhases,
    Static,
)

PAIRS = Static(
    phases=GroupPhases((Phase.from_groups(5, [[0, 3], [1, 4]]), Phase.from_groups(5, [[0, 1, 2]]))),
    pace=(1, 2, 3, 4, 5),
    prologue=2,
)
UNEVEN = Cluster.irregular([[0, 1, 2], [3, 4]])
RULE = Static(phases=RulePhases((4,), ((Block((0, 1), ()),), (Block((0,), (0,)), Block((1,), (0,))))))


def test_a_loss_that_no_contingency_is_for_leaves_all_survivors_in_one_group() -> None:
    found = after_loss(Schedule("pairs", UNEVEN, PAIRS), {1, 3})
    assert found.cluster == Cluster.irregular([[0, 1], [2]])
    assert found.strategy == Static(
        phases=GroupPhases((Phase.from_groups(3, [[0, 1, 2]]),)), pace=(1, 3, 5), prologue=2
    )


def test_all_reduce_stays_all_reduce() -> None:
    found = after_loss(Schedule("all", Cluster.regular(4, 2), AllReduce(pace=3)), {2, 3})
    assert found == Schedule("all", Cluster.regular(3, 2), AllReduce(pace=3))


@pytest.mark.parametrize(
    "strategy", [AllReduce(pace=3, when=Late()), AllReduce(when=Pipeline(), how=How(codec=Codec.BFLOAT16))]
)
def test_what_comes_late_stays_late(strategy: AllReduce) -> None:
    assert after_loss(Schedule("all", Cluster.regular(4, 2), strategy), {2}).strategy == strategy


def test_models_that_differ_are_averaged_also_where_only_workers_of_pace_1_are_left() -> None:
    """All-Reduce at pace 1 averages gradients, which would leave the models apart for ever."""
    found = after_loss(Schedule("all", Cluster.regular(2, 2), AllReduce(pace=(1, 1, 1, 5))), {3})
    assert found.group_of(0, 0) == Group((0, 1, 2))
    assert not found.strategy.averages_gradients


@pytest.mark.parametrize(
    ("strategy", "lost", "said"),
    [
        (RULE, {8}, "lost worker 8: is out of range"),
        (RULE, {-1}, "lost worker -1: is out of range"),
        (RULE, set(range(7)), "7 of 8 workers are lost"),
        (Generated(), {1}, "strategy.kind"),
        (AllReduce(pace=2, when=Merge(alpha=Fraction(1, 2))), {1}, "strategy.when"),
        (AllReduce(pace=2, when=Late(), how=How(codec=Codec.BFLOAT16)), {1}, "strategy.how.codec"),
    ],
)
def test_what_cannot_go_on_is_refused_by_name(strategy: Static, lost: set[int], said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        after_loss(Schedule("it", Cluster.regular(4, 2), strategy), lost)


def _moved(found: Schedule, schedule: Schedule, lost: tuple[int, ...]) -> list[set[frozenset[int]]]:
    """The groups of each phase, by the workers' ranks in the first schedule."""
    left = [worker for worker in range(schedule.num_workers) if worker not in lost]
    return [
        {frozenset(left[member] for member in group.members) for group in phase}
        for phase in map(found.phase, range(found.period))
    ]


@pytest.mark.parametrize("strategy", [PAIRS, RULE])
def test_remaining_groups_are_the_schedules_without_the_lost_whatever_the_loss(strategy: Static) -> None:
    cluster = UNEVEN if strategy is PAIRS else Cluster.regular(4, 2)
    bare = Schedule("it", cluster, strategy)
    symmetries = Symmetries.of(bare)
    schedule = replace(
        bare, contingencies=tuple(Contingency(lost) for count in (1, 2) for lost in symmetries.classes(count))
    )
    for lost in (lost for count in (1, 2) for lost in combinations(range(schedule.num_workers), count)):
        found = after_loss(schedule, lost)
        without = [
            {frozenset(set(group.members) - set(lost)) for group in phase}
            for phase in map(schedule.phase, range(schedule.period))
        ]
        assert _moved(found, schedule, lost) == [{group for group in phase if len(group) > 1} for phase in without]
        assert found.paces().tolist() == [pace for w, pace in enumerate(schedule.paces()) if w not in lost]
        assert found.contingencies == ()
        assert found.prologue == schedule.prologue


def test_phases_of_a_class_are_moved_to_each_of_its_losses_by_one_permutation() -> None:
    """Losses of a class are alike: a permutation of workers that keeps the schedule takes one to the other."""
    bare = Schedule("it", Cluster.regular(4, 2), RULE)
    own = GroupPhases(
        (Phase.from_groups(7, [[0, 1, 3], Group((2, 5), Fraction(3, 2))]), Phase.from_groups(7, [[4, 6]]))
    )
    schedule = replace(bare, contingencies=(Contingency((0,), own),))
    symmetries = Symmetries.of(schedule)
    assert symmetries.classes(1) == [(0,), (1,)]
    first = _moved(after_loss(schedule, {0}), schedule, (0,))
    assert first == [{frozenset({1, 2, 4}), frozenset({3, 6})}, {frozenset({5, 7})}]
    for worker in range(0, 8, 2):
        to = symmetries.mapping({worker})
        moved = _moved(after_loss(schedule, {worker}), schedule, (worker,))
        assert [{frozenset(to[w] for w in group) for group in phase} for phase in moved] == first
        assert sorted(map(str, after_loss(schedule, {worker}).phase(0).relax or ())) == ["1", "3/2"]


def test_rules_of_a_class_are_the_rules_of_each_of_its_losses() -> None:
    rule = RulePhases((3,), ((Block((0,), (0,)), Block((1,), (0,))),))
    schedule = Schedule("it", Cluster.regular(4, 2), RULE, contingencies=(Contingency((0, 1), rule),))
    for node in range(4):
        assert after_loss(schedule, {2 * node, 2 * node + 1}) == Schedule(
            "it", Cluster.regular(3, 2), Static(phases=rule)
        )
    assert after_loss(schedule, {0, 2}).group_of(0, 0) == Group((0, 1, 2, 3, 4, 5))  # no such loss is planned


def test_planned_losses_of_a_million_workers_need_no_list_of_groups() -> None:
    bare = build("prague-figure-10", Cluster.regular(250_000, 4))
    schedule = replace(bare, contingencies=tuple(map(Contingency, Symmetries.of(bare).classes(1))))
    assert len(schedule_text(schedule)) < 1000
    found = after_loss(schedule, {777_777})
    assert found.num_workers == 999_999
    assert found.group_of(777_777, 1) == Group((777_776, 777_777, 777_778))
