"""Wire: the collectives of tables, on communicators of their own, with deadlines, and the bytes that they send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from preduce.runtime.sharding.calls import LENGTH, Call, Met
from preduce.runtime.transport.waiting import GoneError
from preduce.topo.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preduce.runtime.averaging.reducer import Reducer
    from preduce.runtime.transport.communicators import Communicator
    from preduce.runtime.transport.waiting import RunningWork
    from preduce.runtime.transport.worlds import World
    from preduce.topo.cluster import Cluster

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
    """

    def __init__(self, reducer: Reducer, cluster: Cluster, *, coalesces: bool) -> None:
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
        self.bytes_inside = self.bytes_across = 0
        """What this worker sent so far, to others on its node and on other nodes."""

    def collectors(self) -> torch.Tensor:
        """The place on this node of the worker that collects the rows of each worker, int64 [workers].

        It is the worker with the owner's place on its node, so that a row crosses once for each node; where this node
        has fewer workers they are dealt anew.
        """
        size = 1 if self.node is None else self.node.size
        seen: dict[int, int] = {}
        places = []
        for node in self.nodes:
            places.append(seen.get(node, 0))
            seen[node] = places[-1] + 1
        return torch.tensor(places) % size

    def meet(self, group: Communicator, call: Call, counts: torch.Tensor, round_: int) -> Met:
        """Tell all members of a group what this worker does, and hear what they do.

        Args:
            group: who tells.
            call: what this worker does.
            counts: rows of each table for each member, int64 [members, tables].
            round_: for reports.

        Raises:
            PeerLostError: a member is gone.
        """
        mine = torch.cat([call.numbers().expand(group.size, LENGTH), counts], dim=1).contiguous()
        theirs = torch.empty_like(mine)
        each = [mine.shape[1]] * group.size
        self._run(
            f"tables: {call.kind.name.lower()}",
            group,
            (call.step, round_),
            lambda: group.all_to_all(theirs.view(-1), mine.view(-1), each, each),
            num_bytes=mine.nbytes,
        )
        self._count(group, [8 * mine.shape[1]] * group.size)
        calls = {rank: Call.read(row[:LENGTH]) for rank, row in zip(group.members, theirs, strict=True)}
        return Met(calls, theirs[:, LENGTH:])

    def swap(
        self,
        what: str,
        group: Communicator,
        rows: torch.Tensor,
        sends: Sequence[int],
        receives: Sequence[int],
        *,
        moment: Moment,
    ) -> torch.Tensor:
        """Hand rows to the members of a group, `sends` to each in order of places; returns theirs, in the same order.

        Raises:
            PeerLostError: a member is gone.
        """
        theirs = rows.new_empty((sum(receives), *rows.shape[1:]))
        width = rows.element_size() * (rows.shape[1:].numel())
        source, target = rows.contiguous().view(-1).view(torch.uint8), theirs.view(-1).view(torch.uint8)
        out, back = [width * count for count in sends], [width * count for count in receives]
        self._run(what, group, moment, lambda: group.all_to_all(target, source, back, out), num_bytes=rows.nbytes)
        self._count(group, out)
        return theirs

    def broadcast(self, array: torch.Tensor) -> None:
        """Copy worker 0's array into everybody's.

        Raises:
            PeerLostError: a worker is gone.
        """
        self._run(
            "initial table", self.everyone, (0, 0), lambda: self.everyone.broadcast(array), num_bytes=array.nbytes
        )

    def gather(self, what: str, rows: torch.Tensor, lengths: Sequence[int], *, moment: Moment) -> list[torch.Tensor]:
        """The bytes of all workers, whose lengths are known; they travel around a ring.

        Raises:
            PeerLostError: a member is gone.
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

    def _count(self, group: Communicator, sent: Sequence[int]) -> None:
        own = group.members[group.place]
        for member, num_bytes in zip(group.members, sent, strict=True):
            if self.nodes[member] != self.nodes[own]:
                self.bytes_across += num_bytes
            elif member != own:
                self.bytes_inside += num_bytes

    def _run(
        self,
        what: str,
        group: Communicator,
        moment: Moment,
        start: Callable[[], RunningWork],
        *,
        num_bytes: int,
    ) -> None:
        reducer = self.reducer
        operation = reducer.recorder.begin(what, *moment, group.members, num_bytes)
        try:
            reducer.wait_for(start(), operation)
        except (RuntimeError, GoneError, UnavailableError) as error:
            raise reducer.failure(operation, error) from None
        reducer.recorder.end(operation)
        reducer.heartbeat.doing(f"finished {operation}")


def _made(world: World, members: tuple[int, ...]) -> Communicator:
    """The tables' communicator of these workers; one world makes it once."""
    return world.communicator(members, name=NAME) if world.has(members, name=NAME) else world.create(members, name=NAME)
