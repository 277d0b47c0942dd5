"""What survivors run: the schedule's contingency, or All-Reduce over all who are left."""

import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import after_loss
from partreduce.topo.errors import ScheduleError
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Generated, GroupPhases, Late, RulePhases, Static

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
        (AllReduce(pace=2, when=Late()), {1}, "strategy.when"),
    ],
)
def test_what_cannot_go_on_is_refused_by_name(strategy: Static, lost: set[int], said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        after_loss(Schedule("it", Cluster.regular(4, 2), strategy), lost)
