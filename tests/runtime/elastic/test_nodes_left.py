"""What workers follow that torchrun has started without some nodes: the contingency, or a refusal that says why."""

from dataclasses import replace

import pytest

from partreduce.runtime.elastic.nodes_left import as_started, is_planned, say_nodes_left
from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import Contingency, after_loss
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import InputError
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, RulePhases, Static

ALL_OF_THREE = RulePhases((3,), ((Block((0, 1), (0,)),),))
SQUARE = RulePhases((2, 2), ((Block((0, 1), (0,)),), (Block((0, 1), (1,)),)))
RULE = Schedule(
    "pairs",
    Cluster.regular(4, 2),
    Static(phases=RulePhases((4,), ((Block((0, 1), ()),), (Block((0, 1), (0,)),)))),
    contingencies=(Contingency((0,)), Contingency((0, 1), ALL_OF_THREE)),
)
EVERYBODY = Schedule("all", Cluster.regular(4, 2), AllReduce(pace=2), contingencies=(Contingency((0, 1)),))


@pytest.fixture
def started(monkeypatch):
    """Set what torchrun sets on a worker."""

    def set_(size, on_each=2, restarts=3):
        names = {"RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": on_each, "TORCHELASTIC_RUN_ID": "1"}
        for name, value in (names | {"TORCHELASTIC_MAX_RESTARTS": restarts}).items():
            monkeypatch.setenv(name, str(value))

    return set_


@pytest.mark.parametrize("schedule", [RULE, EVERYBODY], ids=lambda one: one.name)
@pytest.mark.parametrize("node", range(4))
def test_whichever_node_is_lost_the_others_follow_what_the_file_plans_for_that(started, schedule, node):
    started(6)
    found = as_started(schedule)
    assert found == after_loss(schedule, schedule.cluster.workers_of(node))
    assert found.num_workers == 6
    with pytest.warns(UserWarning, match="has started 3 of its 4 nodes"):
        say_nodes_left(schedule, found)


def test_the_contingency_is_the_file_s_and_not_all_in_one_group_as_for_losses_without_one(started):
    started(6)
    assert as_started(RULE).strategy.phases == ALL_OF_THREE
    unplanned = replace(RULE, contingencies=RULE.contingencies[:1])
    with pytest.raises(InputError, match="it plans for no loss of a node"):
        as_started(unplanned)


@pytest.mark.parametrize(
    ("schedule", "size", "on_each", "why"),
    [
        (replace(RULE, contingencies=()), 6, 2, r"plans for no loss \(design --survive\)"),
        (RULE, 7, 1, "not whole nodes"),
        (RULE, 6, 6, "not whole nodes"),
        (RULE, 4, 2, "no loss of 2 nodes"),
        (replace(EVERYBODY, strategy=AllReduce(pace=(1, 1, 2, 2, 2, 2, 2, 2))), 6, 2, "not all alike"),
        (replace(EVERYBODY, cluster=Cluster.irregular([[0, 1, 2], [3, 4], [5, 6, 7]])), 6, 2, "not whole nodes"),
        (replace(RULE, strategy=Static(phases=SQUARE)), 4, 2, "not all alike"),
    ],
)  # fmt: skip
def test_every_other_loss_is_refused_with_the_way_out(started, schedule, size, on_each, why):
    started(size, on_each)
    way_out = rf"torchrun has started {size}: .*{why}.*; start 8, or design a schedule for {size} and load .*other_run"
    with pytest.raises(InputError, match=way_out):
        as_started(schedule)


def test_nothing_changes_where_all_have_come_or_nobody_starts_workers_again(started):
    started(8)
    assert as_started(RULE) is RULE
    started(6, restarts=0)
    assert as_started(RULE) is RULE
    started(1)
    assert as_started(RULE) is RULE, "a script that runs alone says so"
    say_nodes_left(RULE, RULE)


def test_checkpoints_of_the_schedule_and_of_what_it_plans_for_are_of_one_run():
    left = after_loss(RULE, (0, 1))
    assert is_planned(RULE, 8, schedule_sha256(RULE))
    assert is_planned(RULE, 6, schedule_sha256(left))
    assert not is_planned(RULE, 6, schedule_sha256(RULE))
    assert not is_planned(RULE, 8, schedule_sha256(left))
    assert not is_planned(RULE, 4, schedule_sha256(left))
    assert not is_planned(RULE, 10, schedule_sha256(left))
