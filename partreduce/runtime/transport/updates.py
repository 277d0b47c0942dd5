"""Updates: a worker's parameters as they were at one step, on their way to its out-neighbors.

They are copied once a step for all neighbors, into memory that is used again (`arrays.Snapshots`): what travels never
changes, and training continues at once. Large ones travel in parts of `PART_BYTES`, so that libzmq asks for memory that
the C library keeps: beyond 32 MB glibc takes every array from the system again, and a bare transfer of 50 MB took 30 ms
where its memory had to be touched for the first time, 17 ms where not. Smaller parts, of which the first would travel
while the next is copied, cost more in messages than they hide.

Averaging goes part by part, too: a part stays in the processor's cache while the parts of all neighbors are added to
it, straight from the memory in which they came.

Source: Hop (Luo et al., ASPLOS 2019), section 6.1, for what is kept of an update; Theorem 2 for how many there can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from partreduce.runtime.transport.arrays import Snapshots
from partreduce.runtime.transport.credit import Bound
from partreduce.runtime.transport.mailbox import Mailbox
from partreduce.runtime.transport.streams import Streams, await_mark
from partreduce.runtime.transport.weights import unit_weights

PART_BYTES = 16 * 2**20
"""The most that one message holds of an update."""
ALIGNED = 16
"""Parts begin at multiples of so many numbers."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive numbers of one array of the flat model."""

    array: int
    start: int
    end: int


class Layout:
    """How the arrays of a flat model are cut into parts; equal on all workers, whose models have the same arrays.

    Args:
        arrays: the flat model's, or any of the same sizes and types.
        part_bytes: the most that one part holds, by default `PART_BYTES`; small arrays share a part.
    """

    def __init__(self, arrays: Sequence[torch.Tensor], part_bytes: int | None = None) -> None:
        part_bytes = part_bytes or PART_BYTES
        self.dtypes = tuple(array.dtype for array in arrays)
        self.num_bytes = sum(array.nbytes for array in arrays)
        self.parts: list[list[Piece]] = [[]]
        """What each message of an update holds; at least one, which may be empty."""
        room = part_bytes
        for index, array in enumerate(arrays):
            for piece in _cut(index, array, part_bytes):
                size = (piece.end - piece.start) * array.element_size()
                if size > room and self.parts[-1]:
                    self.parts.append([])
                    room = part_bytes
                self.parts[-1].append(piece)
                room -= size

    def __len__(self) -> int:
        """How many messages an update is."""
        return len(self.parts)

    def pieces(self) -> Iterator[Piece]:
        """All pieces, in the order in which they travel."""
        for part in self.parts:
            yield from part

    def bound(self, capacities: Sequence[int], small: int) -> Bound:
        """What may be on the way between two neighbors: one that keeps the protocol never waits for room.

        At most a proved capacity of updates is on the way to either side and `small` other messages. Twice
        as much may be, as up to half of it may have been dealt with and not granted (see `credit`).
        """
        most = max(capacities, default=1)
        return Bound(2 * (most * len(self) + small), 2 * max(most * self.num_bytes, 1))


def _cut(index: int, array: torch.Tensor, part_bytes: int) -> list[Piece]:
    """An array in the fewest nearly equal pieces that are no larger than a part."""
    size = array.numel()
    most = max(part_bytes // array.element_size() // ALIGNED * ALIGNED, ALIGNED)
    count = math.ceil(size / most)
    step = math.ceil(size / max(count, 1) / ALIGNED) * ALIGNED
    return [Piece(index, start, min(start + step, size)) for start in range(0, size, max(step, 1))]


class UpdateSender:
    """What sends a worker's updates; one snapshot for all neighbors.

    Snapshots have memory for one update more than the largest capacity among the out-neighbors' rings: an older one
    has left, or its receiver would be further behind than was proved. Only where a backup worker is so slow that more
    are on their way to somebody who needs none of them there may be more, up to what the mailbox lets out (`credit`).
    From a device they are copied into pinned memory on a side stream, and the host waits for that copy and for nothing
    else of the device.

    Args:
        mailbox: what sends.
        layout: of the arrays.
        capacity: the largest among the out-neighbors' rings.
        streams: of the arrays' device.
    """

    def __init__(self, mailbox: Mailbox, layout: Layout, *, capacity: int, streams: Streams | None = None) -> None:
        self.mailbox, self.layout = mailbox, layout
        self._streams = streams or Streams()
        self._snapshots = [Snapshots(self._streams, capacity + 1) for _ in layout.parts]

    @property
    def num_bytes(self) -> int:
        """The memory of snapshots, in use or not."""
        return sum(snapshots.num_bytes for snapshots in self._snapshots)

    def send(self, kind: str, arrays: Sequence[torch.Tensor], numbers: Mapping[int, Sequence[int]]) -> None:
        """Send the arrays as they are now to each neighbor that has numbers; afterwards they may change.

        Each part comes as a message with the numbers (part, *numbers of that neighbor).

        Raises:
            UnavailableError, PeerGoneError: as `Mailbox.send`.
        """
        for index, views in enumerate(self._copied(arrays)):
            frames = [self.mailbox.shared(view) for view in views]
            del views
            for neighbor, own in numbers.items():
                self.mailbox.send(neighbor, kind, (index, *own), frames)

    def _copied(self, arrays: Sequence[torch.Tensor]) -> Iterator[list[memoryview]]:
        """The parts of a snapshot, each as soon as it is there."""
        streams = self._streams
        if not streams.runs_ahead:
            for index in range(len(self.layout)):
                yield self._take(index, arrays)
            return
        with streams.side():
            queued = [(self._take(index, arrays), streams.mark()) for index in range(len(self.layout))]
        streams.rejoin()
        queued.reverse()
        while queued:
            views, mark = queued.pop()
            await_mark(mark)
            yield views

    def _take(self, index: int, arrays: Sequence[torch.Tensor]) -> list[memoryview]:
        part = self.layout.parts[index]
        return self._snapshots[index].take([arrays[piece.array][piece.start : piece.end] for piece in part])


def add_updates(
    arrays: Sequence[torch.Tensor],
    updates: Sequence[Sequence[torch.Tensor]],
    weights: Sequence[Fraction | float],
    layout: Layout,
    *,
    into: Sequence[torch.Tensor] | None = None,
    streams: Streams | None = None,
) -> None:
    """Make each array the weighted updates plus itself times what is left of 1, in place.

    With `into` (which may be the arrays) they stay as they are, and what is to be added to them is written there.
    `updates` are what `PayloadRings.take` or `look` gave: of each, the pieces in the order of the layout, on the host.
    On a device the sums run on a side stream, for which the user's then waits; the host runs ahead.
    """
    streams = streams or Streams()
    with torch.no_grad(), streams.side():
        for place, piece in enumerate(layout.pieces()):
            array = arrays[piece.array][piece.start : piece.end]
            target = array if into is None else into[piece.array][piece.start : piece.end]
            own_weight, rounded = unit_weights(weights, target.dtype)
            torch.mul(array, own_weight - (into is not None), out=target)
            for update, weight in zip(updates, rounded, strict=True):
                target.add_(streams.stage(update[place], target.device), alpha=weight)
    streams.rejoin()
