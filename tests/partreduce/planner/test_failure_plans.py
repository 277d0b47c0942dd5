"""Failure plans: the first of three rules that keeps consensus and is fast enough."""

from dataclasses import replace

import pytest

from helpers.refusals import check_error
from partreduce import Cluster, Hardware, Link, PlanRequest, Schedule
from partreduce.errors import InputError, ScheduleError
from partreduce.planner.failure_plans import FACTOR, survival, survivors_of
from partreduce.planner.measuring import measure
from partreduce.planner.plan import plan
from partreduce.runtime.elastic.support import elastic_blocker
from partreduce.schedulers.registry import build
from partreduce.strategies import Block, FailurePlan, Phase, SurvivorRule
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.strategies import (
    AllReduce,
    AllReduceAlgorithm,
    Codec,
    DelayedAveraging,
    DynamicGroups,
    GradientBuckets,
    GroupPhases,
    OuterStep,
    Payload,
    Pipeline,
    RulePhases,
    StaticGroups,
    Transport,
)
from partreduce.topo.survivors import after_failure, planned_failures
from partreduce.types import Delay, Switch
from partreduce.verify import prove
from partreduce.verify.base import Status
from partreduce.verify.certificate import confirm
from partreduce.verify.checker import survives

HARDWARE = Hardware(nic=Link(2e-5, 2e-10), inside=Link(5e-6, 1e-10), model_bytes=100_000_000, compute=0.01)
NODES = StaticGroups(phases=RulePhases((3,), ((Block((0, 1)),), (Block((0, 1), (0,)),))))
LEADERS = StaticGroups(phases=RulePhases((3,), ((Block((0, 1)),), (Block((0,), (0,)),))))
"""A node whose local rank 0 fails is disconnected."""
LISTED = StaticGroups(
    phases=GroupPhases((Phase.from_groups(6, [[0, 1, 2], [3, 4, 5]]), Phase.from_groups(6, [[0, 3]])))
)
"""Without worker 0 the others are disconnected, and there is no rule to reapply."""
MILLION = build("node-then-all", Cluster.regular(250_000, 4)).strategy
KEEP, ALL = SurvivorRule.KEEP_GROUPS, SurvivorRule.ALL_REDUCE


def job(nodes, size, tolerate_failures, hardware=HARDWARE):
    return PlanRequest(cluster=Cluster.regular(nodes, size, hardware=hardware), tolerate_failures=tolerate_failures)


@pytest.mark.parametrize(("shape", "strategy", "failures", "rule", "words"), [
    ((3, 2), NODES, 2, KEEP, "after the failure of up to 2 workers or of one node survivors keep their groups"),
    ((3, 2), LEADERS, 1, ALL, "survivors average all together"),
    ((2, 3), LISTED, 1, ALL, "survivors average all together"),
    ((3, 2), AllReduce(), 2, ALL, "survivors continue with All-Reduce"),
    ((250_000, 4), MILLION, 1, KEEP, "survivors keep their groups"),
], ids=["nodes", "leaders", "listed", "allreduce", "million"])  # fmt: skip
def test_survivors_keep_groups_or_average_all_with_a_proof(shape, strategy, failures, rule, words):
    request = job(*shape, failures)
    found = survival(Schedule("s", request.cluster, strategy), request)
    assert found.schedule.failure_plan == FailurePlan(rule, failures)
    assert found.words.endswith(words)
    assert len(schedule_text(found.schedule)) < 2000
    assert prove(found.schedule).verdict is Status.PROVED


def test_plans_are_limited_to_what_the_runtime_supports():
    request = replace(job(2, 2, 1), effort=0.2)
    assert not elastic_blocker(plan(request).recommendation.schedule)
    by_layers = AllReduce(transport=Transport(gradient_buckets=GradientBuckets.PER_LAYER))
    layers = Schedule("layers", request.cluster, by_layers)
    found = survival(layers, request).schedule
    assert prove(found).verdict is Status.PROVED
    assert not elastic_blocker(found)
    late = replace(layers, strategy=replace(by_layers, sync=Pipeline()))
    assert elastic_blocker(late)
    check_error(
        ScheduleError, "gradient_buckets: is per_layer; no worker keeps late gradients", survival, late, request
    )
    for other, sync in (("gap", "iteration_gap"), ("quorum", "partial")):
        with pytest.raises(InputError, match=f"sync: expected synchronous, delay or pipeline .*, got {sync}; leave"):
            replace(request, **{other: True})


@pytest.mark.parametrize(("sync", "waits"), [(Delay.PIPELINE, Pipeline()), (Delay.LATE, DelayedAveraging())])
def test_delayed_sync_is_planned_and_proved(sync, waits):
    request = replace(job(2, 2, 2), sync=sync, effort=0.2)
    found = plan(request).recommendation.schedule
    assert found.strategy.sync == waits
    assert found.failure_plan.failures == 2
    assert not elastic_blocker(found)
    proof = prove(found)
    assert proof.verdict is Status.PROVED
    assert "survives" in confirm(replace(found, certificate=proof.certificate))
    for failed in planned_failures(found, found.failure_plan):
        assert after_failure(found, failed).strategy.sync == waits


def test_hierarchical_allreduce_is_recommended_and_elastic():
    request = replace(job(2, 2, 1), effort=0.2)
    found = plan(request).recommendation
    assert found.algorithm is AllReduceAlgorithm.HIERARCHICAL
    assert not elastic_blocker(found.schedule)
    assert prove(found.schedule).verdict is Status.PROVED


@pytest.mark.parametrize("options", [
    {"transport": Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL, codec=Codec.INT8)},
    {"payload": Payload(outer=OuterStep(lr=0.7))},
])  # fmt: skip
def test_codecs_and_outer_steps_keep_a_global_round_after_failures(options):
    request = job(3, 2, 2)
    found = survival(Schedule("nodes", request.cluster, replace(NODES, **options)), request).schedule
    assert found.failure_plan is not None
    for rule in SurvivorRule:
        planned = replace(found, failure_plan=FailurePlan(rule, 2))
        for failed in planned_failures(planned, found.failure_plan):
            after = after_failure(planned, failed)
            assert after.strategy.relaxations_of_all(after.cluster)
    assert prove(found).verdict is Status.PROVED


def test_first_proved_rule_within_1_1_of_the_fastest_is_chosen():
    """With one worker per node keeping the groups connects the survivors, but reapplying the rule is faster.

    The time of a rule is that of its slowest failure.
    """
    request = job(4, 1, 1, replace(HARDWARE, nic=Link(2e-3, 2e-10), compute=0.001))
    square = RulePhases((2, 2), ((Block((0,), (0,)),), (Block((0,), (1,)),)))
    bare = Schedule("square", request.cluster, StaticGroups(phases=square))
    found = survival(bare, request).schedule
    times = {}
    for rule in SurvivorRule:
        planned = replace(bare, failure_plan=FailurePlan(rule, 1))
        assert prove(planned)["survives"].status is Status.PROVED
        times[rule] = max(
            measure(
                after_failure(planned, {failed}), replace(request, cluster=survivors_of(request.cluster, (failed,)))
            ).time
            for failed in range(4)
        )
    first = next(rule for rule in SurvivorRule if times[rule] <= FACTOR * min(times.values()))
    assert first is not SurvivorRule.KEEP_GROUPS, "otherwise every plan would pass"
    assert found.failure_plan == FailurePlan(first, 1)


def test_hardware_of_survivors_is_renumbered():
    fast, slow = Link(0, 1e-10), Link(0, 1e-9)
    hardware = replace(
        HARDWARE,
        node_nic=((0, slow), (2, fast)),
        slowdown=((1, 2.0), (5, 3.0)),
        switches=(Switch((0, 1), fast), Switch((0, 1, 2), slow), Switch((2,), fast)),
    )
    left = survivors_of(Cluster.regular(3, 2, hardware=hardware), (0, 1))
    assert left.shape() == Cluster.regular(2, 2)
    assert left.hardware == replace(
        hardware,
        node_nic=((1, fast),),
        slowdown=((3, 3.0),),
        switches=(Switch((0,), fast), Switch((0, 1), slow), Switch((1,), fast)),
    )
    both = survivors_of(Cluster.regular(3, 2, hardware=hardware), (4, 5))
    assert both.hardware.switches == (Switch((0, 1), slow),)


def test_unsupported_failure_plans_are_rejected():
    check_error(
        InputError, "tolerate_failures: expected 1 to 4, got 5 of 6 workers; tolerate fewer failures", job, 3, 2, 5
    )
    check_error(InputError, "tolerate_failures: expected 0, got 1 of 2 workers; use more workers", job, 2, 1, 1)
    with pytest.raises(ScheduleError, match=r"strategy\.kind: is dynamic_groups"):
        survival(Schedule("drawn", Cluster.regular(3, 2), DynamicGroups()), job(3, 2, 1))


def test_too_many_failure_classes_fall_back_to_all_reduce(monkeypatch):
    request = job(2, 4, 2)
    bare = build("node-then-all", request.cluster)
    assert survival(bare, request).schedule.failure_plan == FailurePlan(SurvivorRule.KEEP_GROUPS, 2)
    monkeypatch.setattr(survives, "MAX_CLASSES", 1)
    found = survival(bare, request).schedule
    assert found.failure_plan == FailurePlan(SurvivorRule.ALL_REDUCE, 2)
    assert prove(found).verdict is Status.PROVED
