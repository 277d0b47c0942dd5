"""Schedules that show every kind of claim, small enough for dense arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.phase import Group, Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    DelayedMerge,
    GroupPhases,
    NeighborAveraging,
    Round,
    RulePhases,
    StaticGroups,
)
from partreduce.topo.strategies.axes import (
    SYNCHRONOUS,
    AllReduceAlgorithm,
    Codec,
    CodecScope,
    DelayedAveraging,
    DrainPolicy,
    GradientBuckets,
    GradientReduction,
    Pipeline,
    Transport,
)
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap, SkipPolicy, UpdateOrder
from partreduce.topo.strategies.partial import LateGradientPolicy, MissedResultPolicy, PartialAllReduce, QuorumStart
from partreduce.topo.strategies.payload import (
    ROW_CODECS,
    Gradient,
    OuterParams,
    OuterStep,
    Payload,
    Placement,
    TablePlacement,
)

if TYPE_CHECKING:
    import random


def explicit(n: int, *phases: Any, **options: Any) -> Schedule:  # noqa: ANN401 - whatever a phase is built from
    return Schedule(
        "x",
        Cluster.regular(n, 1),
        StaticGroups(phases=GroupPhases(tuple(Phase.from_groups(n, p) for p in phases)), **options),
    )


def rule(radices: tuple[int, ...], size: int, *phases: tuple[Block, ...]) -> Schedule:
    m = int(np.prod(radices))
    return Schedule("r", Cluster.regular(m, size), StaticGroups(phases=RulePhases(radices, phases)))


def graph(n: int, *rounds: list[tuple[int, int, Fraction]]) -> Schedule:
    return Schedule("g", Cluster.regular(n, 1), NeighborAveraging(rounds=tuple(Round.from_edges(n, r) for r in rounds)))


def kept(n: int, edges: list[tuple[int, int, Fraction]], gap: IterationGap) -> Schedule:
    return Schedule("k", Cluster.regular(n, 1), NeighborAveraging(rounds=(Round.from_edges(n, edges),), sync=gap))


def by_quorum(n: int, quorum: PartialAllReduce) -> Schedule:
    return Schedule("q", Cluster.regular(n, 1), AllReduce(sync=quorum))


def half(*pair: int, a: Fraction = Fraction(1, 2)) -> Group:
    return Group(pair, 2 * a)


def shift(n: int, weight: Fraction, step: int = 1) -> list[tuple[int, int, Fraction]]:
    return [(i, (i + step) % n, weight) for i in range(n)]


SQUARE = [(i, j, Fraction(1, 3)) for i, j in ((0, 1), (1, 2), (2, 3), (3, 0)) for i, j in ((i, j), (j, i))]
CIRCLE = [(i, (i + d) % 5, Fraction(1, 3)) for i in range(5) for d in (1, 4)]
ALL_OF_5 = [(i, j, Fraction(1, 5)) for i in range(5) for j in range(5) if i != j]
TABLES = Payload(
    tables=(
        TablePlacement(parameter="words", rows=23, columns=3, hosts=(4, 1, 2), partitions=7, codec=Codec.BFLOAT16),
        TablePlacement(
            parameter="tags", rows=8, columns=1, way=Placement.GATHER, gradient=Gradient.SPARSE, codec=Codec.INT8
        ),
        TablePlacement(parameter="names", rows=17, columns=2),
        TablePlacement(parameter="places", rows=5, columns=2, way=Placement.DENSE),
    )
)
SCHEDULES = {
    "rule": build("prague-figure-10", Cluster.regular(4, 2)),
    "rule-exact": rule((2, 3), 2, (Block((0, 1)),), (Block((0,), (0, 1)), Block((1,), (0, 1)))),
    "rule-relaxed": rule(
        (2,), 2, (Block((0, 1), (), Fraction(4, 3)),), (Block((0,), (0,), Fraction(1, 2)), Block((1,), (0,)))
    ),
    "explicit": explicit(6, [[0, 1], [2, 3, 4]], [[1, 2], [4, 5]], [[0, 5]], prologue=2),
    "explicit-exact": explicit(6, [[0, 5]], [[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]]),
    "relaxed-exact": explicit(
        6,
        [[0, 1], [2, 3], [4, 5]],
        [half(0, 2, a=Fraction(2, 3)), half(1, 4, a=Fraction(2, 3)), half(3, 5, a=Fraction(2, 3))],
        [[0, 1], [2, 3], [4, 5]],
    ),
    "negative": explicit(3, [Group((0, 1, 2), Fraction(7, 4))]),
    "swaps": explicit(4, [[0, 1], [2, 3]], [Group((1, 2), Fraction(2))], [[0, 1], [2, 3]]),
    "pairs-of-7": explicit(7, [[0, 1], [2, 3], [4, 5]], [[1, 2], [3, 4], [5, 6]], [[0, 6]]),
    "allreduce": Schedule("a", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(steps_per_round=(1, 2, 1, 1, 3))),
    "pipeline": Schedule(
        "p",
        Cluster.regular(3, 2),
        AllReduce(
            sync=Pipeline(width=3, warm_up=4, drain=DrainPolicy.DROP),
            transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL, codec=Codec.INT8, error_feedback=True,
                gradient_buckets=GradientBuckets.PER_LAYER),
        ),
    ),
    "quorum": by_quorum(5, PartialAllReduce(quorum=3, staleness=6, grace=100)),
    "quorum-call": by_quorum(4, PartialAllReduce(quorum=QuorumStart.MAJORITY, count=LateGradientPolicy.CALL, seed=2)),
    "quorum-latest": by_quorum(3, PartialAllReduce(quorum=QuorumStart.SOLO, missed=MissedResultPolicy.LATEST,
        synchronize_every=5)),
    "quorum-unequal": by_quorum(4, PartialAllReduce(quorum=QuorumStart.SOLO, missed=MissedResultPolicy.LATEST)),
    "coded-rule": Schedule(
        "c",
        Cluster.regular(2, 2),
        StaticGroups(
            phases=RulePhases((2,), ((Block((0, 1)),), (Block((0, 1), (0,)),), (Block((0,), (0,)),))),
            transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL, codec=Codec.FLOAT16,
                where=CodecScope.ACROSS_NODES),
        ),
    ),
    "coded": explicit(5, [[0, 1], [2, 3, 4]], [range(5)], prologue=1, transport=Transport(codec=Codec.INT8, block=8)),
    "outer": Schedule("o", Cluster.regular(2, 2), AllReduce(payload=Payload(outer=OuterStep(lr=0.7)))),
    "outer-nested": Schedule(
        "o",
        Cluster.regular(2, 2),
        StaticGroups(
            phases=RulePhases((2,), ((Block((0, 1)),), (Block((0, 1), (0,)),))),
            steps_per_round=(3, 3, 2, 3),
            payload=Payload(outer=OuterStep(lr="7/10", momentum="9/10", nesterov=True)),
        ),
    ),
    "streaming": Schedule(
        "s",
        Cluster.regular(2, 2),
        AllReduce(steps_per_round=11, sync=DelayedMerge(steps=1, alpha="2/3"),
            payload=Payload(outer=OuterStep(lr=0.7), fragments=4)),
    ),
    "merged": Schedule("m", Cluster.regular(3, 1), AllReduce(steps_per_round=4, sync=DelayedMerge(steps=3))),
    "outer-own": explicit(
        6,
        [[0, 1], [2, 3, 4]],
        [[1, 2], [4, 5]],
        [[0, 5]],
        prologue=1,
        payload=Payload(outer=OuterStep(lr=0.7, momentum=0.5, nesterov=True, outer_params="per_worker")),
    ),
    "outer-own-rule": Schedule(
        "o",
        Cluster.regular(6, 2),
        StaticGroups(
            phases=RulePhases((2, 3), ((Block((0, 1)),), (Block((0,), (0, 1)), Block((1,), (0,))))),
            steps_per_round=2,
            payload=Payload(outer=OuterStep(lr="9/10", momentum="3/10", outer_params="per_worker")),
        ),
    ),
    "tables": Schedule("t", Cluster.irregular([[0, 2, 3], [1, 5], [4]]), AllReduce(payload=TABLES)),
    "tables-apart": Schedule(
        "t",
        Cluster.regular(3, 2),
        StaticGroups(
            phases=RulePhases((3,), ((Block((0, 1)),), (Block((0, 1), (0,)),))),
            steps_per_round=2,
            payload=replace(TABLES, local_aggregation=False),
        ),
    ),
    "gap-tokens": kept(5, CIRCLE, IterationGap(max_ig=2, update_order=UpdateOrder.DPSGD)),
    "gap-stale": kept(5, CIRCLE, IterationGap(max_ig=3, staleness=1, skip=SkipPolicy(limit=4),
        weights=EdgeWeighting.ITERATION)),
    "gap-backup": kept(5, CIRCLE, IterationGap(max_ig=2, backup=(1, 0, 0, 1, 0), skip=SkipPolicy(limit=2))),
    "gap-robust": kept(5, ALL_OF_5, IterationGap(max_ig=2, backup=2)),
    "gap-searched": kept(5, ALL_OF_5, IterationGap(max_ig=2, backup=(1, 3, 0, 2, 2))),
    "gap-one-way": kept(4, [*shift(3, Fraction(1, 3)), (2, 3, Fraction(1, 2))], IterationGap(max_ig=1)),
    "graph": graph(4, SQUARE),
    "graph-lazy-shift": graph(5, shift(5, Fraction(1, 3)), shift(5, Fraction(1, 4), 2)),
    "graph-de-bruijn": graph(
        4, [(i, (2 * i + a) % 4, Fraction(1, 2)) for i in range(4) for a in (0, 1) if (2 * i + a) % 4 != i]
    ),
}  # fmt: skip


def surviving(schedule: Schedule, rule: SurvivorRule, failures: int = 1) -> Schedule:
    """The same schedule with a failure plan."""
    return replace(schedule, failure_plan=FailurePlan(rule, failures))


SCHEDULES |= {
    "survives": surviving(
        explicit(6, [[0, 1, 2], [3, 4, 5]], [[0, 3], [2, 5]], [[1, 4], [0, 5]], [[2, 4], [1, 3]]),
        SurvivorRule.KEEP_GROUPS,
    ),
    "survives-rule": surviving(
        rule((3,), 2, (Block((0, 1)),), (Block((0, 1), (0,), Fraction(3, 4)),)), SurvivorRule.KEEP_GROUPS, 2
    ),
    "survives-digits": surviving(
        rule((2, 2), 2, (Block((0, 1), (0,)),), (Block((0, 1), (1,)),), (Block((0,), (1,)), Block((1,), (0, 1)))),
        SurvivorRule.KEEP_GROUPS,
    ),
    "survives-reapplied": surviving(
        rule((2, 2), 2, (Block((0, 1), (0,)),), (Block((0, 1), (1,), Fraction(3, 4)),)), SurvivorRule.REAPPLY_RULE, 3
    ),
    "survives-allreduce": surviving(
        Schedule("a", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(steps_per_round=2)), SurvivorRule.ALL_REDUCE
    ),
}


def wide(n: int = 48 + 2) -> Schedule:
    """A schedule too large for exact pivots."""
    first = [range(i, i + 2) for i in range(0, n, 2)]
    return explicit(n, first, [range(0, n, 2), range(1, n, 2)])


def spread(n: int = 48 + 2) -> Schedule:
    """A schedule too large for exact pivots that one period does not bring to the mean."""
    return explicit(n, [range(i, i + 5) for i in range(0, n, 5)], [[i, (i + 7) % n] for i in range(0, n - 7, 14)])


def with_tables(draw: random.Random, schedule: Schedule) -> Schedule:
    """The same schedule with up to three tables of any way and owners, if its workers have common steps."""
    n, tables = schedule.num_workers, []
    for name in draw.sample(["words", "tags", "names", "places"], draw.randrange(1, 4)):
        way, rows = draw.choice(list(Placement)), draw.randrange(1, 40)
        hosts = tuple(draw.sample(range(n), draw.randrange(n + 1))) if way is Placement.SHARDED else ()
        least = len(hosts) or n
        parts = (
            draw.randrange(least, rows + 1)
            if way is Placement.SHARDED and least <= rows and draw.random() < 0.5
            else None
        )
        columns = draw.randrange(1, 5)
        codec = Codec.NONE if way is Placement.DENSE else draw.choice(ROW_CODECS)
        tables.append(
            TablePlacement(
                parameter=name, rows=rows, columns=columns, way=way, hosts=hosts, partitions=parts, codec=codec
            )
        )
    return _changed(schedule, payload=Payload(tables=tuple(tables), local_aggregation=draw.random() < 0.7))


def _changed(schedule: Schedule, **members: Any) -> Schedule:  # noqa: ANN401 - of a strategy
    """The same schedule with other members of its strategy, if they go with it."""
    try:
        return replace(schedule, strategy=replace(schedule.strategy, **members))
    except ScheduleError:
        return schedule


TIMES = (SYNCHRONOUS, DelayedAveraging())


def random_transport(draw: random.Random) -> Transport:
    """An algorithm and a codec, with what goes with them."""
    algorithm, codec = draw.choice((AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)), draw.choice(list(Codec))
    where = (
        draw.choice(list(CodecScope))
        if algorithm is AllReduceAlgorithm.HIERARCHICAL and codec is not Codec.NONE
        else CodecScope.ALL
    )
    if not codec.has_blocks:
        return Transport(algorithm=algorithm, codec=codec, where=where)
    return Transport(
        algorithm=algorithm,
        codec=codec,
        where=where,
        block=draw.choice((1, 4, 256)),
        error_feedback=draw.random() < 0.5,
    )


def random_allreduce(draw: random.Random) -> Schedule:
    """All-reduce, synchronous, late, in a pipeline or in turns, of gradients or parameters, on any cluster."""
    cluster = draw.choice(
        [Cluster.regular(draw.randrange(1, 4), draw.randrange(2, 4)), Cluster.irregular([[0, 2], [1], [3, 4]])]
    )
    if draw.random() < 0.3:
        return with_codec(draw, in_turns(draw, cluster))
    width = draw.choice((2, 2, 3, 5))
    drain, total = draw.choice(list(DrainPolicy)), draw.choice(list(GradientReduction))
    pipeline = Pipeline(width=width, warm_up=draw.choice((0, 1, 100)), drain=drain, total=total)
    sync = draw.choice((SYNCHRONOUS, DelayedAveraging(), pipeline, pipeline))
    steps_per_round = 1 if sync is pipeline else draw.choice((1, 3, (1,) * cluster.num_workers))
    transport = random_transport(draw)
    if draw.random() < 0.3:
        transport = replace(transport, gradient_buckets=GradientBuckets.PER_LAYER)
    strategy = AllReduce(sync=sync, steps_per_round=steps_per_round)
    if not strategy.averages_gradients:
        transport = replace(transport, gradient_buckets=GradientBuckets.SINGLE, error_feedback=False)
    return with_outer_steps(draw, Schedule("a", cluster, replace(strategy, transport=transport)))


def in_turns(draw: random.Random, cluster: Cluster) -> Schedule:
    """Fragments by number or by name that take turns, each merged late by fewer steps than a round has."""
    members = _turns(draw)
    merge = DelayedMerge(
        steps=draw.randrange(members["steps_per_round"]),
        alpha=draw.choice((Fraction(0), Fraction(0), Fraction(1, 3), 0.9)),
    )
    if merge.steps or merge.alpha:
        return Schedule("t", cluster, AllReduce(sync=merge, **members))
    return Schedule("t", cluster, AllReduce(**_paced(draw, members, cluster.num_workers)))


def with_turns(draw: random.Random, schedule: Schedule) -> Schedule:
    """The same schedule of groups; now and then with fragments that take turns over the groups of each round."""
    if draw.random() >= 0.2:
        return schedule
    return _changed(schedule, sync=SYNCHRONOUS, **_paced(draw, _turns(draw), schedule.num_workers))


def _paced(draw: random.Random, members: dict[str, Any], n: int) -> dict[str, Any]:
    """The same members; now and then with steps per round of each worker's own, of no fewer steps."""
    if draw.random() < 0.6:
        return members
    return members | {"steps_per_round": tuple(members["steps_per_round"] + draw.randrange(4) for _ in range(n))}


def _turns(draw: random.Random) -> dict[str, Any]:
    parts, apart = draw.randrange(1, 5), draw.randrange(1, 5)
    names = tuple((f"{part}.*",) for part in range(parts))
    return {
        "steps_per_round": draw.randrange(parts * apart, parts * (apart + 1)),
        "payload": Payload(fragments=names if parts > 1 and draw.random() < 0.3 else parts),
    }


def with_codec(draw: random.Random, schedule: Schedule) -> Schedule:
    """Mostly the same schedule; often with a codec or outer steps where a round of all lets it have them."""
    return with_outer_steps(draw, _changed(schedule, transport=random_transport(draw)))


def with_outer_steps(draw: random.Random, schedule: Schedule) -> Schedule:
    """The same schedule; now and then with outer steps, if they go with it."""
    if draw.random() < 0.7:
        return schedule
    momentum = draw.choice((Fraction(0), Fraction(9, 10)))
    nesterov, outer_params = momentum > 0 and draw.random() < 0.5, draw.choice(list(OuterParams))
    outer = OuterStep(
        lr=Fraction(draw.randrange(1, 9), 5), momentum=momentum, nesterov=nesterov, outer_params=outer_params
    )
    return _changed(schedule, payload=replace(schedule.strategy.payload, outer=outer))


def random_blocks(draw: random.Random, radices: tuple[int, ...], size: int) -> list[Block]:
    """One or two blocks with all local ranks of a node, over digits drawn at random: a phase of a rule."""
    locals_ = draw.sample(range(size), size)
    cut = draw.randrange(size + 1)
    return [
        Block(tuple(sorted(part)), tuple(d for d in range(len(radices)) if draw.random() < 0.5))
        for part in (locals_[:cut], locals_[cut:])
        if part
    ]


def random_schedule(draw: random.Random) -> Schedule:
    """All-reduce, explicit groups, a rule or a graph, with steps per round, delay and codecs; most reach consensus."""
    kind, period = draw.randrange(4), draw.randrange(1, 5)
    sync = draw.choice(TIMES)
    if kind == 3:
        return random_allreduce(draw)
    if kind == 0:
        n = draw.randrange(2, 8)
        phases = []
        for _ in range(period):
            ranks = draw.sample(range(n), n)
            cuts = sorted(draw.sample(range(n + 1), min(draw.randrange(1, 4), n + 1)))
            groups = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
            phases.append([group for group in groups if len(group) > 1])
        steps_per_round = tuple(draw.randrange(1, 4) for _ in range(n))
        if draw.random() < 0.5:
            phases[draw.randrange(period)] = [ranks]
        made = explicit(n, *phases, steps_per_round=steps_per_round, sync=sync, prologue=draw.randrange(2))
        return with_codec(draw, with_turns(draw, made))
    if kind == 1:
        radices, size = draw.choice([((2,), 2), ((3,), 3), ((2, 2), 2), ((2, 3), 3), ((2,), 4), ((), 5)])
        phases = []
        for _ in range(period):
            blocks = random_blocks(draw, radices, size)
            if draw.random() < 0.2:
                blocks = [Block(tuple(range(size)), tuple(range(len(radices))))]
            phases.append(tuple(blocks))
        made = rule(radices, size, *phases)
        strategy = StaticGroups(phases=made.strategy.phases, sync=sync, steps_per_round=draw.randrange(1, 3))
        return with_codec(draw, with_turns(draw, Schedule("r", made.cluster, strategy)))
    n = draw.randrange(2, 7)
    rounds = []
    for _ in range(draw.randrange(1, 4)):
        pairs = draw.sample([(i, j) for i in range(n) for j in range(n) if i != j], draw.randrange(n * (n - 1) + 1))
        if draw.random() < 0.5:
            pairs = list({*pairs, *((i, (i + 1) % n) for i in range(n))})
        rounds.append([(i, j, Fraction(1, draw.randrange(n, 2 * n))) for i, j in pairs])
    made = graph(n, *rounds)
    return Schedule(
        "g",
        made.cluster,
        NeighborAveraging(rounds=made.strategy.rounds, sync=sync, steps_per_round=draw.randrange(1, 4)),
    )
