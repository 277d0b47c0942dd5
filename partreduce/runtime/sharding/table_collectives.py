"""Run the collectives of embedding tables, on separate communicators and with deadlines, and count the bytes sent.

Each operation starts with a small message, a *call*, from every worker to every other, of a length that all know. It
contains the kind of operation, the table, how many rows follow, and room for their numbers, so workers that start
different operations notice it. A worker that found a user's mistake reports it in the call, and all raise the same
error. A worker whose data has ended takes part in any operation of the others.

The room for row numbers follows from the most rows that any member requested from another in earlier steps, which all
know. If a member requests more, it sends the numbers in a separate message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.transport.communicators import Communicator, goes_in_rounds, pairwise_exchange
from partreduce.runtime.transport.work import Work, in_thread
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.timing.tables import ROOM

NAME = "tables"  # of communicators that only tables use, so that no other operation is mixed in


class Kind(IntEnum):
    """Kind of a table operation of all workers: any, lookup, gradients, end of a step, norm, or a whole table."""

    ANY = 0  # any operation of the others, for a worker whose data has ended
    LOOKUP = 1
    REDUCE = 2
    STEP = 3
    NORM = 4
    WHOLE = 5


LENGTH = 8  # integers in a call, before its counts
SAME = 5  # the first of these, which must be equal on all workers
PROBLEM, LONGEST = 5, 6  # indices of the problem flag, and of the most rows or bytes for one member


@dataclass(frozen=True, slots=True)
class Call:
    """The table operation that a worker starts; before each operation all workers send each other theirs.

    Calls are equal if they start the same operation. `copy` is the number of the model's copy, 0 the trained one;
    `trains` says of a lookup whether gradients follow, of a step whether it clips gradients; `value` is this worker's
    part of a norm.
    """

    kind: Kind
    step: int = 0
    table: int = 0
    copy: int = 0  # copy of the model, such as a moving average; 0 is the trained one
    trains: bool = False  # for a lookup: needs gradients; for the end of a step: clips gradients
    has_problem: bool = field(default=False, compare=False)
    value: float = field(default=0.0, compare=False)

    def numbers(self) -> torch.Tensor:
        (value,) = struct.unpack("q", struct.pack("d", self.value))
        return torch.tensor([self.kind, self.step, self.table, self.copy, self.trains, self.has_problem, 0, value])

    @classmethod
    def read(cls, message: torch.Tensor) -> Call:
        kind, step, table, copy, trains, problem, _, number = message.tolist()
        (value,) = struct.unpack("d", struct.pack("q", number))
        return cls(Kind(kind), step, table, copy, bool(trains), bool(problem), value)

    def words(self, tables: Sequence[str]) -> str:
        """Describe the operation, to follow "worker 2 " in an error; `tables` are the tables' names."""
        name = tables[self.table]
        if self.kind is Kind.LOOKUP:
            copy = f" in copy {self.copy} of the model" if self.copy else ""
            return f"looks up rows of {name!r}{copy} {'to train' if self.trains else 'without gradients'}"
        return {
            Kind.ANY: "has no data left",
            Kind.REDUCE: "exchanges the gradients of a backward pass",
            Kind.STEP: "clips gradients" if self.trains else "has finished its backward passes",
            Kind.NORM: "clips gradients",
            Kind.WHOLE: f"saves or spreads the rows of {name!r}",
        }[self.kind] + f" in step {self.step}"


@dataclass
class CollectiveCalls:
    """All workers' calls for one operation (`encoded` as integers), and the number and `ids` of rows requested here."""

    members: tuple[int, ...]
    encoded: torch.Tensor  # their calls as integers, int64 [members, LENGTH]
    counts: torch.Tensor  # their counts for this worker, int64 [members, tables]
    ids: torch.Tensor | None = None  # rows that they request from this worker; None if sent separately

    @property
    def calls(self) -> Mapping[int, Call]:
        return {rank: Call.read(row) for rank, row in zip(self.members, self.encoded, strict=True)}

    @cached_property
    def agreed(self) -> Call | None:
        """The operation that all workers start, of kind `ANY` if no worker has data left; None if they differ."""
        first = self.encoded[0]
        if bool((self.encoded[:, :SAME] == first[:SAME]).all()):
            return Call.read(first)
        gathered = [call for call in self.calls.values() if call.kind is not Kind.ANY]
        if not all(call == gathered[0] for call in gathered):
            return None
        return None if gathered[0].kind is Kind.WHOLE and len(gathered) < len(self.calls) else gathered[0]

    @property
    def without_data(self) -> Mapping[int, Call]:
        kinds = zip(self.members, self.encoded[:, 0].tolist(), self.encoded, strict=True)
        return {rank: Call.read(row) for rank, kind, row in kinds if kind == Kind.ANY}

    @property
    def longest(self) -> int:
        """The most rows that one member requests from another, or, for gradients, bytes that one sends to another."""
        return int(self.encoded[:, LONGEST].max())

    @property
    def with_problem(self) -> int | None:
        """The lowest rank that reports a user's mistake; None if no worker does."""
        return next(
            (rank for rank, one in zip(self.members, self.encoded[:, PROBLEM].tolist(), strict=True) if one), None
        )

    def difference(self, tables: Sequence[str]) -> str:
        """Describe in one line, equal on all workers, which worker started another operation; for an error."""
        gathered = {rank: call for rank, call in self.calls.items() if call.kind is not Kind.ANY}
        usual = max(gathered.values(), key=list(gathered.values()).count)
        rule = (
            "tables are exchanged synchronously: all workers do the same lookups and backward passes in the same order"
        )
        if all(call == usual for call in gathered.values()):
            gathered = dict(self.calls)  # the only operation in which a worker without data takes no part
            rule = "all workers put whole tables together, so call state_dict() behind `with optimizer.join():`"
        odd, theirs = next((rank, call) for rank, call in gathered.items() if call != usual)
        rank = next(rank for rank, call in gathered.items() if call == usual)
        return f"worker {odd} {theirs.words(tables)} while worker {rank} {usual.words(tables)}; {rule}"


def width_of(column: torch.Tensor) -> int:
    """Return the bytes per row of a column, an array with one entry per row of an embedding table."""
    return column.element_size() * column.shape[1:].numel()


def bytes_of(columns: Sequence[torch.Tensor], counts: torch.Tensor) -> torch.Tensor:
    """Return the bytes that each member gets of each column: counts × bytes per row, int64 [members, columns].

    A column is an array with one entry per row of an embedding table, such as row numbers or gradients. Member m gets
    `counts[m, c]` rows of column c.
    """
    return counts * torch.tensor([width_of(column) for column in columns])


def group_by_member(columns: Sequence[torch.Tensor], sizes: torch.Tensor) -> torch.Tensor:
    """Concatenate columns, whose rows are sorted by receiving member, to one byte message, member by member.

    A column has one entry per row of a table; `sizes` are the bytes that each member gets of each, [members, columns].
    """
    raw = [column.contiguous().view(-1).view(torch.uint8) for column in columns]
    if len(columns) == 1:
        return raw[0]
    pieces = [torch.split(column, size) for column, size in zip(raw, sizes.T.tolist(), strict=True)]
    return torch.cat([column[member] for member in range(len(sizes)) for column in pieces])


def split_columns(message: torch.Tensor, sizes: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Split a received byte message into columns with the dtypes and widths of `like`; inverse of `group_by_member`.

    `sizes` are the bytes from each member of each column, [members, columns].
    """
    raw = [message]
    if len(like) > 1:
        pieces = torch.split(message, sizes.view(-1).tolist())
        raw = [torch.cat(pieces[column :: len(like)]) for column in range(len(like))]
    return [one.view(column.dtype).view(-1, *column.shape[1:]) for one, column in zip(raw, like, strict=True)]


class Wire:
    """One worker's table collectives, over all workers, and inside its node if rows are merged there first.

    Methods raise PeerFailedError if a worker is gone. `round_` returns this worker's round, for reports; `coalesces`
    says whether a node's workers merge their rows first, `gathers` whether some table's gradients are all-gathered.
    """

    def __init__(
        self, reducer: Reducer, cluster: Cluster, round_: Callable[[], int], *, coalesces: bool, gathers: bool
    ) -> None:
        self.reducer, self._round = reducer, round_
        world, rank = reducer.world, reducer.world.rank
        self.rank = rank
        self.nodes = cluster.node_of().tolist()
        self.everyone = _communicator(world, tuple(range(world.size)))
        mates = tuple(other for other, node in enumerate(self.nodes) if node == self.nodes[rank])
        sizes = {self.nodes.count(node) for node in self.nodes}
        coalesces = coalesces and 1 < max(sizes) < world.size
        self.node = _communicator(world, mates) if coalesces and len(mates) > 1 else None  # None if rows are not merged
        self._node_size = max(sizes)
        places = torch.tensor([self.nodes[:rank].count(node) for rank, node in enumerate(self.nodes)])
        """Local rank of each worker."""
        self.owners = self.everyone
        """Group with which this worker exchanges rows: all workers; or, if nodes merge rows and are equally large, the
        workers with the same local rank: on 4×4 it then sends 3 messages instead of 15."""
        if coalesces and len(sizes) == 1 and not gathers:
            self.owners = _communicator(world, tuple((places == places[rank]).nonzero().view(-1).tolist()))
        of_nodes = [[r for r, node in enumerate(self.nodes) if node == self.nodes[m]] for m in self.owners.members]
        self._spoken_for = torch.tensor([r for mates in of_nodes for r in mates]).argsort()
        """Index of each worker's call among those that the members of `owners` pass on, int64 [workers]."""
        self.collectors = places % (1 if self.node is None else self.node.size)
        """Local rank, on this node, of the worker that merges requests to each owner, int64 [workers]: the owner's own
        local rank modulo the node's size, so that a row is sent only once per node."""
        on_node = {self.nodes[member]: place for place, member in enumerate(self.owners.members)}
        is_all = self.owners is self.everyone
        self.places = torch.tensor([rank if is_all else on_node[node] for rank, node in enumerate(self.nodes)])
        """For each owner, the index in `owners` of the member to which this worker sends its rows, int64 [workers]."""
        self._rooms: dict[tuple[int, ...], _Room] = {}
        self.bytes_across = 0  # bytes sent so far to workers on other nodes

    def meet(
        self,
        group: Communicator,
        call: Call,
        counts: torch.Tensor,
        requested: torch.Tensor | None = None,
        *,
        brings: int = 0,
        mates: CollectiveCalls | None = None,
    ) -> CollectiveCalls:
        """Exchange calls with all members of a group, and return the calls of all.

        Args:
            group: communicator of the members.
            call: this worker's call.
            counts: 0 for a table that is not exchanged, else rows for the member plus 1; int64 [members, tables].
            requested: numbers of the rows that a lookup requests, in order of members.
            brings: the most bytes that this worker will send to one member afterwards.
            mates: calls inside this node, if its rows were merged; they are passed on to `group`.
        """
        room = self._rooms.setdefault(group.members, _Room())
        gathered = call.numbers()[None] if mates is None or group is self.everyone else mates.encoded.clone()
        gathered[:, LONGEST] = 0
        gathered[0, LONGEST] = brings
        calls = gathered.numel()
        written = calls + counts.shape[1]
        mine = counts.new_zeros(group.size, written + room.size // 2)
        mine[:, calls:written] = counts
        if requested is not None:
            each = (counts.sum(1) - (counts > 0).sum(1)).clamp(min=0)
            gathered[0, LONGEST] = longest = each.max()
            if len(requested) and int(longest) <= room.size:
                mine.view(torch.int32)[:, 2 * written :][room.used_by(each)] = requested.to(torch.int32)
        mine[:, :calls] = gathered.view(-1)
        theirs = torch.empty_like(mine)
        sizes = [mine.shape[1]] * group.size
        start = partial(group.all_to_all, theirs.view(-1), mine.view(-1), sizes, sizes)
        self._run(f"tables: {call.kind.name.lower()}", group, call.step, start, num_bytes=mine.nbytes)
        self._count(group, [8 * size for size in sizes])
        received = theirs[:, :calls].reshape(-1, LENGTH)
        if len(received) == group.size:
            met = CollectiveCalls(group.members, received, theirs[:, calls:written])
        else:
            met = CollectiveCalls(self.everyone.members, received[self._spoken_for], theirs[:, calls:written])
        did = met.agreed
        if did is not None and did.kind is Kind.LOOKUP:
            most = met.longest
            if most <= room.size:
                used = room.used_by((met.counts[:, did.table] - 1).clamp(min=0))
                met.ids = theirs.view(torch.int32)[:, 2 * written :][used].long()
            room.longest[did.table] = most
        elif did is not None and did.kind is Kind.STEP:
            room.fit()
        return met

    def swap(
        self,
        what: str,
        group: Communicator,
        step: int,
        columns: Sequence[torch.Tensor],
        *,
        sends: torch.Tensor,
        receives: torch.Tensor,
        longest: int,
    ) -> list[torch.Tensor]:
        """Send rows of all columns to the members, in one message to each; return the rows received, by member.

        Args:
            what: name of the rows, for messages.
            group: communicator of the members.
            step: this worker's step.
            columns: arrays with one entry per row, in order of receiving members.
            sends: number of rows of each column for each member, int64 [members, columns].
            receives: number of rows of each column from each member, int64 [members, columns].
            longest: the most bytes from one member to another, known to all; long messages are sent in rounds of pairs,
                except inside a node.
        """
        out, back = bytes_of(columns, sends), bytes_of(columns, receives)
        source, sent, arrived = group_by_member(columns, out), out.sum(1).tolist(), back.sum(1).tolist()
        target = torch.empty(sum(arrived), dtype=torch.uint8)

        def start() -> Work:
            crosses = group is not self.node and len(set(self.nodes)) > 1
            if crosses and goes_in_rounds(longest, group.size, self._node_size):
                return in_thread(pairwise_exchange(group, target, source, arrived, sent))
            return group.all_to_all(target, source, arrived, sent)

        self._run(what, group, step, start, num_bytes=source.nbytes)
        self._count(group, sent)
        return split_columns(target, back, columns)

    def gather(self, what: str, step: int, columns: Sequence[torch.Tensor], counts: torch.Tensor) -> list[torch.Tensor]:
        """All-gather the rows of all columns (arrays with one entry per row) around a ring, in order of workers.

        `what` names the rows in errors; `counts` has the number of rows, int64 [workers, columns].
        """
        group, sizes = self.everyone, bytes_of(columns, counts)
        lengths = sizes.sum(1).tolist()
        longest = max(lengths)
        if longest == 0:
            return list(columns)
        padded = torch.zeros(longest, dtype=torch.uint8)
        rows = group_by_member(columns, torch.tensor([[column.nbytes for column in columns]]))
        padded[: len(rows)] = rows
        gathered = torch.empty(group.size * longest, dtype=torch.uint8)
        self._run(what, group, step, lambda: group.all_gather(gathered, padded), num_bytes=padded.nbytes)
        sent = [0] * group.size
        sent[(group.place + 1) % group.size] = (group.size - 1) * longest
        self._count(group, sent)
        each = zip(gathered.view(group.size, longest), lengths, strict=True)
        return split_columns(torch.cat([part[:length] for part, length in each]), sizes, columns)

    def broadcast(self, array: torch.Tensor) -> None:
        group = self.everyone
        with self.reducer.heartbeat.exchange():
            self._run("initial table", group, None, lambda: group.broadcast(array), num_bytes=array.nbytes)

    def _count(self, group: Communicator, sent: Sequence[int]) -> None:
        here, to = self.nodes[self.rank], zip(sent, group.members, strict=True)
        self.bytes_across += sum(size for size, member in to if self.nodes[member] != here)

    def _run(
        self, what: str, group: Communicator, step: int | None, start: Callable[[], Work], *, num_bytes: int
    ) -> None:
        moment = (0, 0) if step is None else (step, self._round())
        with self.reducer.recorded(what, *moment, group.members, num_bytes) as operation:
            self.reducer.wait_for(start(), operation)


class _Room:
    """Room for row numbers in the calls that start an operation, so that few lookups need a second message.

    Its `size`, in row numbers, is computed from earlier requests and equal on all members of the group.
    """

    def __init__(self) -> None:
        self.size = 0
        self.longest: dict[int, int] = {}  # the most rows requested from one member in each table's last lookup

    def used_by(self, counts: torch.Tensor) -> torch.Tensor:
        """Return which entries of the room are used, bool [members, size]: the first `counts[m]` for member m."""
        return torch.arange(self.size) < counts[:, None]

    def fit(self) -> None:
        """After a step, if the room is too small or 4 times too large, make it 5/4 of what was needed."""
        needed = max((one for one in self.longest.values() if one <= ROOM), default=0)
        if not needed <= self.size <= 4 * needed:
            self.size = min(ROOM, (needed + needed // 4 + 15) // 16 * 16)


def _communicator(world: World, members: tuple[int, ...]) -> Communicator:
    return world.communicator(members, name=NAME) if world.has(members, name=NAME) else world.create(members, name=NAME)
