"""The cost of embedding tables exchanged separately: of a step, by the rows that it touches, and of whole rounds.

A worker touches u rows, the workers of a node u_node together, all workers u_all (`RowAccess`, as shares of the table).
A row has b bytes, and its number, by which it is requested, 4. There are n workers on N nodes, k on each. With a codec
b is the encoded size, except for gradients inside nodes, which are added there unencoded; coding takes time, too.

    placement                 at a lookup                           end of backward                 rows out of a NIC
    dense                     –                                     part of the strategy's payload  –
    gather                    –                                     all_gather of u of each         (n−1)·u
    gather, aggregated        –                                     in the nodes; of u_node/k each  (n−1)·u_node/k
    sharded                   numbers, rows back: all_to_all of u   all_to_all of u                 2k(n−k)/n·u
    sharded, aggregated       in the nodes; all_to_all of u_node    in the nodes; all_to_all        2(N−1)/N·u_node

If all nodes are equally large and aggregate, and no table is gathered, a worker exchanges rows only with the workers of
the same local rank on other nodes: N−1 messages instead of n−1 (`in_pairs`). Before each exchange, and at the end of a
step, all workers announce to each other what they do and how much data follows, which costs one latency. At a lookup
the row numbers travel in that message if no worker requests more than `ROOM` of them from another; the message has room
for them, for which no bytes are charged. At the end of backward that is done once for all tables, whose gradients then
travel together; so tables share these latencies (`Exchange.meetings`). `topo.timing.cost` prices what the strategy
sends for a dense table: its bytes are added to the model's. Long messages that are sent in rounds of pairs
(docs/strategies/embeddings.md) are priced like all others, by their bytes and a latency each.

In every step all workers synchronize, at the lookup and after the backward pass: a step takes the longest computing of
any worker plus the seconds of the exchanges before and after it; faster workers wait. A round begins when the last
worker begins it, since no worker has its rows before. The strategy's averaging follows the last step of a round, or is
late, as in `topo.timing.stages` with every worker computing for that long.

Source of the placements: Kim et al., Parallax, 2018, sections 3 and 4.
docs/strategies/embeddings.md has the bytes of each placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from partreduce.topo.cluster import Cluster
from partreduce.topo.codec_numbers import row_bytes
from partreduce.topo.errors import InputError
from partreduce.topo.fields import CheckedFields, Floats, Whole
from partreduce.topo.hardware import Hardware, Share
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Transport
from partreduce.topo.strategies.payload import Payload, Placement, TablePlacement
from partreduce.topo.timing import loads
from partreduce.topo.timing.coding import Algorithm, Coding
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.stages import Moments, Rounds, Stage, of_period

NUMBER_BYTES = 4
"""Bytes of a row's number on the wire."""

ROOM = 256
"""The most row numbers for one worker that fit into the message that announces an exchange to it."""

ELEMENT_BYTES = 4
"""Bytes of one number of a row: float32."""


@dataclass(frozen=True, slots=True)
class RowAccess(CheckedFields):
    """The mean shares of a table's rows that one worker, the workers of one node, and all workers use in a step."""

    place: ClassVar[str] = "touched share of "
    worker: Share
    node: Share
    everyone: Share

    def __post_init__(self) -> None:
        CheckedFields.__post_init__(self)
        if not self.worker <= self.node <= self.everyone:
            raise InputError(
                f"touched shares: are {self.worker:g}, {self.node:g} and {self.everyone:g} of a worker, of a node and "
                "of all; a node touches what its workers do, and all what a node does"
            )

    @classmethod
    def independent(cls, worker: float, cluster: Cluster) -> RowAccess:
        """Estimate the shares of a node and of all workers from one worker's, as if rows were drawn uniformly.

        Real data has frequent rows that every worker touches, so a node and all workers touch fewer than estimated.
        """
        most = int(cluster.node_sizes().max())
        return cls(worker, 1 - (1 - worker) ** most, 1 - (1 - worker) ** cluster.num_workers)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The cost of table exchanges in each step: seconds at lookups and after backward, and bytes through NICs.

    `meetings` are (name, seconds) of latencies of the messages that announce exchanges; tables share latencies of equal
    name, so a sum of costs counts them once. `nic_bytes` leave the busiest node.
    """

    lookups: float = 0.0
    gradients: float = 0.0
    nic_bytes: float = 0.0
    meetings: tuple[tuple[str, float], ...] = ()

    @property
    def seconds(self) -> float:
        return self.lookups + self.gradients + sum(seconds for _, seconds in self.meetings)

    def __add__(self, other: Exchange) -> Exchange:
        return Exchange(
            self.lookups + other.lookups,
            self.gradients + other.gradients,
            self.nic_bytes + other.nic_bytes,
            tuple((dict(self.meetings) | dict(other.meetings)).items()),
        )


def exchange(
    route: TablePlacement,
    touched: RowAccess,
    cluster: Cluster,
    hardware: Hardware,
    *,
    local_aggregation: bool = True,
    element_bytes: int = ELEMENT_BYTES,
    beside_gathered: bool = False,
) -> Exchange:
    """Return the cost of exchanging the table of `route` in a step.

    `touched` are the shares of the table's rows that a step uses, `element_bytes` the bytes of one number. With
    `local_aggregation` the workers of a node first combine their rows, if that is possible. `beside_gathered` means
    that another table is gathered, so that all workers communicate with all others.
    """
    if route.way is Placement.DENSE:
        return Exchange()
    exact = route.columns * element_bytes
    row = row_bytes(route.codec.value, route.columns, element_bytes=element_bytes)
    aggregates = local_aggregation and aggregates_in(cluster)
    sizes = cluster.node_sizes().astype(float)
    own, together = touched.worker * route.rows, touched.node * route.rows
    wanted = np.full(cluster.num_nodes, together) if aggregates else sizes * own  # rows of each node
    held, hosts = _parts_on_nodes(route, cluster)
    gathers = beside_gathered or route.way is Placement.GATHER
    others = cluster.num_nodes - 1 if aggregates and in_pairs(cluster, gathers=gathers) else cluster.num_workers - 1

    def across(each: int) -> float:
        one = loads.of_pieces(cluster, hardware, wanted=wanted * each, held=held, workers=hosts, others=others)
        return float(one.seconds().max(initial=0.0))

    def within(each: int) -> float:
        return _inside_nodes(own * each, cluster, hardware) if aggregates else 0.0

    latency, local = across(0), within(0)
    meetings = (("step", latency + local), ("gradients", latency + 2 * local))
    inside = within(exact + NUMBER_BYTES) - local
    passed = together / float(sizes.max()) if aggregates else own  # rows whose gradients one worker encodes
    coding = Coding.of(Transport(codec=route.codec), hardware).seconds
    encode, decode = coding.encode * 4 * route.columns, coding.decode * 4 * route.columns  # seconds per row
    if route.way is Placement.GATHER:
        # All messages of a ring are padded to the longest; each worker forwards all but one of them.
        longest = together / float(sizes.min()) if aggregates else own
        rows = cluster.num_nodes * together if aggregates else cluster.num_workers * own
        ring = _ring(cluster.num_workers * longest * (row + NUMBER_BYTES), cluster, hardware)
        start = _ring(0, cluster, hardware)
        out = _crossings(cluster) * (cluster.num_workers - 1) * longest * (row + NUMBER_BYTES)
        coded = encode * passed + decode * rows
        return Exchange(0.0, inside + ring - start + coded, out, (*meetings, ("to all", start)))
    requests = _apart(own, together if aggregates else own, int(hosts.sum()), cluster, (local, latency))
    requested, given = wanted * (1 - held), held * (wanted.sum() - wanted)  # rows that cross the NIC of each node
    most = (2 * NUMBER_BYTES * requested + row * (given + requested)).max(initial=0.0)
    asking = sum(across(part) + within(part) for part in (NUMBER_BYTES, row))
    at_owner = float((held / np.maximum(hosts, 1)).max() * wanted.sum())  # rows sent and gradients received
    return Exchange(
        lookups=requests + asking + encode * at_owner + decode * own,
        gradients=across(row + NUMBER_BYTES) - latency + inside + encode * passed + decode * at_owner,
        nic_bytes=float(most) if cluster.num_nodes > 1 else 0.0,
        meetings=(*meetings, ("to owners", latency)),
    )


def exchanges(routes: Payload, touched: Mapping[str, RowAccess], cluster: Cluster, hardware: Hardware) -> Exchange:
    """Return the cost per step of all separately placed tables of a schedule, which are exchanged one after another.

    `routes` is the schedule's payload, which has each table's placement; `touched` has the shares of rows that a step
    uses by the table's parameter name. Raises InputError if it lacks a table.
    """
    total, gathers = Exchange(), any(route.way is Placement.GATHER for route in routes.apart)
    for route in routes.apart:
        if route.parameter not in touched:
            rule = f"say it, on the command line --set touched={route.parameter}:0.8% or what it is"
            raise InputError(f"touched: does not say how much of {route.parameter!r} a step touches; {rule}")
        total += exchange(
            route, touched[route.parameter], cluster, hardware, local_aggregation=routes.local_aggregation,
            beside_gathered=gathers,
        )  # fmt: skip
    return total


def _apart(own: float, collected: float, owners: int, cluster: Cluster, latencies: tuple[float, float]) -> float:
    """Return the extra seconds of a lookup for messages of row numbers, 0 if none are needed.

    Row numbers travel in the message that announces the lookup if no worker requests more than `ROOM` of them from
    another; otherwise they cost one more latency. Inside nodes a worker requests `own` rows, spread over its node;
    across nodes `collected` rows (those of its node if aggregated) from the `owners`, the workers that hold parts of
    the table. `latencies` are seconds (inside, across).
    """
    longest = own / float(cluster.node_sizes().max()), collected / owners
    return sum(latency for latency, one in zip(latencies, longest, strict=True) if one > ROOM)


def aggregates_in(cluster: Cluster) -> bool:
    """Whether rows can be aggregated inside nodes: there are several nodes, and some node has several workers."""
    return cluster.num_nodes > 1 and int(cluster.node_sizes().max()) > 1


def in_pairs(cluster: Cluster, *, gathers: bool) -> bool:
    """Whether rows, aggregated inside nodes, go only between workers of equal local rank on different nodes.

    They do if nodes have equal sizes and no table is gathered (`gathers`).
    """
    return aggregates_in(cluster) and len(set(cluster.node_sizes().tolist())) == 1 and not gathers


def _ring(num_bytes: float, cluster: Cluster, hardware: Hardware) -> float:
    """Return the seconds of an all_gather to which all workers together contribute `num_bytes`."""
    everyone = Phase.from_groups(cluster.num_workers, [range(cluster.num_workers)])
    # A ring all-reduce of b bytes is two all_gathers of b, one after another.
    both = loads.of_phase(everyone, cluster, hardware, model_bytes=num_bytes, algorithm="ring")
    return float(both.seconds().max()) / 2


def _crossings(cluster: Cluster) -> int:
    """Return the most workers on one node whose successor in the ring of all ranks is on another node."""
    if cluster.is_regular:
        return int(cluster.num_nodes > 1)
    node_of = cluster.node_of()
    return int(np.bincount(node_of[node_of != np.roll(node_of, -1)], minlength=1).max())


def _inside_nodes(num_bytes: float, cluster: Cluster, hardware: Hardware) -> float:
    """Return the seconds of an all_to_all of `num_bytes` per worker inside every node."""
    groups = [cluster.workers_of(node) for node in range(cluster.num_nodes)]
    phase = Phase.from_groups(cluster.num_workers, [group for group in groups if len(group) > 1])
    return float(loads.of_exchange(phase, cluster, hardware, num_bytes=num_bytes).seconds().max(initial=0.0))


def _parts_on_nodes(route: TablePlacement, cluster: Cluster) -> tuple[Floats, Whole]:
    """Return each node's share of a sharded table's parts, and its number of hosts, shapes (num_nodes,)."""
    hosts = np.array(route.hosts or range(cluster.num_workers))
    node_of, parts = cluster.node_of(), route.partitions or len(hosts)
    of_part = node_of[hosts[np.arange(parts) % len(hosts)]]
    held = np.bincount(of_part, minlength=cluster.num_nodes) / parts
    return held, np.bincount(node_of[hosts], minlength=cluster.num_nodes)


@dataclass(frozen=True, slots=True)
class TableRounds:
    """The progress of all workers, `rounds`, with the `exchange` of all tables in each step."""

    rounds: Rounds
    exchange: Exchange

    def next(self, stage: Stage, steps: Floats) -> tuple[Moments, Floats]:
        """Advance all workers by one round.

        Args:
            stage: which workers average together at the end of the round, and how long that takes.
            steps: the seconds that each step computes, shape (steps_per_round, num_workers).

        Returns:
            The times at which each worker starts the round, has computed, averages, and may start the next; and the
            seconds that it waited for the lookups and gradients of others, shape (num_workers,).
        """
        before = self.rounds.now
        self.rounds.now = np.full_like(before, before.max())
        longest = steps.max(axis=1)
        spent = float(longest.sum()) + len(steps) * self.exchange.seconds
        moments = self.rounds.next(stage, np.full_like(before, spent))
        waited = before.max() - before + (longest[:, None] - steps).sum(axis=0)
        return moments._replace(start=before), waited


def exchange_of(schedule: Schedule, hardware: Hardware, touched: Mapping[str, RowAccess] | None) -> Exchange | None:
    """Return the cost per step of a schedule's table exchanges; None if no embedding table is exchanged separately.

    `touched` is as in `exchanges`, with InputError for unknown tables; None is valid if no link takes time for bytes.
    """
    check_names(schedule, touched)
    if not schedule.routes.apart:
        return None
    if touched is None and hardware.is_free_of_bytes():
        return Exchange()
    return exchanges(schedule.routes, touched or {}, schedule.cluster, hardware)


def check_names(schedule: Schedule, touched: Mapping[str, RowAccess] | None) -> None:
    """Raise InputError if `touched` names a table that the schedule does not have."""
    for name in touched or {}:
        if schedule.route_of(name) is None:
            known = ", ".join(repr(route.parameter) for route in schedule.routes.tables) or "none"
            raise InputError(f"touched: names {name!r}; tables of schedule {schedule.name!r} are {known}")


def steady_seconds(
    schedule: Schedule,
    hardware: Hardware,
    compute: ComputeTimes,
    exchange: Exchange,
    *,
    model_bytes: int | None = None,
    algorithm: Algorithm = None,
) -> float:
    """Return the exact seconds per step with table `exchange` if workers compute at constant speeds. O(n · period).

    Every period takes the same time, in a pipeline once it is full: all workers begin a round together, as each waits
    for the rows of all. Jitter, disturbance and trace of `compute` are ignored.
    """
    stages = of_period(schedule, hardware, model_bytes=model_bytes, algorithm=algorithm)
    sync, steps_per_round = schedule.strategy.sync, schedule.largest_steps_per_round
    rounds = TableRounds(Rounds(sync, (schedule.num_workers,), skip_warm_up=True), exchange)
    steps = np.tile(compute.fixed(schedule.num_workers), (steps_per_round, 1))
    first = len(stages) * 4 * (1 + sync.lag)
    begun = 0.0
    for round_ in range(2 * first):
        if round_ == first:
            begun = float(rounds.rounds.now.max())
        rounds.next(stages[round_ % len(stages)], steps)
    return (float(rounds.rounds.now.max()) - begun) / first / steps_per_round
