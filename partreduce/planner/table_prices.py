"""Prices of tables' ways: what a step takes by the way of each table.

A step's seconds are those of the exchanges of the tables that go their own way, of the strategy's own averages over
everything else, of what an optimizer does to rows that no other worker has to look at (a table of which every worker
holds a copy is swept by every worker, a sharded one by its owners, each its part), and of handing rows on: on fast
links it is this that makes a table of which a step touches much go as everything else does.

Rows travel as they are unless codecs are allowed; then in the finest one, unless a coarser one saves enough of what the
table takes beside the strategy, since it changes numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.payload import Gradient, Placement, TablePlacement
from partreduce.topo.timing.cost import communication
from partreduce.topo.timing.tables import ELEMENT_BYTES, Exchange, RowAccess, aggregates_in, exchange

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
    _own: dict[tuple[str, Placement, bool, bool], tuple[Codec, Exchange]] = field(default_factory=dict)
    _averaging: dict[int, Cost] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        return self.schedule.cluster

    def by_strategy(self, ways: Sequence[Placement]) -> int:
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

    def own(self, table: Table, way: Placement, *, local_aggregation: bool, beside_gathered: bool) -> Exchange:
        """What one table takes beside the strategy, in its codec; what is visited of it counts as gradients."""
        return self._coded(table, way, local_aggregation, beside_gathered)[1]

    def codecs_of(self, ways: Sequence[Placement], *, local_aggregation: bool) -> list[Codec]:
        """The codecs in which the tables' rows travel if they go these ways."""
        gathers = Placement.GATHER in ways
        going = zip(self.tables, ways, strict=True)
        return [self._coded(table, way, local_aggregation, gathers)[0] for table, way in going]

    def _coded(
        self, table: Table, way: Placement, local_aggregation: bool, beside_gathered: bool
    ) -> tuple[Codec, Exchange]:
        """The codec that pays, and what the table takes in it beside the strategy; kept."""
        key = table.parameter, way, local_aggregation, beside_gathered
        if key not in self._own:
            kept: tuple[Codec, Exchange] | None = None
            for codec in self.codecs if way is not Placement.DENSE else (Codec.NONE,):
                sent = self._sent(table, way, codec, local_aggregation, beside_gathered)
                if kept is None or sent.seconds < kept[1].seconds * (1 - WORTH):
                    kept = codec, sent
            assert kept is not None, "there is a codec, if only none"
            visits = self.applying * table.visited(way, self.cluster.num_workers)
            visits += self.handling * table.handled(way, self.cluster, local_aggregation=local_aggregation)
            self._own[key] = kept[0], Exchange(gradients=visits) + kept[1]
        return self._own[key]

    def _sent(
        self, table: Table, way: Placement, codec: Codec, local_aggregation: bool, beside_gathered: bool
    ) -> Exchange:
        return exchange(
            table.route(way, codec),
            table.shares,
            self.cluster,
            self.hardware,
            local_aggregation=local_aggregation,
            element_bytes=table.element_bytes,
            beside_gathered=beside_gathered,
        )

    def saved(self, table: Table, route: TablePlacement, *, local_aggregation: bool, beside_gathered: bool) -> Cost:
        """What a table's codec saves of a step."""
        exact, coded = (
            self._sent(table, route.way, codec, local_aggregation, beside_gathered)
            for codec in (Codec.NONE, route.codec)
        )
        return Cost(exact.seconds - coded.seconds, exact.nic_bytes - coded.nic_bytes)

    def cost(self, ways: Sequence[Placement | None], *, local_aggregation: bool) -> Cost:
        """Of a step's exchanges, averages and visits, if the tables go these ways; None leaves a table out."""
        going = [(table, way) for table, way in zip(self.tables, ways, strict=True) if way is not None]
        dense = sum(table.num_bytes for table, way in going if way is Placement.DENSE)
        averages, apart = self.averaging(self.dense_bytes + dense), Exchange()
        gathers = any(way is Placement.GATHER for _, way in going)
        for table, way in going:
            apart += self.own(table, way, local_aggregation=local_aggregation, beside_gathered=gathers)
        return Cost(averages.seconds + apart.seconds, averages.nic_bytes + apart.nic_bytes)

    def seconds(self, ways: Sequence[Placement], *, local_aggregation: bool) -> float:
        return self.cost(ways, local_aggregation=local_aggregation).seconds
