"""Schedules with every kind of claim (schedules.json), and random ones, small enough for dense arithmetic."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partreduce.topo.closed_model import read_value
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule, schedule_of
from partreduce.topo.document.schema import schedule_schema
from partreduce.topo.document.strategies import load_sync
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Phase
from partreduce.topo.rule import Block
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    GroupPhases,
    NeighborAveraging,
    Round,
    RulePhases,
    StaticGroups,
    Transport,
)
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.strategies.payload import Payload

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection


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
    """Return a schedule too large for exact pivots."""
    first = [range(i, i + 2) for i in range(0, n, 2)]
    return explicit(n, first, [range(0, n, 2), range(1, n, 2)])


def spread(n: int = 48 + 2) -> Schedule:
    """Return a schedule too large for exact pivots whose period does not reach the mean."""
    return explicit(n, [range(i, i + 5) for i in range(0, n, 5)], [[i, (i + 7) % n] for i in range(0, n - 7, 14)])


SCHEMA = schedule_schema()
UNDRAWN = {"iteration_gap", "partial", "tables", "average", "average_dense"}
"""Members that random schedules lack: protocols, which other oracles judge, and tables unless asked for."""
SMALL = (0, 0, 1, 1, 2, 3, 5, 9, 30)
NAMES = ("words", "tags", "names", "places")
TRIES = 100
LOADERS: dict[str, Callable[[Any, str], Any]] = {
    "sync": load_sync,
    "payload": partial(read_value, Payload),
    "transport": partial(read_value, Transport),
}
"""How each member of a strategy that `with_member` changes is read from a document."""


def random_value(draw: random.Random, node: Any, requested: Collection[str] = ()) -> Any:
    """Return a small random value that a part of the format's schema allows, with all members in `requested`."""
    if "$ref" in node:
        return random_value(draw, SCHEMA["$defs"][node["$ref"].rpartition("/")[2]], requested)
    if "anyOf" in node:
        left_out = UNDRAWN.difference(requested)
        possible = [one for one in node["anyOf"] if left_out.isdisjoint(one.get("required", ()))]
        return random_value(draw, draw.choice(possible), requested)
    if "const" in node or "enum" in node:
        return node["const"] if "const" in node else draw.choice(node["enum"])
    match node["type"]:
        case "object":
            needed, share = {*node.get("required", ()), *requested}, draw.uniform(0.3, 1)
            parts = node["properties"].items()
            drawn = [n for n, _ in parts if n in needed or (n not in UNDRAWN and draw.random() < share)]
            return {n: random_value(draw, part, requested) for n, part in parts if n in drawn}
        case "array":
            return [random_value(draw, node["items"], requested) for _ in range(draw.randrange(1, 4))]
        case "integer":
            return max(node["minimum"], 0) + draw.choice(SMALL)
        case "boolean":
            return draw.random() < 0.5
        case "null":
            return None
    return f"{draw.randrange(10)}/{draw.randrange(1, 11)}" if "pattern" in node else draw.choice(NAMES)


def with_member(draw: random.Random, schedule: Schedule, name: str, requested: Collection[str] = ()) -> Schedule:
    """Return the schedule with another value of this member of its strategy, the first valid one, if any."""
    read = schedule_of(dump_schedule(schedule))
    shape = next(one for one in SCHEMA["properties"]["strategy"]["anyOf"] if name in one["properties"])
    for _ in range(TRIES):
        member = random_value(draw, shape["properties"][name], requested)
        with suppress(InputError):
            made = replace(read, strategy=replace(read.strategy, **{name: LOADERS[name](member, name)}))
            if made.strategy != schedule.strategy:
                return made
    return schedule


def with_tables(draw: random.Random, schedule: Schedule) -> Schedule:
    """Return the schedule with some random tables, if its workers have common steps."""
    return with_member(draw, schedule, "payload", ("tables", "codec"))


def random_members(draw: random.Random, schedule: Schedule) -> Schedule:
    """Return the schedule with another `sync`, outer steps, fragments or codec."""
    for name in draw.sample(("sync", "payload", "transport", "transport"), draw.randrange(1, 4)):
        schedule = with_member(draw, schedule, name)
    return schedule


def random_allreduce(draw: random.Random) -> Schedule:
    """Return a random all-reduce: synchronous, late, in a pipeline or in turns, on any cluster."""
    cluster = draw.choice(
        [Cluster.regular(draw.randrange(1, 4), draw.randrange(2, 4)), Cluster.irregular([[0, 2], [1], [3, 4]])]
    )
    steps = draw.choice((1, 1, 3, 8, (draw.randrange(1, 4),) * cluster.num_workers))
    return random_members(draw, Schedule("a", cluster, AllReduce(steps_per_round=steps)))


def random_blocks(draw: random.Random, radices: tuple[int, ...], size: int) -> list[Block]:
    """Return one or two blocks with all local ranks of a node, over random digits: a phase of a rule."""
    locals_ = draw.sample(range(size), size)
    cut = draw.randrange(size + 1)
    return [
        Block(tuple(sorted(part)), tuple(d for d in range(len(radices)) if draw.random() < 0.5))
        for part in (locals_[:cut], locals_[cut:])
        if part
    ]


def random_schedule(draw: random.Random) -> Schedule:
    """Return a random all-reduce, explicit groups, rule or graph; most reach consensus."""
    kind, period = draw.randrange(4), draw.randrange(1, 5)
    if kind == 3:
        return random_allreduce(draw)
    if kind == 2:
        return random_members(draw, _random_graph(draw))
    return random_members(draw, _random_groups(draw, period) if kind == 0 else _random_rule(draw, period))


def _random_groups(draw: random.Random, period: int) -> Schedule:
    n, phases = draw.randrange(2, 8), []
    for _ in range(period):
        ranks = draw.sample(range(n), n)
        cuts = sorted(draw.sample(range(n + 1), min(draw.randrange(1, 4), n + 1)))
        groups = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
        phases.append([group for group in groups if len(group) > 1])
    steps_per_round = tuple(draw.randrange(1, 4) for _ in range(n))
    if draw.random() < 0.5:
        phases[draw.randrange(period)] = [ranks]
    return explicit(n, *phases, steps_per_round=steps_per_round, prologue=draw.randrange(2))


def _random_rule(draw: random.Random, period: int) -> Schedule:
    radices, size = draw.choice([((2,), 2), ((3,), 3), ((2, 2), 2), ((2, 3), 3), ((2,), 4), ((), 5)])
    phases = []
    for _ in range(period):
        blocks = random_blocks(draw, radices, size)
        if draw.random() < 0.2:
            blocks = [Block(tuple(range(size)), tuple(range(len(radices))))]
        phases.append(tuple(blocks))
    made = rule(radices, size, *phases)
    return replace(made, strategy=replace(made.strategy, steps_per_round=draw.randrange(1, 3)))


def _random_graph(draw: random.Random) -> Schedule:
    n, rounds = draw.randrange(2, 7), []
    for _ in range(draw.randrange(1, 4)):
        pairs = draw.sample([(i, j) for i in range(n) for j in range(n) if i != j], draw.randrange(n * (n - 1) + 1))
        if draw.random() < 0.5:
            pairs = list({*pairs, *((i, (i + 1) % n) for i in range(n))})
        rounds.append([(i, j, Fraction(1, draw.randrange(n, 2 * n))) for i, j in pairs])
    made = graph(n, *rounds)
    return replace(made, strategy=replace(made.strategy, steps_per_round=draw.randrange(1, 4)))
