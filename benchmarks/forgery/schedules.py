"""Schedules that show every kind of claim, small enough for dense arithmetic beside them."""

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
from partreduce.topo.strategies import AllReduce, GroupPhases, Merge, Neighbor, Round, RulePhases, Static
from partreduce.topo.strategies.axes import (
    LOCKSTEP,
    Codec,
    CodecScope,
    Drain,
    Form,
    GradientTotal,
    How,
    Late,
    Pipeline,
    Sending,
)
from partreduce.topo.strategies.gap import Gap, Order, Skip, Weights
from partreduce.topo.strategies.outer import Anchor, Outer
from partreduce.topo.strategies.quorum import Counting, MissedResults, Quorum, QuorumStart
from partreduce.topo.strategies.routes import ROW_CODECS, Gradient, Route, Routes, TableWay

if TYPE_CHECKING:
    import random


def explicit(n: int, *phases: Any, **options: Any) -> Schedule:  # noqa: ANN401 - whatever a phase is built from
    return Schedule(
        "x",
        Cluster.regular(n, 1),
        Static(phases=GroupPhases(tuple(Phase.from_groups(n, p) for p in phases)), **options),
    )


def rule(radices: tuple[int, ...], size: int, *phases: tuple[Block, ...]) -> Schedule:
    m = int(np.prod(radices))
    return Schedule("r", Cluster.regular(m, size), Static(phases=RulePhases(radices, phases)))


def graph(n: int, *rounds: list[tuple[int, int, Fraction]]) -> Schedule:
    return Schedule("g", Cluster.regular(n, 1), Neighbor(rounds=tuple(Round.from_edges(n, r) for r in rounds)))


def kept(n: int, edges: list[tuple[int, int, Fraction]], gap: Gap) -> Schedule:
    return Schedule("k", Cluster.regular(n, 1), Neighbor(rounds=(Round.from_edges(n, edges),), when=gap))


def by_quorum(n: int, quorum: Quorum) -> Schedule:
    return Schedule("q", Cluster.regular(n, 1), AllReduce(when=quorum))


def half(*pair: int, a: Fraction = Fraction(1, 2)) -> Group:
    return Group(pair, 2 * a)


def shift(n: int, weight: Fraction, step: int = 1) -> list[tuple[int, int, Fraction]]:
    return [(i, (i + step) % n, weight) for i in range(n)]


SQUARE = [(i, j, Fraction(1, 3)) for i, j in ((0, 1), (1, 2), (2, 3), (3, 0)) for i, j in ((i, j), (j, i))]
CIRCLE = [(i, (i + d) % 5, Fraction(1, 3)) for i in range(5) for d in (1, 4)]
ALL_OF_5 = [(i, j, Fraction(1, 5)) for i in range(5) for j in range(5) if i != j]
TABLES = Routes(
    tables=(
        Route(parameter="words", rows=23, columns=3, hosts=(4, 1, 2), partitions=7, codec=Codec.BFLOAT16),
        Route(parameter="tags", rows=8, columns=1, way=TableWay.GATHER, gradient=Gradient.SPARSE, codec=Codec.INT8),
        Route(parameter="names", rows=17, columns=2),
        Route(parameter="places", rows=5, columns=2, way=TableWay.DENSE),
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
    "allreduce": Schedule("a", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(pace=(1, 2, 1, 1, 3))),
    "pipeline": Schedule(
        "p",
        Cluster.regular(3, 2),
        AllReduce(
            when=Pipeline(width=3, warm_up=4, drain=Drain.DROP),
            how=How(form=Form.HIERARCHICAL, codec=Codec.INT8, error_feedback=True, sending=Sending.LAYERS),
        ),
    ),
    "quorum": by_quorum(5, Quorum(quorum=3, staleness=6, grace=100)),
    "quorum-call": by_quorum(4, Quorum(quorum=QuorumStart.MAJORITY, count=Counting.CALL, seed=2)),
    "quorum-latest": by_quorum(3, Quorum(quorum=QuorumStart.SOLO, missed=MissedResults.LATEST, synchronise_every=5)),
    "quorum-unequal": by_quorum(4, Quorum(quorum=QuorumStart.SOLO, missed=MissedResults.LATEST)),
    "coded-rule": Schedule(
        "c",
        Cluster.regular(2, 2),
        Static(
            phases=RulePhases((2,), ((Block((0, 1)),), (Block((0, 1), (0,)),), (Block((0,), (0,)),))),
            how=How(form=Form.HIERARCHICAL, codec=Codec.FLOAT16, where=CodecScope.ACROSS_NODES),
        ),
    ),
    "coded": explicit(5, [[0, 1], [2, 3, 4]], [range(5)], prologue=1, how=How(codec=Codec.INT8, block=8)),
    "outer": Schedule("o", Cluster.regular(2, 2), AllReduce(what=Routes(outer=Outer(lr=0.7)))),
    "outer-nested": Schedule(
        "o",
        Cluster.regular(2, 2),
        Static(
            phases=RulePhases((2,), ((Block((0, 1)),), (Block((0, 1), (0,)),))),
            pace=(3, 3, 2, 3),
            what=Routes(outer=Outer(lr="7/10", momentum="9/10", nesterov=True)),
        ),
    ),
    "streaming": Schedule(
        "s",
        Cluster.regular(2, 2),
        AllReduce(pace=11, when=Merge(steps=1, alpha="2/3"), what=Routes(outer=Outer(lr=0.7), fragments=4)),
    ),
    "merged": Schedule("m", Cluster.regular(3, 1), AllReduce(pace=4, when=Merge(steps=3))),
    "outer-own": explicit(
        6,
        [[0, 1], [2, 3, 4]],
        [[1, 2], [4, 5]],
        [[0, 5]],
        prologue=1,
        what=Routes(outer=Outer(lr=0.7, momentum=0.5, nesterov=True, anchor="own")),
    ),
    "outer-own-rule": Schedule(
        "o",
        Cluster.regular(6, 2),
        Static(
            phases=RulePhases((2, 3), ((Block((0, 1)),), (Block((0,), (0, 1)), Block((1,), (0,))))),
            pace=2,
            what=Routes(outer=Outer(lr="9/10", momentum="3/10", anchor="own")),
        ),
    ),
    "tables": Schedule("t", Cluster.irregular([[0, 2, 3], [1, 5], [4]]), AllReduce(what=TABLES)),
    "tables-apart": Schedule(
        "t",
        Cluster.regular(3, 2),
        Static(
            phases=RulePhases((3,), ((Block((0, 1)),), (Block((0, 1), (0,)),))),
            pace=2,
            what=replace(TABLES, local_aggregation=False),
        ),
    ),
    "gap-tokens": kept(5, CIRCLE, Gap(max_ig=2, order=Order.PARALLEL)),
    "gap-stale": kept(5, CIRCLE, Gap(max_ig=3, staleness=1, skip=Skip(limit=4), weights=Weights.ITERATION)),
    "gap-backup": kept(5, CIRCLE, Gap(max_ig=2, backup=(1, 0, 0, 1, 0), skip=Skip(limit=2))),
    "gap-robust": kept(5, ALL_OF_5, Gap(max_ig=2, backup=2)),
    "gap-searched": kept(5, ALL_OF_5, Gap(max_ig=2, backup=(1, 3, 0, 2, 2))),
    "gap-one-way": kept(4, [*shift(3, Fraction(1, 3)), (2, 3, Fraction(1, 2))], Gap(max_ig=1)),
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
        Schedule("a", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(pace=2)), SurvivorRule.ALL_REDUCE
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
        way, rows = draw.choice(list(TableWay)), draw.randrange(1, 40)
        hosts = tuple(draw.sample(range(n), draw.randrange(n + 1))) if way is TableWay.SHARDED else ()
        least = len(hosts) or n
        parts = (
            draw.randrange(least, rows + 1)
            if way is TableWay.SHARDED and least <= rows and draw.random() < 0.5
            else None
        )
        columns = draw.randrange(1, 5)
        codec = Codec.NONE if way is TableWay.DENSE else draw.choice(ROW_CODECS)
        tables.append(
            Route(parameter=name, rows=rows, columns=columns, way=way, hosts=hosts, partitions=parts, codec=codec)
        )
    return _changed(schedule, what=Routes(tables=tuple(tables), local_aggregation=draw.random() < 0.7))


def _changed(schedule: Schedule, **members: Any) -> Schedule:  # noqa: ANN401 - of a strategy
    """The same schedule with other members of its strategy, if they go with it."""
    try:
        return replace(schedule, strategy=replace(schedule.strategy, **members))
    except ScheduleError:
        return schedule


TIMES = (LOCKSTEP, Late())


def random_how(draw: random.Random) -> How:
    """A form and a codec, with what goes with them."""
    form, codec = draw.choice((Form.RING, Form.HIERARCHICAL)), draw.choice(list(Codec))
    where = draw.choice(list(CodecScope)) if form is Form.HIERARCHICAL and codec is not Codec.NONE else CodecScope.ALL
    if not codec.has_blocks:
        return How(form=form, codec=codec, where=where)
    return How(form=form, codec=codec, where=where, block=draw.choice((1, 4, 256)), error_feedback=draw.random() < 0.5)


def random_allreduce(draw: random.Random) -> Schedule:
    """All-reduce in lockstep, late, in a pipeline or in turns, of gradients or parameters, on any cluster."""
    cluster = draw.choice(
        [Cluster.regular(draw.randrange(1, 4), draw.randrange(2, 4)), Cluster.irregular([[0, 2], [1], [3, 4]])]
    )
    if draw.random() < 0.3:
        return with_codec(draw, in_turns(draw, cluster))
    width = draw.choice((2, 2, 3, 5))
    drain, total = draw.choice(list(Drain)), draw.choice(list(GradientTotal))
    pipeline = Pipeline(width=width, warm_up=draw.choice((0, 1, 100)), drain=drain, total=total)
    when = draw.choice((LOCKSTEP, Late(), pipeline, pipeline))
    pace = 1 if when is pipeline else draw.choice((1, 3, (1,) * cluster.num_workers))
    how = random_how(draw)
    if draw.random() < 0.3:
        how = replace(how, sending=Sending.LAYERS)
    strategy = AllReduce(when=when, pace=pace)
    if not strategy.averages_gradients:
        how = replace(how, sending=Sending.WHOLE, error_feedback=False)
    return with_outer_steps(draw, Schedule("a", cluster, replace(strategy, how=how)))


def in_turns(draw: random.Random, cluster: Cluster) -> Schedule:
    """Fragments by number or by name that take turns, each merged late by fewer steps than a round has."""
    members = _turns(draw)
    merge = Merge(
        steps=draw.randrange(members["pace"]), alpha=draw.choice((Fraction(0), Fraction(0), Fraction(1, 3), 0.9))
    )
    if merge.steps or merge.alpha:
        return Schedule("t", cluster, AllReduce(when=merge, **members))
    return Schedule("t", cluster, AllReduce(**_paced(draw, members, cluster.num_workers)))


def with_turns(draw: random.Random, schedule: Schedule) -> Schedule:
    """The same schedule of groups; now and then with fragments that take turns over the groups of each round."""
    if draw.random() >= 0.2:
        return schedule
    return _changed(schedule, when=LOCKSTEP, **_paced(draw, _turns(draw), schedule.num_workers))


def _paced(draw: random.Random, members: dict[str, Any], n: int) -> dict[str, Any]:
    """The same members; now and then with paces of each worker's own, of no fewer steps."""
    if draw.random() < 0.6:
        return members
    return members | {"pace": tuple(members["pace"] + draw.randrange(4) for _ in range(n))}


def _turns(draw: random.Random) -> dict[str, Any]:
    parts, apart = draw.randrange(1, 5), draw.randrange(1, 5)
    names = tuple((f"{part}.*",) for part in range(parts))
    return {
        "pace": draw.randrange(parts * apart, parts * (apart + 1)),
        "what": Routes(fragments=names if parts > 1 and draw.random() < 0.3 else parts),
    }


def with_codec(draw: random.Random, schedule: Schedule) -> Schedule:
    """Mostly the same schedule; often with a codec or outer steps where a round of all lets it have them."""
    return with_outer_steps(draw, _changed(schedule, how=random_how(draw)))


def with_outer_steps(draw: random.Random, schedule: Schedule) -> Schedule:
    """The same schedule; now and then with outer steps, if they go with it."""
    if draw.random() < 0.7:
        return schedule
    momentum = draw.choice((Fraction(0), Fraction(9, 10)))
    nesterov, anchor = momentum > 0 and draw.random() < 0.5, draw.choice(list(Anchor))
    outer = Outer(lr=Fraction(draw.randrange(1, 9), 5), momentum=momentum, nesterov=nesterov, anchor=anchor)
    return _changed(schedule, what=replace(schedule.strategy.what, outer=outer))


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
    """All-reduce, explicit groups, a rule or a graph, with paces, lateness and codecs; most reach consensus."""
    kind, period = draw.randrange(4), draw.randrange(1, 5)
    when = draw.choice(TIMES)
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
        pace = tuple(draw.randrange(1, 4) for _ in range(n))
        if draw.random() < 0.5:
            phases[draw.randrange(period)] = [ranks]
        made = explicit(n, *phases, pace=pace, when=when, prologue=draw.randrange(2))
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
        strategy = Static(phases=made.strategy.phases, when=when, pace=draw.randrange(1, 3))
        return with_codec(draw, with_turns(draw, Schedule("r", made.cluster, strategy)))
    n = draw.randrange(2, 7)
    rounds = []
    for _ in range(draw.randrange(1, 4)):
        pairs = draw.sample([(i, j) for i in range(n) for j in range(n) if i != j], draw.randrange(n * (n - 1) + 1))
        if draw.random() < 0.5:
            pairs = list({*pairs, *((i, (i + 1) % n) for i in range(n))})
        rounds.append([(i, j, Fraction(1, draw.randrange(n, 2 * n))) for i, j in pairs])
    made = graph(n, *rounds)
    return Schedule("g", made.cluster, Neighbor(rounds=made.strategy.rounds, when=when, pace=draw.randrange(1, 4)))
