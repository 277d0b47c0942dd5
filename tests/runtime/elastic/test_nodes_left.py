"""What workers follow that torchrun has started without some nodes: the failure plan, or a refusal that says why."""

from dataclasses import replace

import pytest

from partreduce.runtime.elastic.support import is_planned, schedule_for_present_nodes, warn_nodes_missing
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.errors import InputError
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, GroupPhases, RulePhases, StaticGroups
from partreduce.topo.survivors import after_failure

SQUARE = RulePhases((2, 2), ((Block((0, 1), (0,)),), (Block((0, 1), (1,)),)))
LISTED = GroupPhases((Phase.from_groups(8, [range(8)]),))
KEEP_FOUR = FailurePlan(SurvivorRule.KEEP_GROUPS, 4)
RULE = Schedule(
    "pairs",
    Cluster.regular(4, 2),
    StaticGroups(phases=RulePhases((4,), ((Block((0, 1), ()),), (Block((0, 1), (0,)),)))),
    failure_plan=FailurePlan(SurvivorRule.REAPPLY_RULE, 1),
)
EVERYBODY = Schedule(
    "all", Cluster.regular(4, 2), AllReduce(steps_per_round=2), failure_plan=FailurePlan(SurvivorRule.ALL_REDUCE, 1)
)


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
    found = schedule_for_present_nodes(schedule)
    assert found == after_failure(schedule, schedule.cluster.workers_of(node))
    assert found.num_workers == 6
    with pytest.warns(UserWarning, match="has started 3 of its 4 nodes"):
        warn_nodes_missing(schedule, found)


@pytest.mark.parametrize("rule", [SurvivorRule.KEEP_GROUPS, SurvivorRule.REAPPLY_RULE])
def test_the_nodes_left_follow_the_file_s_rule_and_not_all_in_one_group_as_for_losses_without_one(started, rule):
    started(6)
    phases = schedule_for_present_nodes(replace(RULE, failure_plan=FailurePlan(rule, 1))).strategy.phases
    assert [len(phases.phase(index, Cluster.regular(3, 2))) for index in range(2)] == [3, 1], "pairs, then all"
    started(4)
    two = schedule_for_present_nodes(replace(RULE, failure_plan=FailurePlan(rule, 4)))
    assert [len(two.phase(index)) for index in range(2)] == [2, 1]


@pytest.mark.parametrize(
    ("schedule", "size", "on_each", "why"),
    [
        (replace(RULE, failure_plan=None), 6, 2, r"plans for no failure \(design --tolerate-failures\)"),
        (RULE, 7, 1, "not whole nodes"),
        (RULE, 6, 6, "not whole nodes"),
        (RULE, 4, 2, "no failure of 2 nodes"),
        (replace(EVERYBODY, strategy=AllReduce(steps_per_round=(1, 1, 2, 2, 2, 2, 2, 2))), 6, 2, "not all of one size"),
        (replace(EVERYBODY, cluster=Cluster.irregular([[0, 1, 2], [3, 4], [5, 6, 7]])), 6, 2, "not whole nodes"),
        (Schedule("square", RULE.cluster, StaticGroups(phases=SQUARE), failure_plan=KEEP_FOUR),
         4, 2, "not all of one size"),
        (replace(RULE, strategy=StaticGroups(phases=LISTED), failure_plan=KEEP_FOUR), 6, 2, "not all of one size"),
    ],
)  # fmt: skip
def test_every_other_loss_is_refused_with_the_way_out(started, schedule, size, on_each, why):
    started(size, on_each)
    told = rf"torchrun has started {size}: .*{why}.*; "
    way_out = rf"start 8, or design a schedule for {size} and load .*allow_different_run"
    with pytest.raises(InputError, match=told + way_out):
        schedule_for_present_nodes(schedule)


def test_nothing_changes_where_all_have_come_or_nobody_starts_workers_again(started):
    started(8)
    assert schedule_for_present_nodes(RULE) is RULE
    started(6, restarts=0)
    assert schedule_for_present_nodes(RULE) is RULE
    started(1)
    assert schedule_for_present_nodes(RULE) is RULE, "a script that runs alone says so"
    warn_nodes_missing(RULE, RULE)


def test_checkpoints_of_the_schedule_and_of_what_it_plans_for_are_of_one_run():
    left = after_failure(RULE, (0, 1))
    assert is_planned(RULE, 8, schedule_sha256(RULE))
    assert is_planned(RULE, 6, schedule_sha256(left))
    assert not is_planned(RULE, 6, schedule_sha256(RULE))
    assert not is_planned(RULE, 8, schedule_sha256(left))
    assert not is_planned(RULE, 4, schedule_sha256(left))
    assert not is_planned(RULE, 10, schedule_sha256(left))
