"""Choose a placement of each embedding table by its cost per step, and plan for the other parameters with it.

The seconds of a step are those of exchanging separately placed tables, of averaging all other parameters, of the
optimizer's work on rows (all rows of a replicated table on every worker, its own part of a sharded one), and of finding
and adding up rows, which on fast links makes dense averaging best for a table of which a step touches a large part.
Rows have a codec only if codecs are allowed: the finest one, unless a coarser one saves enough.

Only the functions that inspect a user's model import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

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

    from partreduce.runtime.sharding.table import Embeddings

APPLYING = {None: 5e-10, Optimizer.SGD: 5e-10, Optimizer.MOMENTUM: 7e-10, Optimizer.ADAM: 2.8e-9}
"""Seconds to compute the gradient and take the optimizer step per byte of the visited rows, by kind of optimizer (None:
another one), on one ordinary core with `sparse=False`, rows with a zero gradient included."""

HANDLING = 3e-7
"""Default seconds for a worker to find, sort, copy and add up one row each time that it passes the row on: about that
of rows of 128 numbers on one ordinary core; rows of 32 numbers took half of it."""

WORTH = 0.01
"""A coarser codec of rows must save more than this fraction of the table's seconds."""
IN_ORDER = (Placement.DENSE, Placement.GATHER, Placement.SHARDED)
"""Placements, the simplest first; among equally fast ones the first is chosen."""
MAX_COMBINATIONS = 3**7
"""Most combinations of placements that are tried exhaustively; with more, tables change one at a time."""
STEPS = 20
"""Most steps for which touched rows are counted."""
MAX_PLANS = 2
"""Most plans for the averaged parameters: the placements determine their size, and the plan determines placements."""
UNKNOWN = (
    "it is not known how many of its rows a step touches: let build() return (model, batches), or say "
    "--set touched=TABLE:0.8%"
)
Ways = Sequence[Placement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """An embedding table; `touched` are the fractions of its rows that a step touches (None: unknown).

    `ways` are its possible placements; `because` explains why the others are not. A table with a sparse gradient is
    never dense: with a dense gradient its optimizer would also change rows that no batch touched.
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
        object.__setattr__(self, "gradient", Gradient(self.gradient))
        object.__setattr__(self, "ways", tuple(map(Placement, self.ways)))
        if not self.allowed:
            raise InputError(f"table {self.parameter!r}: has a sparse gradient and may go by no way but dense")

    @property
    def allowed(self) -> tuple[Placement, ...]:
        """Return the possible placements, the simplest first; a table with a sparse gradient is never dense."""
        sparse = self.gradient is Gradient.SPARSE
        return tuple(way for way in IN_ORDER if way in self.ways and not (sparse and way is Placement.DENSE))

    @property
    def shares(self) -> RowAccess:
        return self.touched or RowAccess(1.0, 1.0, 1.0)

    @property
    def num_bytes(self) -> int:
        return self.rows * self.columns * self.element_bytes

    def route(self, way: Placement, codec: Codec = Codec.NONE) -> TablePlacement:
        """Return the placement `way` as an entry of a schedule file; a sharded table is spread over all workers."""
        return TablePlacement(
            parameter=self.parameter, rows=self.rows, columns=self.columns, way=way, gradient=self.gradient, codec=codec
        )

    def visited(self, way: Placement, num_workers: int) -> float:
        """Return the bytes of the table that one worker's gradient and optimizer visit in a step."""
        seen = self.shares.everyone if self.gradient is Gradient.SPARSE else 1.0
        return seen * self.num_bytes / (num_workers if way is Placement.SHARDED else 1)

    def handled(self, way: Placement, cluster: Cluster, *, local_aggregation: bool) -> float:
        """Return the number of rows that a worker requests, answers, sends, receives or gathers in a step.

        `local_aggregation`: the workers of a node first add up their rows.
        """
        own, most = self.shares.worker * self.rows, int(cluster.node_sizes().max())
        together = self.shares.node * self.rows
        aggregates = local_aggregation and aggregates_in(cluster)
        if way is Placement.SHARDED:
            return 4 * (own + together / most) if aggregates else 4 * own
        if way is Placement.GATHER:
            return 2 * own + cluster.num_nodes * together if aggregates else own + cluster.num_workers * own
        return 0.0


class Cost(NamedTuple):
    """A communication cost per step: seconds, and bytes out of the busiest node's NICs."""

    seconds: float
    nic_bytes: float

    def __str__(self) -> str:
        return f"{in_seconds(self.seconds)} and {in_bytes(self.nic_bytes)} out of a node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The predicted cost per step of placements of all tables (dense, gathered or sharded).

    Arguments as in `choose_routes`; `local_aggregation` as in `Table.handled`.
    """

    tables: tuple[Table, ...]
    schedule: Schedule
    hardware: Hardware
    dense_bytes: int
    applying: float = APPLYING[None]
    codecs: tuple[Codec, ...] = (Codec.NONE,)
    local_aggregation: bool = True
    _own: dict[tuple[str, Placement, bool], tuple[Codec, Exchange]] = field(default_factory=dict)
    _averaging: dict[int, Cost] = field(default_factory=dict)

    def averaged_bytes(self, ways: Sequence[Placement | None]) -> int:
        """Return the bytes that the schedule averages: all other parameters, and the tables placed densely."""
        placed = zip(self.tables, ways, strict=True)
        return self.dense_bytes + sum(table.num_bytes for table, way in placed if way is Placement.DENSE)

    def averaging(self, num_bytes: int) -> Cost:
        """Return the cost per step of averaging this many bytes by the schedule; cached."""
        if num_bytes not in self._averaging:
            sent = communication(self.schedule, self.hardware, model_bytes=num_bytes) if num_bytes else None
            cost = Cost(0.0, 0.0) if sent is None else Cost(sent.per_step, sent.nic_bytes_per_step)
            self._averaging[num_bytes] = cost
        return self._averaging[num_bytes]

    def own(self, table: Table, way: Placement, *, gathers: bool) -> tuple[Codec, Exchange]:
        """Return the codec for a table's rows in this placement, and its cost per step, row visits included; cached.

        `gathers` is whether some table is gathered, so that all workers communicate with all others.
        """
        key, cluster = (table.parameter, way, gathers), self.schedule.cluster
        if key not in self._own:
            finest, *coarser = self.codecs if way is not Placement.DENSE else (Codec.NONE,)
            kept, exchanged = finest, self._sent(table, way, finest, gathers)
            for codec in coarser:
                sent = self._sent(table, way, codec, gathers)
                if sent.seconds < exchanged.seconds * (1 - WORTH):
                    kept, exchanged = codec, sent
            visits = self.applying * table.visited(way, cluster.num_workers)
            visits += HANDLING * table.handled(way, cluster, local_aggregation=self.local_aggregation)
            self._own[key] = kept, Exchange(gradients=visits) + exchanged
        return self._own[key]

    def _sent(self, table: Table, way: Placement, codec: Codec, gathers: bool) -> Exchange:
        return exchange(
            table.route(way, codec), table.shares, self.schedule.cluster, self.hardware,
            local_aggregation=self.local_aggregation, element_bytes=table.element_bytes, beside_gathered=gathers,
        )  # fmt: skip

    def saved(self, table: Table, route: TablePlacement, *, gathers: bool) -> Cost:
        exact, coded = (self._sent(table, route.way, codec, gathers) for codec in (Codec.NONE, route.codec))
        return Cost(exact.seconds - coded.seconds, exact.nic_bytes - coded.nic_bytes)

    def cost(self, ways: Sequence[Placement | None]) -> Cost:
        """Return the cost of a step with these placements, one for each table; None omits the table."""
        averages, apart = self.averaging(self.averaged_bytes(ways)), Exchange()
        for table, way in zip(self.tables, ways, strict=True):
            if way is not None:
                apart += self.own(table, way, gathers=Placement.GATHER in ways)[1]
        return Cost(averages.seconds + apart.seconds, averages.nic_bytes + apart.nic_bytes)

    def best(self) -> tuple[float, tuple[Placement, ...]]:
        """Return (seconds of a step, placements) for the fastest placements that were found."""
        allowed = [table.allowed for table in self.tables]
        if prod(map(len, allowed)) <= MAX_COMBINATIONS:
            return min(((self.cost(ways).seconds, ways) for ways in product(*allowed)), key=lambda one: one[0])
        ends = []
        for first in IN_ORDER:
            ways = tuple(first if first in own else own[0] for own in allowed)
            now, changed = self.cost(ways).seconds, True
            while changed:  # change one table at a time while the time decreases
                changed = False
                for place, own in enumerate(allowed):
                    for way in own:
                        other = (*ways[:place], way, *ways[place + 1 :])
                        if (then := self.cost(other).seconds) < now * (1 - 1e-12):
                            now, ways, changed = then, other, True
            ends.append((now, ways))
        return min(ends, key=lambda one: one[0])

    def alternatives(self, ways: Ways) -> dict[str, dict[Placement, Cost]]:
        """Return the cost that each placement of a table adds to a step, with all others fixed."""
        result: dict[str, dict[Placement, Cost]] = {}
        for place, table in enumerate(self.tables):
            seconds, nic_bytes = self.cost([*ways[:place], None, *ways[place + 1 :]])
            for way in table.allowed:
                cost = self.cost([*ways[:place], way, *ways[place + 1 :]])
                added = Cost(cost.seconds - seconds, cost.nic_bytes - nic_bytes)
                result.setdefault(table.parameter, {})[way] = added
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """The chosen placements and codecs (`routes`), with the `seconds` per step of all communication and row visits.

    `costs` holds what each possible placement of a table adds to a step, with the other tables as chosen. The schedule
    averages `dense_bytes`, dense tables included. `reasons` has one line for each table.
    """

    routes: Payload
    seconds: float
    dense_bytes: int
    costs: dict[str, dict[Placement, Cost]]
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "dense_bytes": self.dense_bytes,
            "local_aggregation": self.routes.local_aggregation,
            "ways": {route.parameter: str(route.way) for route in self.routes.tables},
            "codecs": {route.parameter: str(route.codec) for route in self.routes.tables},
            "costs": {
                name: {str(way): cost._asdict() for way, cost in ways.items()} for name, ways in self.costs.items()
            },
            "reasons": list(self.reasons),
        }


def choose_routes(
    tables: Iterable[Table],
    schedule: Schedule,
    hardware: Hardware,
    *,
    dense_bytes: int,
    applying: float = APPLYING[None],
    codecs: Sequence[Codec] = (Codec.NONE,),
) -> TableChoice:
    """Choose the placement of each table with the least seconds per step by the α–β model; ties take the simplest.

    Up to 7 tables every combination is tried. With more, each table in turn takes its best placement with the others
    fixed, until none changes, from each of three starts in which all tables have one placement: O(tables²) and more.

    Args:
        tables: the embedding tables, with the fractions of rows that a step touches.
        schedule: the schedule that averages all other parameters.
        hardware: the links of the cluster.
        dense_bytes: the bytes of these other parameters.
        applying: the optimizer's seconds per byte of the rows that it visits.
        codecs: those allowed for rows where they pay, the finest first.

    Returns:
        The placements with their predicted costs, and a reason for each table.

    Raises:
        InputError: no codec, two tables of one parameter, a size or a time below 0.
        ScheduleError: the workers of the schedule have no common steps, or no fixed phases.
    """
    listed = tuple(tables)
    names = [table.parameter for table in listed]
    if len(set(names)) < len(names):
        raise InputError(f"tables: {sorted({name for name in names if names.count(name) > 1})} stand there twice")
    if dense_bytes < 0 or not 0 <= applying < float("inf"):
        raise InputError(f"tables: {dense_bytes} dense bytes and {applying} s per byte; both are numbers >= 0")
    if not codecs:
        raise InputError("tables: no codec is allowed, not even none")
    if listed:
        check_unpriced(schedule)
    first = Pricing(
        tables=listed, schedule=schedule, hardware=hardware, dense_bytes=dense_bytes, applying=applying,
        codecs=tuple(map(Codec, codecs)),
    )  # fmt: skip
    pricings = [first]
    if aggregates_in(schedule.cluster):
        pricings.append(replace(first, local_aggregation=False, _own={}))
    found = [(*pricing.best(), pricing) for pricing in pricings]
    seconds, ways, pricing = min(found, key=lambda one: (one[0], one[2].local_aggregation))
    local, gathers = pricing.local_aggregation, Placement.GATHER in ways
    placed = list(zip(listed, ways, strict=True))
    tables_ = tuple(table.route(way, pricing.own(table, way, gathers=gathers)[0]) for table, way in placed)
    routes = Payload(tables=tables_, local_aggregation=local) if tables_ else Payload()
    replace(schedule, strategy=replace(schedule.strategy, payload=routes), certificate=None)  # raises if impossible
    costs = pricing.alternatives(ways)
    reasons = [
        _reason(table, route, costs[table.parameter], pricing.saved(table, route, gathers=gathers))
        for table, route in zip(listed, tables_, strict=True)
    ]
    # Local aggregation holds for all tables.
    done = "agree on a row before it crosses" if local else "do not agree on rows before they cross"
    reasons += [
        f"workers of a node {done}: {in_seconds(seconds)} a step for all that is sent and visited, otherwise "
        f"{in_seconds(other.cost(ways).seconds)}"
        for other in pricings
        if other is not pricing and any(way is not Placement.DENSE for way in ways)
    ]
    return TableChoice(
        routes=routes, seconds=seconds, dense_bytes=pricing.averaged_bytes(ways), costs=costs, reasons=tuple(reasons)
    )


def check_unpriced(schedule: Schedule) -> None:
    """Raise ScheduleError if the cost of the placements of tables cannot be predicted under this schedule."""
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
    """Return one line about a table: its size, touched rows, placement, codec's saving, and the other placements."""
    shares, way = table.touched, route.way
    seen = "what a step touches is unknown"
    if shares is not None:
        seen = f"a worker touches {shares.worker:.2%} of its rows in a step, "
        seen += f"a node {shares.node:.2%}, all {shares.everyone:.2%}"
    about = f"{table.parameter} ({table.rows:,} x {table.columns}, {in_bytes(table.num_bytes)}; {seen})"
    others = ", ".join(f"{other} {costs[other]}" for other in table.allowed if other is not way)
    why = f"; {others}" if others else ""
    if barred := [str(other) for other in IN_ORDER if other not in table.allowed]:
        rule = table.because or "its optimizer sees touched rows only"
        why += f" (not {' or '.join(barred)}: {rule})"
    less = f", {saved} less than as it is" if route.codec.rounds else ""
    return f"{about}: {route.in_words}, {costs[way]} a step{less}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model's tables, the bytes of its other trained parameters, and the number of steps whose rows were counted.

    `optimizer` is the kind of the optimizer that was returned with the model; None if the steps model has no such kind.
    """

    tables: tuple[Table, ...]
    dense_bytes: int
    num_steps: int = 0
    optimizer: Optimizer | None = None


def read_model(text: str, cluster: Cluster, *, touched: Mapping[str, RowAccess] | None = None) -> ModelFacts:
    """Inspect the model that a user's function returns, alone or in a tuple: (model, [optimizer], [batches]).

    Args:
        text: the function, as `FILE.py:NAME`.
        cluster: the workers, to which batches are dealt in turn.
        touched: known fractions of rows that a step touches, by the table's parameter name; they replace measured ones.

    Raises:
        FileError: the file does not exist.
        InputError: the file or its function fails, or its result is no model.
    """
    import torch

    from partreduce.runtime.sharding.row_access import OtherUses, sizes_of

    try:
        built = function_of(text, "--model")()
    except PartreduceError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"--model {text}: raised {one_line(error)}") from error
    model, *rest = built if isinstance(built, tuple) and 1 < len(built) <= 3 else (built,)
    optimizer = rest.pop(0) if rest and isinstance(rest[0], torch.optim.Optimizer) else None
    batches = rest.pop(0) if rest else None
    if not isinstance(model, torch.nn.Module) or rest:
        found = type(built if rest else model).__name__
        raise InputError(f"--model {text}: returned what is no model ({found}); it returns one, or (model, batches)")
    known, num_steps, uses, sizes = dict(touched or {}), 0, OtherUses(model), sizes_of(model)
    if unknown := [name for name in known if name not in sizes]:
        listed = ", ".join(sizes) or "none"
        raise InputError(f"--set touched: names {unknown[0]!r}, which no embedding of the model has; known: {listed}")
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
    """Return the kind of a torch optimizer; None if the steps model has no such kind."""
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
    """Return (the trained tables of embeddings, the bytes of all other trained parameters).

    Args:
        model: the model; parameters with `requires_grad=False` are left out.
        touched: the known fractions of rows that a step touches, by the table's parameter name.
        optimizer: the optimizer of the tables, if known; one that reads whole tensors excludes sharding.
        other_uses: by table, the function to which forward() hands its weight other than for a lookup (`OtherUses`).

    Raises:
        InputError: a table with a sparse gradient that may only be dense.
    """
    from partreduce.runtime.sharding.placement import embeddings_of

    found = {name: parts for name, parts in embeddings_of(model).items() if parts[0].requires_grad}
    tables = []
    for name, (parameter, modules) in found.items():
        rows, columns = parameter.shape
        is_sparse = any(module.sparse for module in modules)
        table = Table(
            parameter=name, rows=rows, columns=columns, touched=touched.get(name),
            gradient=Gradient.SPARSE if is_sparse else Gradient.DENSE, element_bytes=parameter.element_size(),
        )  # fmt: skip
        ways: tuple[Placement, ...] = (Placement.DENSE,)
        because = UNKNOWN
        if (use := (other_uses or {}).get(name)) is not None:
            because = f"forward() hands its weight to {use}, too, which needs all rows"
        elif table.touched is not None:
            ways, because = _possible_ways(model, table, parameter, modules, optimizer)
        if is_sparse and ways == (Placement.DENSE,):
            raise InputError(f"table {name!r}: has a sparse gradient, which way dense does not know; {because}")
        tables.append(replace(table, ways=ways, because=because))
    apart = {parameter for parameter, _ in found.values()}
    dense = (p for p in model.parameters() if p.requires_grad and p not in apart)
    return tuple(tables), sum(p.numel() * p.element_size() for p in dense)


def _possible_ways(
    model: torch.nn.Module,
    table: Table,
    parameter: torch.nn.Parameter,
    modules: tuple[Embeddings, ...],
    optimizer: torch.optim.Optimizer | None,
) -> tuple[tuple[Placement, ...], str]:
    """Return (the placements that the runtime allows, why it forbids another one; empty if it allows all).

    A table with `max_norm` may be dense only if it cannot be sharded: each worker would shorten the rows that it looks
    up, and the copies would diverge.
    """
    from partreduce.runtime.sharding.placement import check_route, looks_at_whole_tensors

    ways, against = [Placement.DENSE], ""
    for way in IN_ORDER[1:]:
        try:
            check_route(model, table.route(way), parameter, modules)
        except InputError as error:
            against = against or str(error).removeprefix(f"parameter {table.parameter!r}: ")
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
    """Return the fractions of rows that steps touch, by the table's parameter name, and the number of steps measured.

    The model runs without gradients, in eval mode, on its own device.

    Args:
        model: the model whose embedding tables are counted.
        batches: at least one batch for each worker; they are dealt to the workers in turn.
        cluster: the workers and their nodes.
        num_steps: the most steps to measure; a step takes a batch of each worker.

    Raises:
        InputError: too few batches for one step, batches that are not iterable, or a batch that forward() does not
            take.
    """
    from partreduce.runtime.sharding.row_access import record_lookups, shares_of, sizes_of

    num_workers = cluster.num_workers
    with record_lookups(model, _forward) as look:
        rows = [look(batch) for batch in islice(_checked_batches(batches), num_steps * num_workers)]
    if len(rows) < num_workers:
        raise InputError(
            f"gave {len(rows)} batches, and a step of {num_workers} workers takes one for each; give more of them, or "
            "a smaller cluster"
        )
    steps = [rows[first : first + num_workers] for first in range(0, len(rows) - num_workers + 1, num_workers)]
    return shares_of(steps, sizes_of(model), cluster), len(steps)


def _checked_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches; an exception of the user's loader becomes an InputError of one line."""
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
    from partreduce.runtime.sharding.row_access import inputs_of

    parts, keywords = inputs_of(model, batch)
    try:
        model(*parts, **keywords)
    except PartreduceError:
        raise
    except Exception as error:
        raise InputError(f"forward() of a batch raised {one_line(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """The plan for a model with embedding tables.

    `planned` is the plan for averaging all other parameters, `job` its request, `chosen` the placements of the tables;
    `schedule` combines both, `proof` is of it, and `step_seconds` and `nic_bytes` are those of one of its steps.
    `num_steps` is the number of steps in which touched rows were counted.
    """

    planned: Plan
    chosen: TableChoice
    schedule: Schedule
    proof: Proof
    job: PlanRequest
    num_steps: int
    step_seconds: float
    nic_bytes: float

    @property
    def cautions(self) -> list[str]:
        """Return sentences on what the plan assumes about the tables."""
        strategy, dense, averaged = self.schedule.strategy, self.chosen.dense_bytes, self.job.hardware.model_bytes or 0
        if not strategy.payload.apart:
            return []
        notes = {
            f"everything else was planned for {in_bytes(averaged)}; with the dense tables of this recommendation it is "
            f"{in_bytes(dense)}": max(1, dense) != averaged,
            f"rows are exchanged in each of the {strategy.steps_per_round} steps of a round, and all workers meet for "
            "that: averaging less often saves bytes, but no waiting": not strategy.steps_once,
            "what a step touches was stated, not measured; batches from build() would show it": not self.num_steps,
        }
        return [note for note, holds in notes.items() if holds]

    def to_json(self) -> dict[str, Any]:
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
    """Plan for the bytes that a schedule averages, and choose the tables' placements for the recommendation.

    Only candidates whose workers have common steps are considered. Rows may use the codecs allowed for sums. If the
    recommendation changes which tables are dense, the plan is repeated once for the new number of bytes.

    Args:
        job: the request, as for `plan`.
        model: the embedding tables, and the bytes of all other parameters.
        progress: as for `plan`.

    Raises:
        InputError: the job is invalid, such as a gap or a quorum with tables.
        InfeasibleError: see `plan`.
        UndecidedError: see `plan`.
    """
    tables, hardware = model.tables, job.hardware
    first = Schedule("all-reduce", job.cluster, AllReduce())
    choose = partial(
        choose_routes, tables, hardware=hardware, dense_bytes=model.dense_bytes, applying=APPLYING[job.optimizer],
        codecs=job.codecs,
    )  # fmt: skip
    chosen = choose(first)
    for _ in range(MAX_PLANS):
        averaged = max(1, chosen.dense_bytes)
        cluster = replace(job.cluster, hardware=replace(hardware, model_bytes=averaged))
        has_tables = bool(chosen.routes.apart)
        gap = False if has_tables and job.gap is None else job.gap
        quorum = False if tables and job.quorum is None else job.quorum
        beside = replace(job, cluster=cluster, gap=gap, quorum=quorum, tables=has_tables)
        planned = plan(beside, progress=progress)
        recommendation = planned.recommendation.schedule
        chosen = choose(recommendation)
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
