"""Send a worker's parameters of one step (an update) to its out-neighbors, and store received updates.

The parameters are copied once per step for all neighbors, into reused memory (`array_frames.Snapshots`), so that data
in flight never change and training continues at once. Large updates are sent in parts of `PART_BYTES`, so that libzmq
requests memory that the C library caches; beyond 32 MB glibc requests every array from the system again, which made a
transfer of 50 MB take 30 ms instead of 17 ms. Smaller parts cost more in messages than they hide.

Received updates wait in ring buffers, whose capacity is proved to suffice (`verify.gap_bounds`), until the protocol
decides which are averaged. A ring holds the frames into which libzmq received; a copy to other memory (`recv_into`)
took 1.2 to 1.5 times as long for 2 to 50 MB. Averaging proceeds part by part: a part stays in the CPU's cache while the
parts of all neighbors are added to it.

Source: Hop (Luo et al., ASPLOS 2019), section 6.1, for what is stored of an update; Theorem 2 for their maximal number.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import torch

from partreduce.runtime.transport.array_frames import Snapshots, frame_of, tensor_of
from partreduce.runtime.transport.mailbox import Bound, Mailbox
from partreduce.runtime.transport.streams import Streams, await_mark
from partreduce.runtime.transport.weights import unit_weights
from partreduce.topo.errors import PartreduceError

PART_BYTES = 16 * 2**20  # largest part of an update in one message
ALIGNED = 16  # parts start at multiples of this many elements


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of elements of one array of the flat model (all parameters in few arrays); `array` is its index."""

    array: int
    start: int
    end: int


class Layout:
    """Division of a flat model's arrays into parts, each sent as one message; equal on all workers.

    A part has at most `part_bytes`, by default `PART_BYTES`; small arrays share a part.
    """

    def __init__(self, arrays: Sequence[torch.Tensor], part_bytes: int | None = None) -> None:
        part_bytes = part_bytes or PART_BYTES
        self.dtypes = tuple(array.dtype for array in arrays)
        self.num_bytes = sum(array.nbytes for array in arrays)
        self.parts: list[list[Piece]] = [[]]  # pieces of each message; there is at least one
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
        return len(self.parts)

    def pieces(self) -> Iterator[Piece]:
        """Yield all pieces of all parts, in the order in which they are sent."""
        for part in self.parts:
            yield from part

    def bound(self, capacities: Sequence[int], small: int) -> Bound:
        """Return the limit of messages in flight between two neighbors, which the protocol never reaches.

        `capacities` are proved maxima of updates in flight, for each direction, `small` the maximum of other messages.
        The limit is twice what is in flight, as half of it may be processed but not reported yet (see `mailbox`).
        """
        most = max(capacities, default=1)
        return Bound(2 * (most * len(self) + small), 2 * max(most * self.num_bytes, 1))


def _cut(index: int, array: torch.Tensor, part_bytes: int) -> list[Piece]:
    """Divide an array, number `index`, into the fewest nearly equal pieces of at most `part_bytes`."""
    size = array.numel()
    most = max(part_bytes // array.element_size() // ALIGNED * ALIGNED, ALIGNED)
    count = math.ceil(size / most)
    step = math.ceil(size / max(count, 1) / ALIGNED) * ALIGNED
    return [Piece(index, start, min(start + step, size)) for start in range(0, size, max(step, 1))]


class UpdateSender:
    """Sender of a worker's updates (its parameters of one step) to its out-neighbors, all from one copy, the snapshot.

    It uses at most `capacity` + 1 snapshots, where `capacity` is the most updates that an out-neighbor stores (see
    `PayloadRings`): older snapshots have been received, since no receiver is further behind than proved. Only a
    neighbor that is slow and not waited for (Hop's backup workers) can need more, up to the mailbox's bound. On a
    device, snapshots are copied to pinned memory in a side stream, and the host waits for that copy only.
    """

    def __init__(self, mailbox: Mailbox, layout: Layout, *, capacity: int, streams: Streams | None = None) -> None:
        self.mailbox, self.layout = mailbox, layout
        self._streams = streams or Streams()
        self._snapshots = [Snapshots(self._streams, capacity + 1) for _ in layout.parts]

    @property
    def num_bytes(self) -> int:
        return sum(snapshots.num_bytes for snapshots in self._snapshots)

    def send(self, kind: str, arrays: Sequence[torch.Tensor], numbers: Mapping[int, Sequence[int]]) -> None:
        """Send a snapshot of the arrays to each neighbor in `numbers`; afterwards the arrays may change.

        Each part is a message of this `kind` with the integers (part, *numbers of that neighbor); see `Mailbox.send`.
        """
        for index, views in enumerate(self._copy_parts(arrays)):
            frames = [self.mailbox.shared(view) for view in views]
            del views
            for neighbor, own in numbers.items():
                self.mailbox.send(neighbor, kind, (index, *own), frames)

    def _copy_parts(self, arrays: Sequence[torch.Tensor]) -> Iterator[list[memoryview]]:
        """Yield the bytes of each part of a new snapshot, as soon as that part is copied."""
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


class PlaceTakenError(PartreduceError):
    """Error for an update without a free slot in its ring buffer: the sender or this worker violated the protocol."""


class Arrival(Enum):
    """What became of an update after one of its parts arrived: incomplete, stored, or too late."""

    MORE = "more parts of this update are to come"
    KEPT = "the update is complete and has its place"
    LATE = "the update is complete, no worker needs it any more, and it was dropped"


class PayloadRings:
    """Ring buffers of updates that in-neighbors have sent ahead to `worker`; one thread adds, another takes them.

    The ring of each in-neighbor has a proved number of slots, `capacities`, each for the frames of one step; tokens and
    acknowledgements inform senders of free slots. An update without a free slot is dropped if it is late, else an
    error. With staleness (`newest_only`) a ring has one slot, and a newer update replaces an older one. An update
    counts once its last part has arrived. Taking an update frees its slot; the caller then owns the memory.
    """

    def __init__(
        self, worker: int, capacities: Mapping[int, int], layout: Layout, *, newest_only: bool = False
    ) -> None:
        assert all(capacity >= 1 for capacity in capacities.values()), "an update that is sent needs a place"
        self.worker, self.newest_only = worker, newest_only
        self._dtypes = [layout.dtypes[piece.array] for piece in layout.pieces()]
        self._num_parts = len(layout)
        self._capacities = {source: 1 if newest_only else capacity for source, capacity in capacities.items()}
        self._rings: dict[int, dict[int, Sequence[Any]]] = {source: {} for source in capacities}
        """Frames by in-neighbor and step."""
        self._arriving: dict[int, tuple[int, list[Any]]] = {}
        self._lock = threading.Lock()
        self._before = 0
        self.num_bytes = 0
        self.most_bytes = 0  # maximum of `num_bytes` so far
        self.dropped = 0  # number of updates that were late or replaced by newer ones

    def receive(self, source: int, step: int, part: int, payload: Sequence[Any]) -> Arrival:
        """Store part `part` of the update of `step` from `source`, without a copy; return what became of the update.

        Parts arrive in order. Raises PlaceTakenError if the update's slot is not free.
        """
        with self._lock:
            if part == 0:
                self._forget_arriving(source)
                if not self._is_late(source, step):
                    self._check_if_not_proved(source, step)
                self._arriving[source] = (step, [])
            begun, frames = self._arriving.get(source, (None, []))
            if begun == step:  # not if the rings were cleared meanwhile
                frames.extend(payload)
                self._count(_size(payload))
                if self._is_late(source, step):
                    self._forget_arriving(source)
            if part + 1 < self._num_parts:
                return Arrival.MORE
            self._forget_arriving(source)
            if len(frames) < len(self._dtypes):
                self.dropped += 1
                return Arrival.LATE
            return self._put(source, step, frames)

    def take(self, source: int, step: int) -> list[torch.Tensor]:
        """Remove the update of `step` from `source`; return its one-dimensional pieces, in order of `Layout.pieces`."""
        with self._lock:
            payload = self._payload(source, step)
            self._free(source, [step])
        return self._tensors(payload)

    def peek(self, source: int, step: int | None = None) -> list[torch.Tensor]:
        """Return the pieces of an update from `source`, by default the newest, without removing it (see `take`)."""
        with self._lock:
            payload = self._payload(source, max(self._rings[source]) if step is None else step)
        return self._tensors(payload)

    def retire(self, before: int) -> None:
        """Drop updates of steps before `before`, which frees their slots; call it before in-neighbors may send more."""
        with self._lock:
            self._before = max(self._before, before)
            for source, ring in self._rings.items():
                self._free(source, [held for held in ring if held < before])

    def steps(self, source: int) -> tuple[int, ...]:
        """Return the steps whose updates from an in-neighbor have arrived, ascending."""
        with self._lock:
            return tuple(sorted(self._rings[source]))

    def fill(self) -> dict[int, tuple[int, int]]:
        """Return, by rank, the number of used slots and of all slots in each in-neighbor's ring."""
        with self._lock:
            return {source: (len(ring), self._capacities[source]) for source, ring in self._rings.items()}

    def restore(self, source: int, step: int, tensors: Sequence[torch.Tensor]) -> None:
        with self._lock:
            self._put(source, step, [frame_of(tensor.clone()) for tensor in tensors])

    def clear(self, before: int = 0) -> None:
        with self._lock:
            for source, ring in self._rings.items():
                self._free(source, list(ring))
                self._forget_arriving(source)
            self._before = before

    # All methods below are called with the lock held.

    def _put(self, source: int, step: int, payload: Sequence[Any]) -> Arrival:
        if self._is_late(source, step):
            self.dropped += 1
            return Arrival.LATE
        self._check_if_not_proved(source, step)
        if self.newest_only and self._rings[source]:
            self.dropped += 1
            self._free(source, list(self._rings[source]))
        self._rings[source][step] = payload
        self._count(_size(payload))
        return Arrival.KEPT

    def _free(self, source: int, steps: Iterable[int]) -> None:
        for step in steps:
            self._count(-_size(self._rings[source].pop(step)))

    def _forget_arriving(self, source: int) -> None:
        """Drop the parts of an update from `source` that has not arrived completely; no longer count their bytes."""
        _, frames = self._arriving.pop(source, (None, []))
        self._count(-_size(frames))

    def _is_late(self, source: int, step: int) -> bool:
        return step < self._before or (self.newest_only and step <= max(self._rings[source], default=-1))

    def _check_if_not_proved(self, source: int, step: int) -> None:
        capacity = self._capacities[source]
        place = step % capacity
        there = next((held for held in self._rings[source] if held % capacity == place), None)
        if self.newest_only or (there is None and step < self._before + capacity):
            return
        why = (
            f"place {place} of {capacity} holds that of step {there}, which is still needed"
            if there is not None
            else f"there are {capacity} places, and step {self._before} is not over (place {place} is free)"
        )
        raise PlaceTakenError(
            f"worker {self.worker}: the update of step {step} from worker {source} came although {why}; a worker went "
            "further ahead than was proved"
        )

    def _payload(self, source: int, step: int) -> Sequence[Any]:
        assert step in self._rings[source], f"worker {self.worker} has no update of step {step} from worker {source}"
        return self._rings[source][step]

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.most_bytes = max(self.most_bytes, self.num_bytes)

    def _tensors(self, payload: Sequence[Any]) -> list[torch.Tensor]:
        return [tensor_of(frame, dtype) for frame, dtype in zip(payload, self._dtypes, strict=True)]


def _size(frames: Sequence[Any]) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)


def add_updates(
    arrays: Sequence[torch.Tensor],
    updates: Sequence[Sequence[torch.Tensor]],
    weights: Sequence[Fraction | float],
    layout: Layout,
    *,
    into: Sequence[torch.Tensor] | None = None,
    streams: Streams | None = None,
) -> None:
    """Set each array x to Σ_j w_j · u_j + (1 − Σ_j w_j) · x, in place, with neighbors' updates u_j and `weights` w_j.

    With `into` the arrays are unchanged, and the change of each is written there (`into` may be the arrays themselves).
    Each update is a list of pieces on the host from `PayloadRings.take` or `peek`. On a device the sums run in a side
    stream, for which the current stream waits.
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
