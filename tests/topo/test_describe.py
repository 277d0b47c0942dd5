"""The one-line description of a schedule: short, for every kind, with every setting that changes an average."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import partreduce
from helpers import drawn_schedules
from partreduce import Cluster, Schedule, describe
from partreduce.errors import ScheduleError
from partreduce.schedulers import registry
from partreduce.strategies import Block, Phase
from partreduce.topo.describe import LONGEST
from partreduce.topo.strategies import (
    AllReduce,
    AllReduceAlgorithm,
    Averaging,
    Codec,
    CodecScope,
    DelayedAveraging,
    DelayedMerge,
    DynamicGroups,
    GradientBuckets,
    GradientReduction,
    GroupPhases,
    GroupSplit,
    IterationGap,
    NeighborAveraging,
    OuterParams,
    OuterStep,
    Pairwise,
    PartialAllReduce,
    Payload,
    Pipeline,
    Placement,
    RulePhases,
    Server,
    SkipPolicy,
    SlowWorkerPolicy,
    StaticGroups,
    TablePlacement,
    Transport,
    UpdateOrder,
)

SHAPES = ("4x4", "1x8", "8x1", "5,3,1", "3x3", "2,2,4")
PLACE = Cluster.parse("4x4")
DILOCO = OuterStep(lr=Fraction(7, 10), momentum=Fraction(9, 10), nesterov=True)
INT4 = Transport(codec=Codec.INT4, where=CodecScope.ACROSS_NODES, algorithm=AllReduceAlgorithm.HIERARCHICAL)


def describe_on(strategy, place=PLACE):
    return describe(Schedule("s", place, strategy))


def check(line):
    assert line
    assert len(line) <= LONGEST == 100
    assert line == " ".join(line.split())
    assert line.isprintable()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", registry.names())
def test_every_catalogue_entry_has_a_stable_description(name, shape):
    try:
        schedule = registry.build(name, Cluster.parse(shape))
    except ScheduleError:
        return
    check(describe(schedule))
    assert "…" not in describe(schedule)
    assert describe(schedule) == describe(registry.build(name, Cluster.parse(shape))) == partreduce.describe(schedule)


LINES = {
    "All-Reduce of gradients in every step": AllReduce(),
    "average all workers every 4 steps (local SGD)": AllReduce(steps_per_round=4),
    "average all workers every 4 steps (local SGD), applied one round late":
        AllReduce(steps_per_round=4, sync=DelayedAveraging()),
    "All-Reduce of gradients in every step (Pipe-SGD), applied 1 step late": AllReduce(sync=Pipeline()),
    "All-Reduce of gradients once the first worker is ready (eager-SGD solo), others up to 4 rounds late":
        AllReduce(sync=PartialAllReduce(quorum="solo")),
    "All-Reduce once a random worker is ready (eager-SGD majority), others up to 4 rounds late":
        AllReduce(sync=PartialAllReduce(quorum="majority")),
    "All-Reduce of gradients once 12 of 16 workers are ready (eager-SGD), others up to 4 rounds late":
        AllReduce(sync=PartialAllReduce(quorum=12)),
    "average inside each node every 11 steps, all workers every 154, int4 between nodes":
        replace(registry.build("node-then-all", PLACE, node_rounds=13).strategy, steps_per_round=11, transport=INT4),
    "average inside each node every 2 steps, all workers every 40 (hierarchical local SGD)":
        replace(registry.build("node-then-all", PLACE, node_rounds=19).strategy, steps_per_round=2),
    "DiLoCo: every 30 steps, Nesterov 0.9, int4 between nodes":
        AllReduce(steps_per_round=30, payload=Payload(outer=DILOCO), transport=INT4),
    "DiLoCo: every 30 steps, Nesterov 0.9, 4 fragments in turn, merged 6 steps late":
        AllReduce(steps_per_round=30, payload=Payload(outer=DILOCO, fragments=4), sync=DelayedMerge(steps=6)),
    "DiLoCo: inside each node every step, all workers every 30 steps, Nesterov 0.9":
        registry.build("regions-diloco", PLACE).strategy,
    **{f"neighbor averaging on a {graph} (D-PSGD) every step": registry.build(name, PLACE).strategy for name, graph in (
        ("ring", "ring"), ("torus", "torus"), ("hypercube", "hypercube"), ("star", "star"),
        ("complete", "complete graph"), ("random-regular", "graph of 4 neighbors"),
    )},
    "neighbor averaging on a ring, weight 0.4817 (D-PSGD) every step":
        registry.build("ring", PLACE, weights="best-constant").strategy,
    "Hop on a ring every step, gap up to 3, staleness up to 2, backup 1, skips up to 5":
        replace(registry.build("ring", PLACE).strategy,
            sync=IterationGap(max_ig=3, staleness=2, backup=1, skip=SkipPolicy(limit=5))),
    "NoLoCo: in pairs, 4 rounds in turn, every step, Nesterov 0.9":
        replace(registry.build("one-peer-hypercube", PLACE).strategy,
            payload=Payload(outer=replace(DILOCO, outer_params=OuterParams.PER_WORKER))),
    "random pairs average every step (AD-PSGD), 2 of 16 workers ask": Pairwise(active=(0, 1)),
    "synchronous parameter server on worker 0, mean of gradients every step": Server(),
    "asynchronous parameter server on 2 workers, every step, workers at most 3 rounds apart":
        Server(hosts=(0, 4), synchronous=False, staleness=3),
    "random groups of 3 on request every step (Prague), without workers 4 rounds behind":
        DynamicGroups(division=GroupSplit.RANDOM),
    "All-Reduce of gradients in every step, tables 1 sharded in float16 (Parallax)":
        AllReduce(payload=Payload(tables=(TablePlacement(parameter="w", rows=99, columns=2, codec=Codec.FLOAT16),))),
}  # fmt: skip


LINES_BY_SHAPE = {
    "average all workers every 4 steps (local SGD), worker 3 takes 1 step where the others take 4":
        ("2x2", AllReduce(steps_per_round=(4, 4, 4, 1))),
    "average all workers every 2 steps (local SGD), worker 1 takes 1 step where the other takes 2":
        ("1x2", AllReduce(steps_per_round=(2, 1))),
    "all workers every 4 steps, 2 slower workers take 1 to 2 steps where the others take 4":
        ("2x2", AllReduce(steps_per_round=(4, 4, 2, 1))),
    "average inside each node every step, all workers every 4 steps (hierarchical local SGD)":
        ("1000000x1000", registry.build("node-then-all", Cluster.parse("1000000x1000")).strategy),
}  # fmt: skip


@pytest.mark.parametrize(("line", "place", "strategy"), [
    *((line, PLACE, strategy) for line, strategy in LINES.items()),
    *((line, Cluster.parse(shape), strategy) for line, (shape, strategy) in LINES_BY_SHAPE.items()),
])  # fmt: skip
def test_description_uses_the_terms_of_the_field(line, place, strategy):
    assert describe_on(strategy, place) == line


def variants():
    """Yield the variants of each kind, which differ in one setting from the first."""
    static = registry.build("node-then-all", PLACE).strategy
    pairs = Phase.from_groups(16, [(w, w + 1) for w in range(0, 16, 2)])
    yield [
        AllReduce(),
        AllReduce(steps_per_round=2),
        AllReduce(steps_per_round=3),
        AllReduce(steps_per_round=(3,) * 15 + (1,)),
        AllReduce(steps_per_round=(3,) * 14 + (1, 2)),
        AllReduce(sync=DelayedAveraging()),
        AllReduce(sync=Pipeline()),
        AllReduce(sync=Pipeline(width=3)),
        AllReduce(sync=Pipeline(total=GradientReduction.SUM)),
        AllReduce(sync=Pipeline(warm_up=9)),
        AllReduce(transport=Transport(codec=Codec.INT8)),
        AllReduce(transport=replace(INT4, codec=Codec.INT8)),
        AllReduce(transport=Transport(codec=Codec.INT8, error_feedback=True)),
        AllReduce(transport=Transport(codec=Codec.INT8, block=64)),
        AllReduce(transport=Transport(gradient_buckets=GradientBuckets.PER_LAYER)),
        *(AllReduce(sync=PartialAllReduce(quorum=quorum)) for quorum in ("solo", "majority", 8)),
        AllReduce(sync=PartialAllReduce(quorum=8, staleness=2)),
        AllReduce(sync=PartialAllReduce(quorum=8, count="call")),
        AllReduce(sync=PartialAllReduce(quorum=8, missed="latest")),
        AllReduce(sync=PartialAllReduce(quorum=8, missed="latest", synchronize_every=9)),
        AllReduce(sync=PartialAllReduce(quorum=8, grace=50)),
        AllReduce(payload=Payload(tables=(TablePlacement(parameter="w", rows=99, columns=2),))),
        AllReduce(payload=Payload(tables=(TablePlacement(parameter="w", rows=99, columns=2, way=Placement.GATHER),))),
    ]
    outer = AllReduce(steps_per_round=30, payload=Payload(outer=DILOCO))
    yield [
        outer,
        replace(outer, steps_per_round=31),
        replace(outer, payload=Payload(outer=replace(DILOCO, lr=Fraction(1)))),
        replace(outer, payload=Payload(outer=replace(DILOCO, momentum=Fraction(4, 5)))),
        replace(outer, payload=Payload(outer=replace(DILOCO, nesterov=False))),
        replace(outer, payload=Payload(outer=DILOCO, fragments=2)),
        replace(outer, sync=DelayedMerge(steps=6)),
        replace(outer, sync=DelayedMerge(steps=6, alpha=Fraction(1, 2))),
        replace(outer, transport=Transport(codec=Codec.INT4)),
        replace(outer, transport=INT4),
    ]
    yield [
        static,
        replace(static, steps_per_round=2),
        replace(static, prologue=2),
        replace(static, sync=DelayedAveraging()),
        replace(static, averaging=Averaging.STEP_NORMALIZED, steps_per_round=(2,) * 15 + (1,)),
        replace(static, steps_per_round=(2,) * 15 + (1,)),
        replace(static, transport=INT4),
        replace(static, payload=Payload(outer=DILOCO)),
        registry.build("node-then-all", PLACE, node_rounds=7).strategy,
        registry.build("pairs-pairs-all", PLACE).strategy,
        registry.build("hyper-cuboid", PLACE).strategy,
        registry.build("random-partitions", PLACE).strategy,
        registry.build("noloco", PLACE).strategy,
        StaticGroups(phases=RulePhases((4,), ((Block((0, 1, 2, 3), (), Fraction(1, 2)),),))),
        StaticGroups(phases=RulePhases((4,), ((Block((0, 1, 2, 3)),),))),
        StaticGroups(phases=GroupPhases((pairs,))),
        StaticGroups(phases=GroupPhases((Phase.from_groups(16, [(0, 1)]),))),
        StaticGroups(phases=GroupPhases((pairs, Phase.from_groups(16, [range(16)])))),
        StaticGroups(phases=GroupPhases((pairs, Phase.from_groups(16, [])))),
        StaticGroups(phases=GroupPhases((pairs, Phase.from_groups(16, []), Phase.from_groups(16, [])))),
    ]
    ring = registry.build("ring", PLACE).strategy
    yield [
        ring,
        replace(ring, steps_per_round=2),
        replace(ring, sync=DelayedAveraging()),
        registry.build("torus", PLACE).strategy,
        NeighborAveraging(rounds=(ring.rounds[0], registry.build("torus", PLACE).strategy.rounds[0])),
        *(replace(ring, sync=sync)
            for sync in (IterationGap(), IterationGap(max_ig=2), IterationGap(max_ig=3),
            IterationGap(max_ig=3, staleness=1), IterationGap(max_ig=3, backup=1),
            IterationGap(max_ig=3, backup=(1,) * 15 + (0,)), IterationGap(max_ig=3, backup=1, skip=SkipPolicy(limit=4)),
            IterationGap(max_ig=3, backup=1, skip=SkipPolicy(limit=4, behind=3)),
            IterationGap(max_ig=3, notify_ack=True), IterationGap(max_ig=3, update_order=UpdateOrder.DPSGD),
            IterationGap(max_ig=3, staleness=1, weights="iteration"))),
    ]  # fmt: skip
    yield [
        *(DynamicGroups(division=division) for division in GroupSplit),
        DynamicGroups(group_size=2),
        DynamicGroups(steps_per_round=5),
        DynamicGroups(slow_threshold=None),
        DynamicGroups(slow_threshold=9),
        DynamicGroups(max_known=None),
        DynamicGroups(division=GroupSplit.NODE_THEN_ALL, all_every=4),
        DynamicGroups(slow_worker_policy=SlowWorkerPolicy.DEFER),
        Pairwise(active=(0, 1)),
        Pairwise(active=(0, 1, 2)),
        Pairwise(active=(0, 1), steps_per_round=3),
        Pairwise(active=(0, 1), edges=((0, 3), (1, 5))),
        Server(),
        Server(hosts=(0, 1)),
        Server(steps_per_round=3),
        Server(synchronous=False),
        Server(synchronous=False, staleness=2),
    ]


@pytest.mark.parametrize("kind", range(5))
def test_every_setting_changes_the_description(kind):
    lines = [describe_on(strategy) for strategy in list(variants())[kind]]
    for line in lines:
        check(line)
        assert "…" not in line
    assert [pair for pair in combinations(lines, 2) if pair[0] == pair[1]] == []


DRAWN = (
    drawn_schedules.random_rule, drawn_schedules.random_groups, drawn_schedules.random_graph,
    drawn_schedules.random_allreduce,
)  # fmt: skip


@given(st.sampled_from(DRAWN), st.integers(0, 10**6))
def test_description_of_a_random_schedule_ignores_its_name(draw, seed):
    schedule = draw(np.random.default_rng(seed))
    line = describe(schedule)
    check(line)
    assert line == describe(replace(schedule, name="another")) == describe(draw(np.random.default_rng(seed)))


STEPS = st.integers(1, 10**6)
RATES = st.fractions(Fraction(1, 1000), 1, max_denominator=1000)
OUTER = st.builds(OuterStep, lr=RATES, momentum=st.fractions(Fraction(1, 100), Fraction(99, 100), max_denominator=100))
CODECS = st.sampled_from([Transport(), INT4, Transport(codec=Codec.INT8, block=32), Transport(codec=Codec.BFLOAT16)])
SETTINGS = st.tuples(STEPS, OUTER, CODECS, st.integers(1, 9))


@given(SETTINGS, SETTINGS)
def test_outer_steps_have_equal_descriptions_only_if_equal(one, other):
    lines = []
    for steps, outer, transport, fragments in (one, other):
        payload = Payload(outer=outer, fragments=min(fragments, steps + 8))
        lines.append(describe_on(AllReduce(steps_per_round=steps + 8, payload=payload, transport=transport)))
        check(lines[-1])
    assert (lines[0] == lines[1]) == (one == other)
