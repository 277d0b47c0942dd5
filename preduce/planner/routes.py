"""The way of every table: by rows, gathered, or as all else, whatever takes the least time in a step.

A step's seconds are those of the exchanges of the tables that go their own way, of the strategy's own averages over
everything else, of what an optimizer does to rows that no other worker has to look at (a table of which every worker
holds a copy is swept by every worker, a sharded one by its owners, each its part), and of handing rows on: on fast
links it is this that makes a table of which a step touches much go as everything else does.

Rows travel as they are unless codecs are allowed; then in the finest one, unless a coarser one saves enough of what the
table takes beside the strategy, since it changes numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from preduce.console import seconds as in_seconds
from preduce.console import size as in_bytes
from preduce.planner.ways import WORTH
from preduce.topo.errors import InputError, ScheduleError
from preduce.topo.strategies.axes import Codec
from preduce.topo.strategies.routes import Gradient, Route, Routes, Way
from preduce.topo.timing.cost import communication
from preduce.topo.timing.tables import ELEMENT_BYTES, Exchange, Touched, aggregates_in, exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from preduce.topo.cluster import Cluster
    from preduce.topo.hardware import Hardware
    from preduce.topo.schedule import Schedule

APPLYING = 5e-10
"""Seconds that gradient and optimizer take per byte of the rows that they visit, where nobody measured it: about what
SGD with `sparse=False` took on one ordinary core, zeros included; momentum took 7e-10, Adagrad 1.5e-9, Adam 2.8e-9."""

HANDLING = 3e-7
"""Seconds that a worker takes to find, sort, copy and add up one row each time that it hands the row on, where nobody
measured it: about what it took for rows of 128 numbers on one ordinary core; for rows of 32 numbers half of that."""

MAX_COMBINATIONS = 3**7
"""Ways of all tables together, up to which each is tried; of more, tables change theirs one by one."""

IN_ORDER = (Way.DENSE, Way.GATHER, Way.SHARDED)
"""Of equal ones the first is taken: what is simplest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A parameter that is looked up by rows, with how many of them a step touches; None where that is unknown.

    `ways` are those that it may go; `because` says why not the others. A sparse gradient, of which the optimizer sees
    touched rows only, is never averaged densely, since that would change what the optimizer does to the others.
    """

    parameter: str
    rows: int
    columns: int
    touched: Touched | None
    gradient: Gradient = Gradient.DENSE
    element_bytes: int = ELEMENT_BYTES
    ways: tuple[Way, ...] = IN_ORDER
    because: str = ""

    def __post_init__(self) -> None:
        """Take words for what they name, and refuse a table that has no way.

        Raises:
            InputError: as said.
        """
        object.__setattr__(self, "gradient", Gradient(self.gradient))
        object.__setattr__(self, "ways", tuple(map(Way, self.ways)))
        if not self.allowed:
            raise InputError(f"table {self.parameter!r}: has a sparse gradient and may go by no way but dense")

    @property
    def allowed(self) -> tuple[Way, ...]:
        """The ways that its gradient allows besides, the simplest first."""
        sparse = self.gradient is Gradient.SPARSE
        return tuple(way for way in IN_ORDER if way in self.ways and not (sparse and way is Way.DENSE))

    @property
    def shares(self) -> Touched:
        """What a step touches; all where it is unknown."""
        return self.touched or Touched(1.0, 1.0, 1.0)

    @property
    def num_bytes(self) -> int:
        """Of all its rows."""
        return self.rows * self.columns * self.element_bytes

    def route(self, way: Way, codec: Codec = Codec.NONE) -> Route:
        """Its route if it goes this way, a sharded one over all workers."""
        return Route(
            parameter=self.parameter,
            rows=self.rows,
            columns=self.columns,
            way=way,
            gradient=self.gradient,
            codec=codec,
        )

    def visited(self, way: Way, num_workers: int) -> float:
        """Bytes that gradient and optimizer of one worker visit in a step."""
        seen = self.shares.everyone if self.gradient is Gradient.SPARSE else 1.0
        return seen * self.num_bytes / (num_workers if way is Way.SHARDED else 1)

    def handled(self, way: Way, cluster: Cluster, *, local_aggregation: bool) -> float:
        """How many rows a worker hands on in a step: asks for, answers, brings and takes, or gets from everybody."""
        own, most = self.shares.worker * self.rows, int(cluster.node_sizes().max())
        together = self.shares.node * self.rows
        aggregates = local_aggregation and aggregates_in(cluster)
        if way is Way.SHARDED:
            return 4 * (own + together / most) if aggregates else 4 * own
        if way is Way.GATHER:
            return 2 * own + cluster.num_nodes * together if aggregates else own + cluster.num_workers * own
        return 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step, and what leaves the busiest node's NICs in it."""

    seconds: float
    nic_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The routes, with what the whole step's exchange costs by the model, and why they are these.

    `costs` holds for every table each way that it may go, all others going as chosen. `seconds` are of all that a step
    sends and visits, the strategy's own averages among them; `dense_bytes` are averaged by the strategy.
    """

    routes: Routes
    seconds: float
    dense_bytes: int
    costs: dict[str, dict[Way, Cost]]
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `preduce design --json` prints it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """What a step costs by the ways of its tables: the same numbers for the choice and for whoever checks it."""

    tables: tuple[Table, ...]
    schedule: Schedule
    hardware: Hardware
    dense_bytes: int
    applying: float = APPLYING
    handling: float = HANDLING
    codecs: tuple[Codec, ...] = (Codec.NONE,)
    _own: dict[tuple[str, Way, bool, bool], tuple[Codec, Exchange]] = field(default_factory=dict)
    _averaging: dict[int, Cost] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        """The schedule's."""
        return self.schedule.cluster

    def by_strategy(self, ways: Sequence[Way]) -> int:
        """Bytes that the strategy averages: everything else, and the tables that go as everything else does."""
        dense = (table.num_bytes for table, way in zip(self.tables, ways, strict=True) if way is Way.DENSE)
        return self.dense_bytes + sum(dense)

    def averaging(self, num_bytes: int) -> Cost:
        """What the strategy's own averages of so many bytes take in a step, kept."""
        if num_bytes not in self._averaging:
            sent = communication(self.schedule, self.hardware, model_bytes=num_bytes) if num_bytes else None
            cost = Cost(0.0, 0.0) if sent is None else Cost(sent.per_step, sent.nic_bytes_per_step)
            self._averaging[num_bytes] = cost
        return self._averaging[num_bytes]

    def own(self, table: Table, way: Way, *, local_aggregation: bool, beside_gathered: bool) -> Exchange:
        """What one table takes beside the strategy, in its codec; what is visited of it counts as gradients."""
        return self._coded(table, way, local_aggregation, beside_gathered)[1]

    def codecs_of(self, ways: Sequence[Way], *, local_aggregation: bool) -> list[Codec]:
        """The codecs in which the tables' rows travel if they go these ways."""
        gathers = Way.GATHER in ways
        going = zip(self.tables, ways, strict=True)
        return [self._coded(table, way, local_aggregation, gathers)[0] for table, way in going]

    def _coded(self, table: Table, way: Way, local_aggregation: bool, beside_gathered: bool) -> tuple[Codec, Exchange]:
        """The codec that pays, and what the table takes in it beside the strategy; kept."""
        key = table.parameter, way, local_aggregation, beside_gathered
        if key not in self._own:
            kept: tuple[Codec, Exchange] | None = None
            for codec in self.codecs if way is not Way.DENSE else (Codec.NONE,):
                sent = self._sent(table, way, codec, local_aggregation, beside_gathered)
                if kept is None or sent.seconds < kept[1].seconds * (1 - WORTH):
                    kept = codec, sent
            assert kept is not None, "there is a codec, if only none"
            visits = self.applying * table.visited(way, self.cluster.num_workers)
            visits += self.handling * table.handled(way, self.cluster, local_aggregation=local_aggregation)
            self._own[key] = kept[0], Exchange(gradients=visits) + kept[1]
        return self._own[key]

    def _sent(self, table: Table, way: Way, codec: Codec, local_aggregation: bool, beside_gathered: bool) -> Exchange:
        return exchange(
            table.route(way, codec),
            table.shares,
            self.cluster,
            self.hardware,
            local_aggregation=local_aggregation,
            element_bytes=table.element_bytes,
            beside_gathered=beside_gathered,
        )

    def saved(self, table: Table, route: Route, *, local_aggregation: bool, beside_gathered: bool) -> Cost:
        """What a table's codec saves of a step."""
        exact, coded = (
            self._sent(table, route.way, codec, local_aggregation, beside_gathered)
            for codec in (Codec.NONE, route.codec)
        )
        return Cost(exact.seconds - coded.seconds, exact.nic_bytes - coded.nic_bytes)

    def cost(self, ways: Sequence[Way | None], *, local_aggregation: bool) -> Cost:
        """Of a step's exchanges, averages and visits, if the tables go these ways; None leaves a table out."""
        going = [(table, way) for table, way in zip(self.tables, ways, strict=True) if way is not None]
        dense = sum(table.num_bytes for table, way in going if way is Way.DENSE)
        averages, apart = self.averaging(self.dense_bytes + dense), Exchange()
        gathers = any(way is Way.GATHER for _, way in going)
        for table, way in going:
            apart += self.own(table, way, local_aggregation=local_aggregation, beside_gathered=gathers)
        return Cost(averages.seconds + apart.seconds, averages.nic_bytes + apart.nic_bytes)

    def seconds(self, ways: Sequence[Way], *, local_aggregation: bool) -> float:
        """The seconds of `cost`."""
        return self.cost(ways, local_aggregation=local_aggregation).seconds


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
        _refuse_unpriced(schedule)
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
    routes = Routes(tables=tables_, local_aggregation=local, average=average) if tables_ else Routes()
    replace(schedule, strategy=replace(schedule.strategy, what=routes), certificate=None)  # refuses what cannot be
    costs = _alternatives(pricing, ways, local_aggregation=local)
    reasons = []
    for table, route in zip(listed, tables_, strict=True):
        saved = pricing.saved(table, route, local_aggregation=local, beside_gathered=Way.GATHER in ways)
        reasons.append(_reason(table, route, costs[table.parameter], saved))
    if len(flags) > 1 and any(way is not Way.DENSE for way in ways):
        other = pricing.seconds(ways, local_aggregation=not local)
        reasons.append(_local_reason(seconds, other, is_local=local))
    return Chosen(
        routes=routes,
        seconds=seconds,
        dense_bytes=pricing.by_strategy(ways),
        costs=costs,
        reasons=tuple(reasons),
    )


def _refuse_unpriced(schedule: Schedule) -> None:
    """Refuse schedules beside which no way can be chosen.

    Raises:
        ScheduleError: as said.
    """
    strategy = schedule.strategy
    if reason := strategy.refuses_tables():
        raise ScheduleError(f"tables: their rows are exchanged in every step, in lockstep, and {reason}")
    if not schedule.is_mixing:
        raise ScheduleError(
            f"tables: what strategy {strategy.kind!r} itself takes in a step follows no formula, so no way of a table "
            "can be chosen beside it; name each table's way in the schedule file (what.tables), or take allreduce, "
            "static or neighbor"
        )


def _best(pricing: Pricing, *, local_aggregation: bool) -> tuple[float, tuple[Way, ...]]:
    """The least seconds, and the ways that take them."""
    allowed = [table.allowed for table in pricing.tables]

    def priced(ways: tuple[Way, ...]) -> float:
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
    ways: tuple[Way, ...], allowed: Sequence[tuple[Way, ...]], priced: Callable[[tuple[Way, ...]], float]
) -> tuple[float, tuple[Way, ...]]:
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


def _alternatives(pricing: Pricing, ways: Sequence[Way], *, local_aggregation: bool) -> dict[str, dict[Way, Cost]]:
    """What each way of a table adds to a step, all others going as they do."""
    result: dict[str, dict[Way, Cost]] = {}
    for place, table in enumerate(pricing.tables):

        def priced(way: Way | None, place: int = place) -> Cost:
            return pricing.cost([*ways[:place], way, *ways[place + 1 :]], local_aggregation=local_aggregation)

        without = priced(None)
        found = {way: priced(way) for way in table.allowed}
        result[table.parameter] = {
            way: Cost(cost.seconds - without.seconds, cost.nic_bytes - without.nic_bytes) for way, cost in found.items()
        }
    return result


def _reason(table: Table, route: Route, costs: dict[Way, Cost], saved: Cost) -> str:
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
