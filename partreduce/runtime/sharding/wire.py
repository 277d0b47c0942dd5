"""Wire: the collectives of tables, on communicators of their own, with deadlines, and the bytes that they send.

The message in which workers tell each other what they do has room for the numbers of the rows that they ask for, so
that a lookup usually needs no exchange for these. All members of a group know how much room there is: it follows from
the most rows that any of them asked of another in the steps before, which each of them tells all. Where somebody asks
for more, which all hear as well, the numbers travel by themselves afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.sharding.calls import LENGTH, LONGEST, Call, Kind, Met
from partreduce.runtime.sharding.columns import dealt, put_together, width_of
from partreduce.runtime.transport.communicators import Communicator, goes_in_rounds, rounds
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.runtime.transport.work import Work, in_thread
from partreduce.runtime.transport.worlds import World
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import UnavailableError
from partreduce.topo.timing.tables import ROOM

Moment = tuple[int, int]
"""The step and the round that something is part of, for reports."""

NAME = "tables"
"""The name of the communicators that only tables use, so that nothing else comes between two of their messages."""


class Wire:
    """One worker's collectives with all workers, and with those of its node where rows are coalesced there first.

    Args:
        reducer: knows the others' signs of life, and ends the run where one of them is gone.
        cluster: which worker is on which node.
        coalesces: whether a node's workers first agree on the rows that several of them touch.
        gathers: whether a table is gathered, from all workers by all.
    """

    def __init__(self, reducer: Reducer, cluster: Cluster, *, coalesces: bool, gathers: bool = False) -> None:
        self.reducer = reducer
        world, rank = reducer.world, reducer.world.rank
        self.rank = rank
        self.nodes = cluster.node_of().tolist()
        self.everyone = _made(world, tuple(range(world.size)))
        mates = tuple(other for other, node in enumerate(self.nodes) if node == self.nodes[rank])
        sizes = {self.nodes.count(node) for node in self.nodes}
        self.coalesces = coalesces and 1 < max(sizes) < world.size
        self.node = _made(world, mates) if self.coalesces and len(mates) > 1 else None
        """The workers of this node; None where rows are not coalesced, or it is alone on its node."""
        self._node_size = max(sizes)
        self._places = _places_on_nodes(self.nodes)
        self.owners = self.everyone
        """Those from whom this worker asks rows, and to whom it brings gradients: all workers. Where the nodes are
        equally large and coalesce, a collector and the owners for whom it collects have the same place on their nodes,
        and only they talk: 3 messages instead of 15 for 4 nodes of 4."""
        if self.coalesces and len(sizes) == 1 and not gathers:
            self.owners = _made(world, tuple(r for r in range(world.size) if self._places[r] == self._places[rank]))
        of_nodes = [[r for r, node in enumerate(self.nodes) if node == self.nodes[m]] for m in self.owners.members]
        self._spoken_for = torch.tensor([r for mates in of_nodes for r in mates]).argsort()
        """Where each worker's call stands among those that `owners` pass on, int64 [workers]; one of each node does."""
        self._rooms: dict[tuple[int, ...], _Room] = {}
        self.bytes_inside = self.bytes_across = 0
        """What this worker sent so far, to others on its node and on other nodes."""

    def collectors(self) -> torch.Tensor:
        """The place on this node of the worker that collects the rows of each worker, int64 [workers].

        It is the worker with the owner's place on its node, so that a row crosses once for each node; where this node
        has fewer workers they are dealt again.
        """
        size = 1 if self.node is None else self.node.size
        return torch.tensor(self._places) % size

    def places_among_owners(self) -> torch.Tensor:
        """The place in `owners` of each worker, as far as rows of it go through this worker, int64 [workers]."""
        if self.owners is self.everyone:
            return torch.arange(len(self.nodes))
        on_node = {self.nodes[member]: place for place, member in enumerate(self.owners.members)}
        return torch.tensor([on_node[node] for node in self.nodes])

    def meet(
        self,
        group: Communicator,
        call: Call,
        counts: torch.Tensor,
        round_: int,
        asked: torch.Tensor | None = None,
        *,
        brings: int = 0,
        mates: Met | None = None,
    ) -> Met:
        """Tell all members of a group what this worker does, and hear what they do.

        Args:
            group: who tells.
            call: what this worker does.
            counts: for each member and table 0, or 1 more than its rows, int64 [members, tables].
            round_: for reports.
            asked: the rows that this worker asks for in a lookup, of one table, in order of members.
            brings: the most bytes that it brings to one member afterwards.
            mates: what the workers of this node said before, who do not all talk to this group themselves.

        Raises:
            PeerFailedError: a member is gone.
        """
        room = self._rooms.setdefault(group.members, _Room())
        said = call.numbers()[None] if mates is None or group is self.everyone else mates.said.clone()
        said[:, LONGEST] = 0
        said[0, LONGEST] = brings
        calls = said.numel()
        told = calls + counts.shape[1]
        mine = counts.new_zeros(group.size, told + room.size // 2)
        mine[:, calls:told] = counts
        if asked is not None:
            each = (counts.sum(1) - (counts > 0).sum(1)).clamp(min=0)
            said[0, LONGEST] = longest = each.max()
            if len(asked) and int(longest) <= room.size:
                mine.view(torch.int32)[:, 2 * told :][room.used_by(each)] = asked.to(torch.int32)
        mine[:, :calls] = said.view(-1)
        theirs = torch.empty_like(mine)
        sizes = [mine.shape[1]] * group.size
        self._run(
            f"tables: {call.kind.name.lower()}",
            group,
            (call.step, round_),
            lambda: group.all_to_all(theirs.view(-1), mine.view(-1), sizes, sizes),
            num_bytes=mine.nbytes,
        )
        self._count(group, [8 * mine.shape[1]] * group.size)
        met = self._heard(group, theirs[:, :calls].reshape(-1, LENGTH), theirs[:, calls:told])
        did, ids = met.agreed, None
        if did is not None and did.kind is Kind.LOOKUP:
            most = met.longest
            if most <= room.size:
                used = room.used_by((met.counts[:, did.table] - 1).clamp(min=0))
                ids = theirs.view(torch.int32)[:, 2 * told :][used].long()
            room.longest[did.table] = most
        elif did is not None and did.kind is Kind.STEP:
            room.fit()
        met.ids = ids
        return met

    def _heard(self, group: Communicator, said: torch.Tensor, counts: torch.Tensor) -> Met:
        """The calls of all for whom the members of a group spoke, by rank, and the members' counts."""
        if len(said) == group.size:
            return Met(group.members, said, counts)
        return Met(self.everyone.members, said[self._spoken_for], counts)

    def swap(
        self,
        what: str,
        group: Communicator,
        rows: torch.Tensor,
        sends: Sequence[int],
        receives: Sequence[int],
        *,
        moment: Moment,
        longest: int = 0,
    ) -> torch.Tensor:
        """Hand rows to the members of a group, `sends` to each in order of places; returns theirs, in the same order.

        `longest` is what all know to be the most rows that any of them sends to another; if these are long, they go in
        rounds of pairs, except inside a node.

        Raises:
            PeerFailedError: a member is gone.
        """
        theirs = rows.new_empty((sum(receives), *rows.shape[1:]))
        width = width_of(rows)
        source, target = rows.contiguous().view(-1).view(torch.uint8), theirs.view(-1).view(torch.uint8)
        out, back = [width * count for count in sends], [width * count for count in receives]

        def start() -> Work:
            if self._crosses(group) and goes_in_rounds(longest * width, group.size, self._node_size):
                return in_thread(rounds(group, target, source, back, out))
            return group.all_to_all(target, source, back, out)

        self._run(what, group, moment, start, num_bytes=rows.nbytes)
        self._count(group, out)
        return theirs

    def swap_with_word(
        self,
        what: str,
        group: Communicator,
        rows: torch.Tensor,
        sends: Sequence[int],
        receives: Sequence[int],
        *,
        word: int,
        moment: Moment,
        longest: int = 0,
    ) -> tuple[torch.Tensor, list[int]]:
        """The same, with a number of four bytes before the rows for each member; returns theirs, and their numbers.

        Raises:
            PeerFailedError: a member is gone.
        """
        columns = [torch.full((group.size, 1), word, dtype=torch.int32), rows]
        message, out = dealt(columns, torch.tensor([[1, count] for count in sends]))
        counts = torch.tensor([[1, count] for count in receives])
        back = (counts * torch.tensor([width_of(column) for column in columns])).sum(1).tolist()
        most = longest and 4 + longest * width_of(rows)
        came = self.swap(what, group, message, out, back, moment=moment, longest=most)
        words, theirs = put_together(came, counts, columns)
        return theirs, words.view(-1).tolist()

    def broadcast(self, array: torch.Tensor) -> None:
        """Copy worker 0's array into everybody's.

        Raises:
            PeerFailedError: a worker is gone.
        """
        with self.reducer.heartbeat.exchange():
            self._run(
                "initial table", self.everyone, (0, 0), lambda: self.everyone.broadcast(array), num_bytes=array.nbytes
            )

    def gather(self, what: str, rows: torch.Tensor, lengths: Sequence[int], *, moment: Moment) -> list[torch.Tensor]:
        """The bytes of all workers, whose lengths are known; they travel around a ring.

        Raises:
            PeerFailedError: a member is gone.
        """
        group, longest = self.everyone, max(lengths)
        if longest == 0:
            return [rows] * group.size
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(rows)] = rows
        gathered = torch.empty(group.size * longest, dtype=torch.uint8)
        self._run(what, group, moment, lambda: group.all_gather(gathered, padded), num_bytes=padded.nbytes)
        next_one = group.members[(group.place + 1) % group.size]
        sent = (group.size - 1) * longest
        if self.nodes[next_one] == self.nodes[group.members[group.place]]:
            self.bytes_inside += sent
        else:
            self.bytes_across += sent
        return [part[:length] for part, length in zip(gathered.view(group.size, longest), lengths, strict=True)]

    def _crosses(self, group: Communicator) -> bool:
        """Whether anything of this group crosses from one node to another."""
        return group is not self.node and len(set(self.nodes)) > 1

    def _count(self, group: Communicator, sent: Sequence[int]) -> None:
        here = self.nodes[self.rank]
        across = sum(size for size, member in zip(sent, group.members, strict=True) if self.nodes[member] != here)
        self.bytes_across += across
        self.bytes_inside += sum(sent) - across - sent[group.place]

    def _run(
        self,
        what: str,
        group: Communicator,
        moment: Moment,
        start: Callable[[], Work],
        *,
        num_bytes: int,
    ) -> None:
        reducer = self.reducer
        operation = reducer.recorder.begin(what, *moment, group.members, num_bytes)
        try:
            reducer.wait_for(start(), operation)
        except (RuntimeError, PeerGoneError, UnavailableError) as error:
            raise reducer.failure(operation, error) from None
        reducer.recorder.end(operation)
        reducer.heartbeat.doing(f"finished {operation}")


class _Room:
    """How many row numbers a group's messages have room for, as all members know; it follows what was asked for."""

    def __init__(self) -> None:
        self.size = 0
        self.longest: dict[int, int] = {}
        """The most rows that a member asked of another in the last lookup of each table."""

    def used_by(self, counts: torch.Tensor) -> torch.Tensor:
        """The places that so many numbers of each member take, bool [members, size]."""
        return torch.arange(self.size) < counts[:, None]

    def fit(self) -> None:
        """After a step: have room for a quarter more than was asked for; too many numbers travel by themselves."""
        needed = max((one for one in self.longest.values() if one <= ROOM), default=0)
        if not needed <= self.size <= 4 * needed:
            self.size = min(ROOM, (needed + needed // 4 + 15) // 16 * 16)


def _places_on_nodes(nodes: Sequence[int]) -> list[int]:
    """Of each worker how many of its node come before it."""
    seen: dict[int, int] = {}
    places = []
    for node in nodes:
        places.append(seen.get(node, 0))
        seen[node] = places[-1] + 1
    return places


def _made(world: World, members: tuple[int, ...]) -> Communicator:
    """The tables' communicator of these workers; one world makes it once."""
    return world.communicator(members, name=NAME) if world.has(members, name=NAME) else world.create(members, name=NAME)
