"""Every row of the table of failures (continue or restart) is tested by a schedule that is proved, checked or run."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from helpers.training import group_phases
from partreduce import Cluster, Schedule
from partreduce import strategies as st
from partreduce.errors import InputError, ScheduleError
from partreduce.runtime.elastic.support import (
    elastic_blocker,
    is_planned,
    schedule_for_present_nodes,
    warn_nodes_missing,
)
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.failure_plan import BY_NAME, AfterFailure, table
from partreduce.topo.survivors import after_failure
from partreduce.verify import checker
from partreduce.verify.base import Status
from partreduce.verify.prove import prove

WORKERS = 4
PHASES = group_phases(WORKERS, [(0, 1), (2, 3)], [range(WORKERS)])
RING = st.Round.from_edges(WORKERS, [(i, (i + 1) % WORKERS, Fraction(1, 2)) for i in range(WORKERS)])
LAYERS = st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER)
OUTER = st.OuterStep(lr=0.75, momentum=0.5, nesterov=True)
OWN = st.OuterStep(lr=0.75, momentum=0.25, outer_params=st.OuterParams.PER_WORKER)
INT8 = st.Transport(codec=st.Codec.INT8, block=16)
BY_STEPS = {"steps_per_round": (1, 2, 1, 2), "averaging": st.Averaging.STEP_NORMALIZED}
HALVES = (("weight0",), ("weight1",))

CONTINUING = {
    "allreduce of gradients": [st.AllReduce()],
    "allreduce of parameters": [st.AllReduce(steps_per_round=2)],
    "static": [st.StaticGroups(phases=PHASES)],
    "unequal steps per round": [st.AllReduce(**BY_STEPS), st.StaticGroups(phases=PHASES, **BY_STEPS)],
    "sync.pipeline": [st.AllReduce(sync=st.Pipeline()), st.AllReduce(sync=st.Pipeline(width=3))],
    "sync.delay": [
        st.AllReduce(sync=st.DelayedAveraging()),
        st.AllReduce(sync=st.DelayedAveraging(), steps_per_round=2, averaging=st.Averaging.STEP_NORMALIZED),
        st.StaticGroups(phases=PHASES, sync=st.DelayedAveraging()),
    ],
    "sync.merge": [st.AllReduce(steps_per_round=3, sync=st.DelayedMerge(steps=2, alpha=part)) for part in (0, 0.5)],
    "transport.codec": [
        st.AllReduce(transport=st.Transport(codec=st.Codec.INT8, error_feedback=True)),
        st.StaticGroups(phases=PHASES, sync=st.DelayedAveraging(), transport=INT8),
    ],
    "payload.outer": [
        st.AllReduce(payload=st.Payload(outer=OUTER)),
        st.StaticGroups(phases=PHASES, payload=st.Payload(outer=OUTER)),
    ],
    "payload.fragments": [st.AllReduce(steps_per_round=2, payload=st.Payload(outer=OUTER, fragments=HALVES))],
    "gradient_buckets per_layer": [st.AllReduce(transport=LAYERS)],
}
UNPLANNED = {
    "failure plan for outer parameters per worker": st.StaticGroups(phases=PHASES, payload=st.Payload(outer=OWN))
}
NOT_CONTINUING = {
    "neighbor with sync.iteration_gap": st.NeighborAveraging(rounds=(RING,), sync=st.IterationGap(max_ig=2)),
    "neighbor": st.NeighborAveraging(rounds=(RING,)),
    "pairwise": st.Pairwise(active=(0, 2)),
    "server": st.Server(hosts=(1,)),
    "failure plan for dynamic_groups": st.DynamicGroups(group_size=2),
    "sync.partial": st.AllReduce(sync=st.PartialAllReduce(quorum=3)),
    "payload.tables": st.AllReduce(
        payload=st.Payload(tables=(st.TablePlacement(parameter="table.weight", rows=9, columns=2),))
    ),
    "per_layer in a pipeline": st.AllReduce(sync=st.Pipeline(), transport=LAYERS),
    "sync.delay with averaging by steps": st.AllReduce(sync=st.DelayedAveraging(), **BY_STEPS),
}


def schedule_of(strategy, plan=None):
    return Schedule("a schedule", Cluster.regular(2, WORKERS // 2), strategy, failure_plan=plan)


def test_every_row_of_the_failure_table_has_a_case():
    of_runs = {"sharded replicas", "a second DistributedOptimizer", "groups of NCCL"}
    assert {name for name, _, _ in table()} == {*CONTINUING, *NOT_CONTINUING, *UNPLANNED, *of_runs, "dynamic_groups"}
    assert all(BY_NAME[name].answer is AfterFailure.CONTINUES for name in CONTINUING)
    assert not any(BY_NAME[name].answer is AfterFailure.CONTINUES for name in NOT_CONTINUING)


@pytest.mark.parametrize("strategy", [one for several in [*CONTINUING.values(), UNPLANNED.values()] for one in several])
def test_continuing_strategies_are_accepted(strategy):
    assert not elastic_blocker(schedule_of(strategy))


@pytest.mark.parametrize("strategy", [one for several in CONTINUING.values() for one in several])
def test_failure_plans_of_continuing_strategies_are_proved_and_checked(strategy):
    rule = st.SurvivorRule.KEEP_GROUPS if isinstance(strategy, st.StaticGroups) else st.SurvivorRule.ALL_REDUCE
    schedule = schedule_of(strategy, st.FailurePlan(rule, 1))
    proof = prove(schedule)
    assert proof.verdict is Status.PROVED
    document, certificate = (json.loads(json.dumps(part)) for part in (dump_schedule(schedule), proof.certificate))
    assert "survives" in checker.check(certificate, checker.read_schedule(document))


@pytest.mark.parametrize("name", NOT_CONTINUING)
def test_failure_plans_that_the_table_rejects_raise_with_its_reason(name):
    case, schedule = BY_NAME[name], schedule_of(NOT_CONTINUING[name])
    assert elastic_blocker(schedule) == f"strategy.{case.place}: {case.is_}; {case.words}"
    with pytest.raises(ScheduleError, match=f"^strategy.{case.place}: "):
        schedule_of(NOT_CONTINUING[name], st.FailurePlan(st.SurvivorRule.ALL_REDUCE, 1))
    document = json.loads(json.dumps(dump_schedule(schedule))) | {"failure_plan": {"rule": "all_reduce", "failures": 1}}
    with pytest.raises(checker.Refusal, match=r"failure_plan|strategy"):
        checker.read_schedule(document)


@pytest.mark.parametrize("name", UNPLANNED)
def test_failure_plans_without_a_proof_are_rejected(name):
    case = BY_NAME[name]
    with pytest.raises(ScheduleError) as refused:
        schedule_of(UNPLANNED[name], st.FailurePlan(st.SurvivorRule.ALL_REDUCE, 1))
    assert str(refused.value) == f"strategy.{case.place}: {case.is_}; {case.words}"
    document = json.loads(json.dumps(dump_schedule(schedule_of(UNPLANNED[name]))))
    with pytest.raises(checker.Refusal, match="failure_plan"):
        checker.read_schedule(document | {"failure_plan": {"rule": "all_reduce", "failures": 1}})


def test_outer_steps_that_diverge_among_survivors_are_rejected():
    """The learning rate is small enough for pairs, but not for an average of all workers."""
    outer = st.OuterStep(lr=Fraction(21, 10), momentum=Fraction(0), outer_params=st.OuterParams.PER_WORKER)
    assert "do not come to agree" in elastic_blocker(
        schedule_of(st.StaticGroups(phases=PHASES, payload=st.Payload(outer=outer)))
    )


# Workers that torchrun has started without some nodes follow the failure plan, or raise with the reason.


SQUARE = st.RulePhases((2, 2), ((st.Block((0, 1), (0,)),), (st.Block((0, 1), (1,)),)))
LISTED = group_phases(8, [range(8)])
KEEP_FOUR = st.FailurePlan(st.SurvivorRule.KEEP_GROUPS, 4)
RULE = Schedule(
    "pairs",
    Cluster.regular(4, 2),
    st.StaticGroups(phases=st.RulePhases((4,), ((st.Block((0, 1), ()),), (st.Block((0, 1), (0,)),)))),
    failure_plan=st.FailurePlan(st.SurvivorRule.REAPPLY_RULE, 1),
)
ALL_REDUCE = Schedule(
    "all",
    Cluster.regular(4, 2),
    st.AllReduce(steps_per_round=2),
    failure_plan=st.FailurePlan(st.SurvivorRule.ALL_REDUCE, 1),
)


@pytest.fixture
def under_torchrun(monkeypatch):
    """Set the environment variables of a worker under torchrun."""

    def set_(size, on_each=2, restarts=3):
        names = {"RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": on_each, "TORCHELASTIC_RUN_ID": "1"}
        for name, value in (names | {"TORCHELASTIC_MAX_RESTARTS": restarts}).items():
            monkeypatch.setenv(name, str(value))

    return set_


@pytest.mark.parametrize("schedule", [RULE, ALL_REDUCE], ids=lambda one: one.name)
@pytest.mark.parametrize("node", range(4))
def test_remaining_nodes_follow_the_failure_plan(under_torchrun, schedule, node):
    under_torchrun(6)
    found = schedule_for_present_nodes(schedule)
    assert found == after_failure(schedule, schedule.cluster.workers_of(node))
    assert found.num_workers == 6
    with pytest.warns(UserWarning, match="has started 3 of its 4 nodes"):
        warn_nodes_missing(schedule, found)


@pytest.mark.parametrize("rule", [st.SurvivorRule.KEEP_GROUPS, st.SurvivorRule.REAPPLY_RULE])
def test_remaining_nodes_follow_the_survivor_rule_instead_of_one_group(under_torchrun, rule):
    under_torchrun(6)
    phases = schedule_for_present_nodes(replace(RULE, failure_plan=st.FailurePlan(rule, 1))).strategy.phases
    assert [len(phases.phase(index, Cluster.regular(3, 2))) for index in range(2)] == [3, 1], "pairs, then all"
    under_torchrun(4)
    two = schedule_for_present_nodes(replace(RULE, failure_plan=st.FailurePlan(rule, 4)))
    assert [len(two.phase(index)) for index in range(2)] == [2, 1]


@pytest.mark.parametrize(
    ("schedule", "size", "on_each", "why"),
    [
        (replace(RULE, failure_plan=None), 6, 2, r"plans for no failure \(design --tolerate-failures\)"),
        (RULE, 7, 1, "not whole nodes"),
        (RULE, 6, 6, "not whole nodes"),
        (RULE, 4, 2, "no failure of 2 nodes"),
        (replace(ALL_REDUCE, strategy=st.AllReduce(steps_per_round=(1, 1, *[2] * 6))), 6, 2, "not all of one size"),
        (replace(ALL_REDUCE, cluster=Cluster.irregular([[0, 1, 2], [3, 4], [5, 6, 7]])), 6, 2, "not whole nodes"),
        (Schedule("square", RULE.cluster, st.StaticGroups(phases=SQUARE), failure_plan=KEEP_FOUR),
         4, 2, "not all of one size"),
        (replace(RULE, strategy=st.StaticGroups(phases=LISTED), failure_plan=KEEP_FOUR), 6, 2, "not all of one size"),
    ],
)  # fmt: skip
def test_unplanned_failures_raise_with_a_suggested_fix(under_torchrun, schedule, size, on_each, why):
    under_torchrun(size, on_each)
    message = rf"torchrun has started {size}: .*{why}.*; "
    suggested_fix = rf"start 8, or design a schedule for {size} and load .*allow_different_run"
    with pytest.raises(InputError, match=message + suggested_fix):
        schedule_for_present_nodes(schedule)


def test_schedule_is_unchanged_with_all_nodes_or_without_restarts(under_torchrun):
    under_torchrun(8)
    assert schedule_for_present_nodes(RULE) is RULE
    under_torchrun(6, restarts=0)
    assert schedule_for_present_nodes(RULE) is RULE
    under_torchrun(1)
    assert schedule_for_present_nodes(RULE) is RULE, "a single process is warned about elsewhere"
    warn_nodes_missing(RULE, RULE)


def test_checkpoints_of_a_schedule_and_its_failure_plan_are_of_one_run():
    left = after_failure(RULE, (0, 1))
    assert is_planned(RULE, 8, schedule_sha256(RULE))
    assert is_planned(RULE, 6, schedule_sha256(left))
    assert not is_planned(RULE, 6, schedule_sha256(RULE))
    assert not is_planned(RULE, 8, schedule_sha256(left))
    assert not is_planned(RULE, 4, schedule_sha256(left))
    assert not is_planned(RULE, 10, schedule_sha256(left))
