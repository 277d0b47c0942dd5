"""Schedules that show every kind of claim (schedules.json), and random ones, small enough for dense arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import schedule_of
from partreduce.topo.errors import ScheduleError
from partreduce.topo.phase import Phase
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
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.strategies.payload import (
    ROW_CODECS,
    OuterParams,
    OuterStep,
    Payload,
    Placement,
    TablePlacement,
)

if TYPE_CHECKING:
    import random


def explicit(n: int, *phases: Any, **options: Any) -> Schedule:
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


def by_quorum(n: int, quorum: PartialAllReduce) -> Schedule:
    return Schedule("q", Cluster.regular(n, 1), AllReduce(sync=quorum))


def shift(n: int, weight: Fraction, step: int = 1) -> list[tuple[int, int, Fraction]]:
    return [(i, (i + step) % n, weight) for i in range(n)]


LISTED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SCHEDULES = {name: schedule_of(raw) for name, raw in LISTED.items()}
TABLES: Payload = SCHEDULES["tables"].strategy.payload


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
        members: dict[str, Any] = {"parameter": name, "rows": rows, "way": way}
        if way is Placement.SHARDED:
            members["hosts"] = tuple(draw.sample(range(n), draw.randrange(n + 1)))
            least = len(members["hosts"]) or n
            if least <= rows and draw.random() < 0.5:
                members["partitions"] = draw.randrange(least, rows + 1)
        members["columns"] = draw.randrange(1, 5)
        members["codec"] = Codec.NONE if way is Placement.DENSE else draw.choice(ROW_CODECS)
        tables.append(TablePlacement(**members))
    return _with_members(schedule, payload=Payload(tables=tuple(tables), local_aggregation=draw.random() < 0.7))


def _with_members(schedule: Schedule, **members: Any) -> Schedule:
    """The same schedule with other members of its strategy, if they go with it."""
    try:
        return replace(schedule, strategy=replace(schedule.strategy, **members))
    except ScheduleError:
        return schedule


TIMES = (SYNCHRONOUS, DelayedAveraging())


def random_transport(draw: random.Random) -> Transport:
    """An algorithm and a codec, with what goes with them."""
    algorithm, codec = draw.choice((AllReduceAlgorithm.RING, AllReduceAlgorithm.HIERARCHICAL)), draw.choice(list(Codec))
    has_scopes = algorithm is AllReduceAlgorithm.HIERARCHICAL and codec is not Codec.NONE
    where = draw.choice(list(CodecScope)) if has_scopes else CodecScope.ALL
    of_blocks: dict[str, Any] = {}
    if codec.has_blocks:
        of_blocks = {"block": draw.choice((1, 4, 256)), "error_feedback": draw.random() < 0.5}
    return Transport(algorithm=algorithm, codec=codec, where=where, **of_blocks)


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
    steps = draw.randrange(members["steps_per_round"])
    merge = DelayedMerge(steps=steps, alpha=draw.choice((Fraction(0), Fraction(0), Fraction(1, 3), 0.9)))
    if merge.steps or merge.alpha:
        return Schedule("t", cluster, AllReduce(sync=merge, **members))
    return Schedule("t", cluster, AllReduce(**_with_paces(draw, members, cluster.num_workers)))


def with_turns(draw: random.Random, schedule: Schedule) -> Schedule:
    """The same schedule of groups; now and then with fragments that take turns over the groups of each round."""
    if draw.random() >= 0.2:
        return schedule
    return _with_members(schedule, sync=SYNCHRONOUS, **_with_paces(draw, _turns(draw), schedule.num_workers))


def _with_paces(draw: random.Random, members: dict[str, Any], n: int) -> dict[str, Any]:
    """The same members; now and then with steps per round of each worker's own, of no fewer steps."""
    if draw.random() < 0.6:
        return members
    return members | {"steps_per_round": tuple(members["steps_per_round"] + draw.randrange(4) for _ in range(n))}


def _turns(draw: random.Random) -> dict[str, Any]:
    parts, apart = draw.randrange(1, 5), draw.randrange(1, 5)
    steps = draw.randrange(parts * apart, parts * (apart + 1))
    names = tuple((f"{part}.*",) for part in range(parts))
    return {
        "steps_per_round": steps,
        "payload": Payload(fragments=names if parts > 1 and draw.random() < 0.3 else parts),
    }


def with_codec(draw: random.Random, schedule: Schedule) -> Schedule:
    """Mostly the same schedule; often with a codec or outer steps where a round of all lets it have them."""
    return with_outer_steps(draw, _with_members(schedule, transport=random_transport(draw)))


def with_outer_steps(draw: random.Random, schedule: Schedule) -> Schedule:
    """The same schedule; now and then with outer steps, if they go with it."""
    if draw.random() < 0.7:
        return schedule
    momentum = draw.choice((Fraction(0), Fraction(9, 10)))
    members = {"nesterov": momentum > 0 and draw.random() < 0.5, "outer_params": draw.choice(list(OuterParams))}
    outer = OuterStep(lr=Fraction(draw.randrange(1, 9), 5), momentum=momentum, **members)
    return _with_members(schedule, payload=replace(schedule.strategy.payload, outer=outer))


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
    if kind == 2:
        return _random_graph(draw, sync)
    made = _random_groups(draw, period, sync) if kind == 0 else _random_rule(draw, period, sync)
    return with_codec(draw, with_turns(draw, made))


def _random_groups(draw: random.Random, period: int, sync: Any) -> Schedule:
    n, phases = draw.randrange(2, 8), []
    for _ in range(period):
        ranks = draw.sample(range(n), n)
        cuts = sorted(draw.sample(range(n + 1), min(draw.randrange(1, 4), n + 1)))
        groups = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
        phases.append([group for group in groups if len(group) > 1])
    steps_per_round = tuple(draw.randrange(1, 4) for _ in range(n))
    if draw.random() < 0.5:
        phases[draw.randrange(period)] = [ranks]
    return explicit(n, *phases, steps_per_round=steps_per_round, sync=sync, prologue=draw.randrange(2))


def _random_rule(draw: random.Random, period: int, sync: Any) -> Schedule:
    radices, size = draw.choice([((2,), 2), ((3,), 3), ((2, 2), 2), ((2, 3), 3), ((2,), 4), ((), 5)])
    phases = []
    for _ in range(period):
        blocks = random_blocks(draw, radices, size)
        if draw.random() < 0.2:
            blocks = [Block(tuple(range(size)), tuple(range(len(radices))))]
        phases.append(tuple(blocks))
    made = rule(radices, size, *phases)
    return replace(made, strategy=replace(made.strategy, sync=sync, steps_per_round=draw.randrange(1, 3)))


def _random_graph(draw: random.Random, sync: Any) -> Schedule:
    n, rounds = draw.randrange(2, 7), []
    for _ in range(draw.randrange(1, 4)):
        pairs = draw.sample([(i, j) for i in range(n) for j in range(n) if i != j], draw.randrange(n * (n - 1) + 1))
        if draw.random() < 0.5:
            pairs = list({*pairs, *((i, (i + 1) % n) for i in range(n))})
        rounds.append([(i, j, Fraction(1, draw.randrange(n, 2 * n))) for i, j in pairs])
    made = graph(n, *rounds)
    return replace(made, strategy=replace(made.strategy, sync=sync, steps_per_round=draw.randrange(1, 4)))
