"""Choose a placement of each embedding table by its cost per step, and plan for the other parameters with it.

The seconds of a step are those of exchanging separately placed tables, of averaging all other parameters, of the
optimizer's work on rows (all rows of a replicated table on every worker, its own part of a sharded one), and of finding
and adding up rows, which on fast links makes dense averaging best for a table of which a step touches a large part.
Rows have a codec only if codecs are allowed: the finest one, unless a coarser one saves enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

from partreduce.console import seconds as in_seconds
from partreduce.console import size as in_bytes
from partreduce.planner.job import PlanRequest
from partreduce.planner.plan import Plan, plan
from partreduce.planner.predict import predict
from partreduce.planner.steps_model import Optimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.payload import Gradient, Payload, Placement, TablePlacement
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.tables import ELEMENT_BYTES, Exchange, RowAccess, aggregates_in, exchange
from partreduce.verify.base import Proof
from partreduce.verify.prove import prove

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
MAX_PLANS = 2
"""Most plans for the averaged parameters: the placements determine their size, and the plan determines placements."""
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


@dataclass(eq=False)
class Pricing:
    """The predicted cost per step of placements of all tables (dense, gathered or sharded).

    Arguments are as in `choose_routes`. In all methods `local` is whether the workers of a node first add up their
    rows, and `gathers` whether some table is gathered, so that all workers communicate with all others.
    """

    tables: Sequence[Table]
    schedule: Schedule
    hardware: Hardware
    dense_bytes: int
    applying: float = APPLYING[None]
    codecs: Sequence[Codec] = (Codec.NONE,)

    def __post_init__(self) -> None:
        self.averaging, self.own = cache(self._averaging), cache(self._own)

    def averaged_bytes(self, ways: Sequence[Placement | None]) -> int:
        """Return the bytes that the schedule averages: all other parameters, and the tables placed densely."""
        placed = zip(self.tables, ways, strict=True)
        return self.dense_bytes + sum(table.num_bytes for table, way in placed if way is Placement.DENSE)

    def _averaging(self, num_bytes: int) -> Cost:
        """Return the cost per step of averaging this many bytes by the schedule."""
        if not num_bytes:
            return Cost(0.0, 0.0)
        sent = communication(self.schedule, self.hardware, model_bytes=num_bytes)
        return Cost(sent.per_step, sent.nic_bytes_per_step)

    def _own(self, place: int, way: Placement, *, local: bool, gathers: bool) -> tuple[Codec, Exchange]:
        """Return the codec for the rows of table number `place`, and its cost per step, row visits included."""
        table, cluster = self.tables[place], self.schedule.cluster
        codecs = self.codecs if way is not Placement.DENSE else (Codec.NONE,)
        sent = {codec: self.sent(table, way, codec, local=local, gathers=gathers) for codec in codecs}
        kept = codecs[0]
        for codec in codecs:
            if sent[codec].seconds < sent[kept].seconds * (1 - WORTH):
                kept = codec
        visits = self.applying * table.visited(way, cluster.num_workers)
        visits += HANDLING * table.handled(way, cluster, local_aggregation=local)
        return kept, Exchange(gradients=visits) + sent[kept]

    def sent(self, table: Table, way: Placement, codec: Codec, *, local: bool, gathers: bool) -> Exchange:
        """Return the cost of exchanging a table's rows with this placement and codec."""
        return exchange(
            table.route(way, codec), table.shares, self.schedule.cluster, self.hardware,
            local_aggregation=local, element_bytes=table.element_bytes, beside_gathered=gathers,
        )  # fmt: skip

    def cost(self, ways: Sequence[Placement | None], *, local: bool) -> Cost:
        """Return the cost of a step with these placements, one for each table; None omits the table."""
        averages, apart, gathers = self.averaging(self.averaged_bytes(ways)), Exchange(), Placement.GATHER in ways
        for place, way in enumerate(ways):
            if way is not None:
                apart += self.own(place, way, local=local, gathers=gathers)[1]
        return Cost(averages.seconds + apart.seconds, averages.nic_bytes + apart.nic_bytes)

    def best(self, *, local: bool) -> tuple[float, tuple[Placement, ...]]:
        """Return (seconds of a step, placements) for the fastest placements that were found."""
        allowed = [table.allowed for table in self.tables]

        def seconds(ways: Ways) -> float:
            return self.cost(ways, local=local).seconds

        if prod(map(len, allowed)) <= MAX_COMBINATIONS:
            return min(((seconds(ways), ways) for ways in product(*allowed)), key=lambda one: one[0])
        ends = []
        for first in IN_ORDER:
            ways = tuple(first if first in own else own[0] for own in allowed)
            now, changed = seconds(ways), True
            while changed:  # change one table at a time while the time decreases
                changed = False
                for place, own in enumerate(allowed):
                    for way in own:
                        other = (*ways[:place], way, *ways[place + 1 :])
                        if (then := seconds(other)) < now * (1 - 1e-12):
                            now, ways, changed = then, other, True
            ends.append((now, ways))
        return min(ends, key=lambda one: one[0])

    def alternatives(self, ways: Ways, *, local: bool) -> dict[str, dict[Placement, Cost]]:
        """Return the cost that each placement of a table adds to a step, with all others fixed."""
        result: dict[str, dict[Placement, Cost]] = {}
        for place, table in enumerate(self.tables):
            none, *each = (
                self.cost([*ways[:place], way, *ways[place + 1 :]], local=local) for way in (None, *table.allowed)
            )
            added = [Cost(one.seconds - none.seconds, one.nic_bytes - none.nic_bytes) for one in each]
            result[table.parameter] = dict(zip(table.allowed, added, strict=True))
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
    pricing = Pricing(
        listed, schedule, hardware, dense_bytes=dense_bytes, applying=applying, codecs=tuple(map(Codec, codecs))
    )
    both = (True, False) if aggregates_in(schedule.cluster) else (True,)
    found = [(*pricing.best(local=local), local) for local in both]
    seconds, ways, local = min(found, key=lambda one: (one[0], one[2]))
    gathers, costs = Placement.GATHER in ways, pricing.alternatives(ways, local=local)
    placed = [
        table.route(way, pricing.own(place, way, local=local, gathers=gathers)[0])
        for place, (table, way) in enumerate(zip(listed, ways, strict=True))
    ]
    routes = Payload(tables=tuple(placed), local_aggregation=local) if placed else Payload()
    replace(schedule, strategy=replace(schedule.strategy, payload=routes), certificate=None)  # raises if impossible
    reasons = []
    for table, route in zip(listed, placed, strict=True):
        exact, coded = (
            pricing.sent(table, route.way, codec, local=local, gathers=gathers) for codec in (Codec.NONE, route.codec)
        )
        saved = Cost(exact.seconds - coded.seconds, exact.nic_bytes - coded.nic_bytes)
        reasons.append(_reason(table, route, costs[table.parameter], saved))
    if len(both) > 1 and any(way is not Placement.DENSE for way in ways):  # local aggregation holds for all tables
        done = "agree on a row before it crosses" if local else "do not agree on rows before they cross"
        otherwise = in_seconds(pricing.cost(ways, local=not local).seconds)
        reasons.append(
            f"workers of a node {done}: {in_seconds(seconds)} a step for all that is sent and visited, otherwise "
            f"{otherwise}"
        )
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
        compute=job.compute_times,
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
