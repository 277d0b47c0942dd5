"""Embedding tables: which way each one goes, what that costs in a step, and a plan for them and everything else.

A step's seconds are those of the exchanges of the tables that go their own way, of the strategy's own averages over
everything else, of what an optimizer does to rows that no other worker has to look at (a table of which every worker
holds a copy is swept by every worker, a sharded one by its owners, each its part), and of handing rows on: on fast
links it is this that makes a table of which a step touches much go as everything else does. Rows travel as they are
unless codecs are allowed; then in the finest one, unless a coarser one saves enough, since it changes numbers.

torch is imported by the functions that look at a user's model, since nothing else of the planner needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, product
from math import prod
from typing import TYPE_CHECKING, Any

from partreduce.console import seconds as in_seconds
from partreduce.console import size as in_bytes
from partreduce.planner.job import PlanRequest
from partreduce.planner.plan import Plan, plan
from partreduce.planner.predict import predict
from partreduce.planner.steps_model import Optimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, PartreduceError, ScheduleError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.payload import Gradient, Payload, Placement, TablePlacement
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.tables import ELEMENT_BYTES, Exchange, RowAccess, aggregates_in, exchange
from partreduce.user_function import function_of, one_line
from partreduce.verify.base import Proof
from partreduce.verify.prove import prove

if TYPE_CHECKING:
    import torch

APPLYING = 5e-10
"""Seconds that gradient and optimizer take per byte of the rows that they visit, where nobody measured it: about what
SGD with `sparse=False` took on one ordinary core, zeros included; momentum took 7e-10, Adagrad 1.5e-9, Adam 2.8e-9."""

HANDLING = 3e-7
"""Seconds that a worker takes to find, sort, copy and add up one row each time that it hands the row on, where nobody
measured it: about what it took for rows of 128 numbers on one ordinary core; for rows of 32 numbers half of that."""

WORTH = 0.01
"""A coarser codec of rows has to save more than this part of what the table takes."""

IN_ORDER = (Placement.DENSE, Placement.GATHER, Placement.SHARDED)
"""Of equal ones the first is taken: what is simplest."""


MAX_COMBINATIONS = 3**7
"""Ways of all tables together, up to which each is tried; of more, tables change theirs one by one."""
STEPS = 20
"""Steps of all workers that are measured at most."""
MAX_PLANS = 2
"""Times that everything else is planned for: the ways of tables decide how much that is, and what is recommended for it
decides the ways."""
UNKNOWN = (
    "nobody said how many of its rows a step touches: let build() return (model, batches), or say "
    "--set touched=TABLE:0.8%"
)
Ways = Sequence[Placement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A parameter that is looked up by rows, with how many of them a step touches; None where that is unknown.

    `ways` are those that it may go; `because` says why not the others. A sparse gradient, of which the optimizer sees
    touched rows only, is never averaged densely, since that would change what the optimizer does to the others.
    """

    parameter: str
    rows: int
    columns: int
    touched: RowAccess | None
    gradient: Gradient = Gradient.DENSE
    element_bytes: int = ELEMENT_BYTES
    ways: tuple[Placement, ...] = IN_ORDER
    because: str = ""

    def __post_init__(self) -> None:
        """Take words for what they name, and refuse a table that has no way."""
        object.__setattr__(self, "gradient", Gradient(self.gradient))
        object.__setattr__(self, "ways", tuple(map(Placement, self.ways)))
        if not self.allowed:
            raise InputError(f"table {self.parameter!r}: has a sparse gradient and may go by no way but dense")

    @property
    def allowed(self) -> tuple[Placement, ...]:
        """The ways that its gradient allows besides, the simplest first."""
        sparse = self.gradient is Gradient.SPARSE
        return tuple(way for way in IN_ORDER if way in self.ways and not (sparse and way is Placement.DENSE))

    @property
    def shares(self) -> RowAccess:
        """What a step touches; all where it is unknown."""
        return self.touched or RowAccess(1.0, 1.0, 1.0)

    @property
    def num_bytes(self) -> int:
        return self.rows * self.columns * self.element_bytes

    def route(self, way: Placement, codec: Codec = Codec.NONE) -> TablePlacement:
        """Its route if it goes this way, a sharded one over all workers."""
        return TablePlacement(
            parameter=self.parameter,
            rows=self.rows,
            columns=self.columns,
            way=way,
            gradient=self.gradient,
            codec=codec,
        )

    def visited(self, way: Placement, num_workers: int) -> float:
        """Bytes that gradient and optimizer of one worker visit in a step."""
        seen = self.shares.everyone if self.gradient is Gradient.SPARSE else 1.0
        return seen * self.num_bytes / (num_workers if way is Placement.SHARDED else 1)

    def handled(self, way: Placement, cluster: Cluster, *, local_aggregation: bool) -> float:
        """How many rows a worker hands on in a step: asks for, answers, brings and takes, or gets from everybody."""
        own, most = self.shares.worker * self.rows, int(cluster.node_sizes().max())
        together = self.shares.node * self.rows
        aggregates = local_aggregation and aggregates_in(cluster)
        if way is Placement.SHARDED:
            return 4 * (own + together / most) if aggregates else 4 * own
        if way is Placement.GATHER:
            return 2 * own + cluster.num_nodes * together if aggregates else own + cluster.num_workers * own
        return 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step, and what leaves the busiest node's NICs in it."""

    seconds: float
    nic_bytes: float


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
    local_aggregation: bool = True
    _own: dict[tuple[str, Placement, bool], tuple[Codec, Exchange]] = field(default_factory=dict)
    _averaging: dict[int, Cost] = field(default_factory=dict)

    def by_strategy(self, ways: Ways) -> int:
        """Bytes that the strategy averages: everything else, and the tables that go as everything else does."""
        dense = (table.num_bytes for table, way in zip(self.tables, ways, strict=True) if way is Placement.DENSE)
        return self.dense_bytes + sum(dense)

    def averaging(self, num_bytes: int) -> Cost:
        """What the strategy's own averages of so many bytes take in a step, kept."""
        if num_bytes not in self._averaging:
            sent = communication(self.schedule, self.hardware, model_bytes=num_bytes) if num_bytes else None
            cost = Cost(0.0, 0.0) if sent is None else Cost(sent.per_step, sent.nic_bytes_per_step)
            self._averaging[num_bytes] = cost
        return self._averaging[num_bytes]

    def own(self, table: Table, way: Placement, *, gathers: bool) -> tuple[Codec, Exchange]:
        """The codec that pays, and what the table takes in it beside the strategy, rows visited as gradients; kept.

        With `gathers` other tables are gathered in the same step.
        """
        key, cluster = (table.parameter, way, gathers), self.schedule.cluster
        if key not in self._own:
            kept: tuple[Codec, Exchange] | None = None
            for codec in self.codecs if way is not Placement.DENSE else (Codec.NONE,):
                sent = self._sent(table, way, codec, gathers)
                if kept is None or sent.seconds < kept[1].seconds * (1 - WORTH):
                    kept = codec, sent
            assert kept is not None, "there is a codec, if only none"
            visits = self.applying * table.visited(way, cluster.num_workers)
            visits += self.handling * table.handled(way, cluster, local_aggregation=self.local_aggregation)
            self._own[key] = kept[0], Exchange(gradients=visits) + kept[1]
        return self._own[key]

    def _sent(self, table: Table, way: Placement, codec: Codec, gathers: bool) -> Exchange:
        return exchange(
            table.route(way, codec), table.shares, self.schedule.cluster, self.hardware,
            local_aggregation=self.local_aggregation, element_bytes=table.element_bytes, beside_gathered=gathers,
        )  # fmt: skip

    def saved(self, table: Table, route: TablePlacement, *, gathers: bool) -> Cost:
        """What a table's codec saves of a step."""
        exact, coded = (self._sent(table, route.way, codec, gathers) for codec in (Codec.NONE, route.codec))
        return Cost(exact.seconds - coded.seconds, exact.nic_bytes - coded.nic_bytes)

    def cost(self, ways: Sequence[Placement | None]) -> Cost:
        """Of a step's exchanges, averages and visits, if the tables go these ways; None leaves a table out."""
        going = [(table, way) for table, way in zip(self.tables, ways, strict=True) if way is not None]
        dense = sum(table.num_bytes for table, way in going if way is Placement.DENSE)
        averages, apart = self.averaging(self.dense_bytes + dense), Exchange()
        for table, way in going:
            apart += self.own(table, way, gathers=Placement.GATHER in ways)[1]
        return Cost(averages.seconds + apart.seconds, averages.nic_bytes + apart.nic_bytes)

    def best(self) -> tuple[float, tuple[Placement, ...]]:
        """The least seconds, and the ways that take them."""
        allowed = [table.allowed for table in self.tables]
        if prod(map(len, allowed)) <= MAX_COMBINATIONS:
            return min(((self.cost(ways).seconds, ways) for ways in product(*allowed)), key=lambda one: one[0])
        ends = []
        for first in IN_ORDER:
            ways = tuple(first if first in own else own[0] for own in allowed)
            now, changed = self.cost(ways).seconds, True
            while changed:  # one table's way at a time while that takes less
                changed = False
                for place, own in enumerate(allowed):
                    for way in own:
                        other = (*ways[:place], way, *ways[place + 1 :])
                        if (then := self.cost(other).seconds) < now * (1 - 1e-12):
                            now, ways, changed = then, other, True
            ends.append((now, ways))
        return min(ends, key=lambda one: one[0])

    def alternatives(self, ways: Ways) -> dict[str, dict[Placement, Cost]]:
        """What each way of a table adds to a step, all others going as they do."""
        result: dict[str, dict[Placement, Cost]] = {}
        for place, table in enumerate(self.tables):
            others: list[Placement | None] = list(ways)
            others[place] = None
            without = self.cost(others)
            for way in table.allowed:
                others[place] = way
                cost = self.cost(others)
                added = Cost(cost.seconds - without.seconds, cost.nic_bytes - without.nic_bytes)
                result.setdefault(table.parameter, {})[way] = added
        return result


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
    others stay, until none changes, from each of the three uniform beginnings: O(tables²) and more. `applying` and
    `handling` are seconds per byte and per row; `average` says whether a table's gradient is the workers' mean or their
    sum; `codecs` are those that rows may travel in where that pays, the finest first.

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
    flags = (True, False) if aggregates_in(schedule.cluster) else (True,)
    pricings = [
        Pricing(
            tables=listed, schedule=schedule, hardware=hardware, dense_bytes=dense_bytes, applying=applying,
            handling=handling, codecs=tuple(map(Codec, codecs)), local_aggregation=flag,
        )
        for flag in flags
    ]  # fmt: skip
    found = [(*pricing.best(), pricing) for pricing in pricings]
    seconds, ways, pricing = min(found, key=lambda one: (one[0], one[2].local_aggregation))
    local, gathers = pricing.local_aggregation, Placement.GATHER in ways
    tables_ = tuple(
        table.route(way, pricing.own(table, way, gathers=gathers)[0]) for table, way in zip(listed, ways, strict=True)
    )
    routes = Payload(tables=tables_, local_aggregation=local, average=average) if tables_ else Payload()
    replace(schedule, strategy=replace(schedule.strategy, payload=routes), certificate=None)  # refuses what cannot be
    costs = pricing.alternatives(ways)
    reasons = [
        _reason(table, route, costs[table.parameter], pricing.saved(table, route, gathers=gathers))
        for table, route in zip(listed, tables_, strict=True)
    ]
    others = [one for one in pricings if one is not pricing and any(way is not Placement.DENSE for way in ways)]
    reasons += [_local_reason(seconds, other.cost(ways).seconds, is_local=local) for other in others]
    return Chosen(
        routes=routes, seconds=seconds, dense_bytes=pricing.by_strategy(ways), costs=costs, reasons=tuple(reasons)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The tables of a model, the bytes of everything else that is trained, and from how many steps α was measured.

    `optimizer` is the one that comes with the model, if one does and it is of a kind that was measured.
    """

    tables: tuple[Table, ...]
    dense_bytes: int
    num_steps: int = 0
    optimizer: Optimizer | None = None


def read_model(text: str, cluster: Cluster, *, touched: Mapping[str, RowAccess] | None = None) -> ModelFacts:
    """Call the function of `FILE.py:NAME`, and look at the model that it returns, or (model, batches).

    An optimizer may stand behind the model. Of each batch the model's forward() takes the leading parts; batches are
    dealt to the workers of the `cluster` in turn. What is known of tables already (`touched`, by the names of their
    parameters) is not measured.

    Raises:
        FileError: there is no such file.
        InputError: the file or its function fails, or what it returns is no model.
    """
    import torch

    from partreduce.runtime.sharding.touched import OtherUses

    built = _call(text)
    model, *rest = built if isinstance(built, tuple) and 1 < len(built) <= 3 else (built,)
    optimizer = rest.pop(0) if rest and isinstance(rest[0], torch.optim.Optimizer) else None
    batches = rest.pop(0) if rest else None
    if not isinstance(model, torch.nn.Module) or rest:
        found = type(built if rest else model).__name__
        raise InputError(f"--model {text}: returned what is no model ({found}); it returns one, or (model, batches)")
    known, num_steps, uses = dict(touched or {}), 0, OtherUses(model)
    _check_unknown(known, model)
    if batches is not None:
        try:
            with uses:
                measured, num_steps = measure_touched(model, batches, cluster)
        except PartreduceError as error:
            raise InputError(f"--model {text}: {error}") from None
        known = measured | known
    tables, dense_bytes = tables_of(model, known, optimizer, other_uses=uses.found)
    kind = None if optimizer is None else kind_of(optimizer)
    return ModelFacts(tables=tables, dense_bytes=dense_bytes, num_steps=num_steps, optimizer=kind)


def kind_of(optimizer: torch.optim.Optimizer) -> Optimizer | None:
    """Which of the optimizers that were measured it is like; None if it is like none."""
    if "Adam" in type(optimizer).__name__:
        return Optimizer.ADAM
    if type(optimizer).__name__ != "SGD":
        return None
    return Optimizer.MOMENTUM if any(group["momentum"] for group in optimizer.param_groups) else Optimizer.SGD


def tables_of(
    model: torch.nn.Module,
    touched: Mapping[str, RowAccess],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    other_uses: Mapping[str, str] | None = None,
) -> tuple[tuple[Table, ...], int]:
    """The tables that embeddings look up and that are trained, and the bytes of all other parameters that are.

    `touched` is what is known of them, `optimizer` what trains them, if it is known (some look at whole tensors), and
    `other_uses` names by table the function that takes its weight where it is not looked up (`OtherUses`).

    Raises:
        InputError: a table with a sparse gradient that may go no way but dense.
    """
    from partreduce.runtime.sharding.placement import embeddings_of

    found = {name: parts for name, parts in embeddings_of(model).items() if parts[0].requires_grad}
    tables = []
    for name, (parameter, modules) in found.items():
        gradient = Gradient.SPARSE if any(module.sparse for module in modules) else Gradient.DENSE
        shares = touched.get(name)
        ways, because = possible_ways(model, name, optimizer) if shares is not None else ((Placement.DENSE,), UNKNOWN)
        if (use := (other_uses or {}).get(name)) is not None:
            ways, because = (Placement.DENSE,), f"forward() hands its weight to {use}, too, which needs all rows"
        if gradient is Gradient.SPARSE and ways == (Placement.DENSE,):
            raise InputError(f"table {name!r}: has a sparse gradient, which way dense does not know; {because}")
        tables.append(
            Table(
                parameter=name,
                rows=parameter.shape[0],
                columns=parameter.shape[1],
                touched=shares,
                gradient=gradient,
                element_bytes=parameter.element_size(),
                ways=ways,
                because=because,
            )
        )
    apart = {parameter for parameter, _ in found.values()}
    dense = (p for p in model.parameters() if p.requires_grad and p not in apart)
    return tuple(tables), sum(p.numel() * p.element_size() for p in dense)


def possible_ways(
    model: torch.nn.Module, name: str, optimizer: torch.optim.Optimizer | None = None
) -> tuple[tuple[Placement, ...], str]:
    """The ways that the run-time lets a table go, and what it says against the first of the others.

    A table with `max_norm` goes densely only if it cannot be sharded: each worker would shorten the rows that it looks
    up, and the copies would part.
    """
    from partreduce.runtime.sharding.placement import check_route, embeddings_of, looks_at_whole_tensors

    parameter, modules = embeddings_of(model)[name]
    gradient = Gradient.SPARSE if modules[0].sparse else Gradient.DENSE
    ways, against = [Placement.DENSE], ""
    for way in IN_ORDER[1:]:
        rows, columns = parameter.shape
        route = TablePlacement(parameter=name, rows=rows, columns=columns, way=way, gradient=gradient)
        try:
            check_route(model, route, parameter, modules)
        except InputError as error:
            against = against or str(error).removeprefix(f"parameter {name!r}: ")
        else:
            ways.append(way)
    if Placement.SHARDED in ways and optimizer is not None and (kind := looks_at_whole_tensors(optimizer, parameter)):
        ways.remove(Placement.SHARDED)
        against = f"{kind} looks at whole tensors, of which a worker would have some rows"
    if Placement.SHARDED in ways and any(module.max_norm is not None for module in modules):
        ways.remove(Placement.DENSE)
        against = "max_norm shortens rows where they are looked up, so that copies would part"
    return tuple(ways), against


def measure_touched(
    model: torch.nn.Module, batches: Iterable[Any], cluster: Cluster, *, num_steps: int = STEPS
) -> tuple[dict[str, RowAccess], int]:
    """What steps touch of each table if batches are dealt to the workers in turn; from how many steps.

    Without gradients, in eval mode, on whatever device the model is. O(batches · forward).

    Raises:
        InputError: too few batches for one step, batches that cannot be iterated over, or one that forward() does not
            take.
    """
    from partreduce.runtime.sharding.touched import looking, shares_of, sizes_of

    num_workers = cluster.num_workers
    with looking(model, _forward) as look:
        rows = [look(batch) for batch in islice(_iterated(batches), num_steps * num_workers)]
    if len(rows) < num_workers:
        raise InputError(
            f"gave {len(rows)} batches, and a step of {num_workers} workers takes one for each; give more of them, or "
            "a smaller cluster"
        )
    steps = [rows[first : first + num_workers] for first in range(0, len(rows) - num_workers + 1, num_workers)]
    return shares_of(steps, sizes_of(model), cluster), len(steps)


def _iterated(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches; what the user's own loader raises is one line."""
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        raise InputError(f"gave batches that are no iterable ({type(batches).__name__}); return (model, loader)")
    iterator = iter(batches)
    for number in count():
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise InputError(f"batch {number} raised {one_line(error)}") from error
        yield batch


def _forward(model: torch.nn.Module, batch: object) -> None:
    """Call the model with the leading parts of a batch that its forward() has arguments for."""
    from partreduce.runtime.sharding.touched import inputs_of

    parts, keywords = inputs_of(model, batch)
    try:
        model(*parts, **keywords)
    except PartreduceError:
        raise
    except Exception as error:
        raise InputError(f"forward() of a batch raised {one_line(error)}") from error


def _call(text: str) -> Any:  # noqa: ANN401 - what a user's function returns
    """What the function of `FILE.py:NAME` returns."""
    build = function_of(text, "--model")
    try:
        return build()
    except PartreduceError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"--model {text}: raised {one_line(error)}") from error


def _check_unknown(touched: Mapping[str, RowAccess], model: torch.nn.Module) -> None:
    from partreduce.runtime.sharding.touched import sizes_of

    known = sizes_of(model)
    for name in touched:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"--set touched: names {name!r}, which no embedding of the model has; known: {listed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """The plan for what the strategy averages, the ways of the tables, and the schedule of both with its proof.

    `job` is that of the plan, and `num_steps` from how many steps it was measured what is touched.
    `step_seconds` and `nic_bytes` are of a whole step, the tables' exchange among them.
    """

    planned: Plan
    chosen: Chosen
    schedule: Schedule
    proof: Proof
    job: PlanRequest
    num_steps: int
    step_seconds: float
    nic_bytes: float

    @property
    def cautions(self) -> list[str]:
        """What the plan does not know of tables."""
        strategy = self.schedule.strategy
        if not strategy.payload.apart:
            return []
        said, averaged = [], self.job.hardware.model_bytes or 0
        if max(1, self.chosen.dense_bytes) != averaged:
            said.append(
                f"everything else was planned for {in_bytes(averaged)}; with the tables that go densely beside this "
                f"recommendation it is {in_bytes(self.chosen.dense_bytes)}"
            )
        if not strategy.steps_once:
            said.append(
                f"rows are exchanged in each of the {strategy.steps_per_round} steps of a round, and all workers "
                "meet for that: "
                "averaging less often saves bytes, but no waiting"
            )
        if not self.num_steps:
            said.append("what a step touches was said, not measured; batches from build() would show it")
        return said

    def to_json(self) -> dict[str, Any]:
        """The plan as `partreduce design --json` prints it, and the tables."""
        tables = {
            **self.chosen.to_json(),
            "measured_steps": self.num_steps,
            "step_seconds": self.step_seconds,
            "nic_bytes": self.nic_bytes,
            "verdict": self.proof.verdict,
            "cautions": self.cautions,
        }
        return self.planned.to_json() | {"tables": tables}


def plan_hybrid(job: PlanRequest, model: ModelFacts, *, progress: Callable[[str], None] | None = None) -> Hybrid:
    """Plan for the bytes that the strategy averages, and choose the ways of the tables beside the recommendation.

    All competitors take part whose workers have common steps. Rows may travel in the codecs that sums may.
    Where the recommendation changes which tables go densely, it is planned once more for these bytes.

    Raises:
        InputError: the job cannot be, such as a gap or a quorum beside tables.
        InfeasibleError: as `plan` says.
        UndecidedError: as `plan` says.
    """
    tables, hardware = model.tables, job.hardware
    first = Schedule("all-reduce", job.cluster, AllReduce())
    chosen = choose_routes(tables, first, hardware, dense_bytes=model.dense_bytes, codecs=job.codecs)
    for _ in range(MAX_PLANS):
        averaged = max(1, chosen.dense_bytes)
        cluster = replace(job.cluster, hardware=replace(hardware, model_bytes=averaged))
        has_tables = bool(chosen.routes.apart)
        gap = False if has_tables and job.gap is None else job.gap
        quorum = False if tables and job.quorum is None else job.quorum
        beside = replace(job, cluster=cluster, gap=gap, quorum=quorum, tables=has_tables)
        planned = plan(beside, progress=progress)
        recommendation = planned.recommendation.schedule
        chosen = choose_routes(tables, recommendation, hardware, dense_bytes=model.dense_bytes, codecs=job.codecs)
        if max(1, chosen.dense_bytes) == averaged:
            break
    strategy = replace(planned.recommendation.schedule.strategy, payload=chosen.routes)
    schedule = replace(planned.recommendation.schedule, strategy=strategy, certificate=None)
    apart = {route.parameter for route in chosen.routes.apart}
    whole = predict(
        schedule,
        replace(hardware, model_bytes=max(1, chosen.dense_bytes)),
        compute=job.compute_times(),
        seed=job.seed,
        touched={table.parameter: table.shares for table in tables if table.parameter in apart},
    )
    return Hybrid(
        planned=planned,
        chosen=chosen,
        schedule=schedule,
        proof=prove(schedule) if tables else planned.proof,
        job=beside,
        num_steps=model.num_steps,
        step_seconds=whole.step_seconds,
        nic_bytes=whole.nic_bytes,
    )
