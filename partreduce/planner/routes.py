"""The way of every table: by rows, gathered, or as all else, whatever takes the least time (see `table_prices`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from partreduce.console import seconds as in_seconds
from partreduce.console import size as in_bytes
from partreduce.planner.table_prices import APPLYING, HANDLING, IN_ORDER, Cost, Pricing, Table
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.payload import Payload, Placement, TablePlacement
from partreduce.topo.timing.tables import aggregates_in

MAX_COMBINATIONS = 3**7
"""Ways of all tables together, up to which each is tried; of more, tables change theirs one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The routes, with what the whole step's exchange costs by the model, and why they are these.

    `costs` holds for every table each way that it may go, all others going as chosen. `seconds` are of all that a step
    sends and visits, the strategy's own averages among them; `dense_bytes` are averaged by the strategy.
    """

    routes: Payload
    seconds: float
    dense_bytes: int
    costs: dict[str, dict[Placement, Cost]]
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `partreduce design --json` prints it."""
        return {
            "seconds": self.seconds,
            "dense_bytes": self.dense_bytes,
            "local_aggregation": self.routes.local_aggregation,
            "ways": {route.parameter: str(route.way) for route in self.routes.tables},
            "codecs": {route.parameter: str(route.codec) for route in self.routes.tables},
            "costs": {
                name: {str(way): {"seconds": cost.seconds, "nic_bytes": cost.nic_bytes} for way, cost in ways.items()}
                for name, ways in self.costs.items()
            },
            "reasons": list(self.reasons),
        }


def choose_routes(
    tables: Iterable[Table],
    schedule: Schedule,
    hardware: Hardware,
    *,
    dense_bytes: int,
    applying: float = APPLYING,
    handling: float = HANDLING,
    average: bool = True,
    codecs: Sequence[Codec] = (Codec.NONE,),
) -> Chosen:
    """The ways with which a step's communication takes the least time by the α–β model; of equal ones the simplest.

    Up to 7 tables every combination is tried: O(3^tables). Of more, each in turn takes the way that is best while the
    others stay, until none changes, from each of the three uniform beginnings: O(tables²) and more.

    Args:
        tables: that are looked up by rows.
        schedule: what averages everything else; of it the cluster's shape.
        hardware: links of that cluster.
        dense_bytes: of everything else.
        applying: seconds per byte that gradient and optimizer visit.
        handling: seconds per row that a worker hands on.
        average: whether a table's gradient is the workers' mean, or their sum.
        codecs: that rows may travel in where that pays, the finest first.

    Raises:
        InputError: no codec, two tables of one parameter, a size or a time below 0.
        ScheduleError: the strategy's workers have no common steps, or no fixed phases.
    """
    listed = tuple(tables)
    names = [table.parameter for table in listed]
    if len(set(names)) < len(names):
        raise InputError(f"tables: {sorted({name for name in names if names.count(name) > 1})} stand there twice")
    if dense_bytes < 0 or not all(0 <= seconds < float("inf") for seconds in (applying, handling)):
        raise InputError(
            f"tables: {dense_bytes} dense bytes, {applying} s per byte and {handling} s per row; all are numbers >= 0"
        )
    if not codecs:
        raise InputError("tables: no codec is allowed, not even none")
    if listed:
        check_unpriced(schedule)
    pricing = Pricing(
        tables=listed,
        schedule=schedule,
        hardware=hardware,
        dense_bytes=dense_bytes,
        applying=applying,
        handling=handling,
        codecs=tuple(map(Codec, codecs)),
    )
    flags = (True, False) if aggregates_in(schedule.cluster) else (True,)
    found = [(*_best(pricing, local_aggregation=flag), flag) for flag in flags]
    seconds, ways, local = min(found, key=lambda one: (one[0], one[2]))
    coded = pricing.codecs_of(ways, local_aggregation=local)
    tables_ = tuple(table.route(way, codec) for table, way, codec in zip(listed, ways, coded, strict=True))
    routes = Payload(tables=tables_, local_aggregation=local, average=average) if tables_ else Payload()
    replace(schedule, strategy=replace(schedule.strategy, payload=routes), certificate=None)  # refuses what cannot be
    costs = _alternatives(pricing, ways, local_aggregation=local)
    reasons = []
    for table, route in zip(listed, tables_, strict=True):
        saved = pricing.saved(table, route, local_aggregation=local, beside_gathered=Placement.GATHER in ways)
        reasons.append(_reason(table, route, costs[table.parameter], saved))
    if len(flags) > 1 and any(way is not Placement.DENSE for way in ways):
        other = pricing.seconds(ways, local_aggregation=not local)
        reasons.append(_local_reason(seconds, other, is_local=local))
    return Chosen(
        routes=routes,
        seconds=seconds,
        dense_bytes=pricing.by_strategy(ways),
        costs=costs,
        reasons=tuple(reasons),
    )


def check_unpriced(schedule: Schedule) -> None:
    """Raise for schedules for which no way can be chosen."""
    strategy = schedule.strategy
    if reason := strategy.tables_unsupported_reason():
        raise ScheduleError(f"tables: their rows are exchanged in every step, synchronously, and {reason}")
    if not schedule.is_mixing:
        raise ScheduleError(
            f"tables: what strategy {strategy.kind!r} itself takes in a step follows no formula, so no way of a table "
            "can be chosen for it; name each table's way in the schedule file (payload.tables), or take allreduce, "
            "static or neighbor"
        )


def _best(pricing: Pricing, *, local_aggregation: bool) -> tuple[float, tuple[Placement, ...]]:
    """The least seconds, and the ways that take them."""
    allowed = [table.allowed for table in pricing.tables]

    def priced(ways: tuple[Placement, ...]) -> float:
        return pricing.seconds(ways, local_aggregation=local_aggregation)

    count = 1
    for ways in allowed:
        count *= len(ways)
    if count <= MAX_COMBINATIONS:
        best = min(product(*allowed), key=priced)
        return priced(best), best
    ends = []
    for first in IN_ORDER:
        ways = tuple(first if first in own else own[0] for own in allowed)
        ends.append(_improved(ways, allowed, priced))
    return min(ends, key=lambda one: one[0])


def _improved(
    ways: tuple[Placement, ...],
    allowed: Sequence[tuple[Placement, ...]],
    priced: Callable[[tuple[Placement, ...]], float],
) -> tuple[float, tuple[Placement, ...]]:
    """Change one table's way at a time while that takes less."""
    now, changed = priced(ways), True
    while changed:
        changed = False
        for place, own in enumerate(allowed):
            for way in own:
                other = (*ways[:place], way, *ways[place + 1 :])
                if (then := priced(other)) < now * (1 - 1e-12):
                    now, ways, changed = then, other, True
    return now, ways


def _alternatives(
    pricing: Pricing, ways: Sequence[Placement], *, local_aggregation: bool
) -> dict[str, dict[Placement, Cost]]:
    """What each way of a table adds to a step, all others going as they do."""
    result: dict[str, dict[Placement, Cost]] = {}
    for place, table in enumerate(pricing.tables):

        def priced(way: Placement | None, place: int = place) -> Cost:
            return pricing.cost([*ways[:place], way, *ways[place + 1 :]], local_aggregation=local_aggregation)

        without = priced(None)
        found = {way: priced(way) for way in table.allowed}
        result[table.parameter] = {
            way: Cost(cost.seconds - without.seconds, cost.nic_bytes - without.nic_bytes) for way, cost in found.items()
        }
    return result


def _reason(table: Table, route: TablePlacement, costs: dict[Placement, Cost], saved: Cost) -> str:
    """One line: the table, what of it is touched, its way, what its codec saves, and what the others would take."""
    shares, way = table.touched, route.way
    seen = "what a step touches is unknown"
    if shares is not None:
        seen = f"a worker touches {shares.worker:.2%} of its rows in a step, "
        seen += f"a node {shares.node:.2%}, all {shares.everyone:.2%}"
    about = f"{table.parameter} ({table.rows:,} x {table.columns}, {in_bytes(table.num_bytes)}; {seen})"
    others = [f"{other} {_took(costs[other])}" for other in table.allowed if other is not way]
    why = f"; {', '.join(others)}" if others else ""
    barred = [str(other) for other in IN_ORDER if other not in table.allowed]
    if barred:
        rule = table.because or "its optimizer sees touched rows only"
        why += f" (not {' or '.join(barred)}: {rule})"
    less = f", {_took(saved)} less than as it is" if route.codec.rounds else ""
    return f"{about}: {route.in_words}, {_took(costs[way])} a step{less}{why}"


def _took(cost: Cost) -> str:
    return f"{in_seconds(cost.seconds)} and {in_bytes(cost.nic_bytes)} out of a node"


def _local_reason(seconds: float, other: float, *, is_local: bool) -> str:
    """One line about local aggregation, which holds for all tables."""
    done = "agree on a row before it crosses" if is_local else "do not agree on rows before they cross"
    return (
        f"workers of a node {done}: {in_seconds(seconds)} a step for all that is sent and visited, otherwise "
        f"{in_seconds(other)}"
    )
