"""Payload rings: the updates that a worker's in-neighbors sent ahead of it, in as many places as were proved to do.

The protocol object counts updates; their numbers lie here. An in-neighbor's ring has exactly the proved
capacity (`verify.gap_bounds`), and the update of step k lies in place k mod capacity (Hop, section 6.1). Steps are
compared before a place is written, so that an update that does not fit is noticed and replaces nothing: it is late and
dropped, or, where every sender keeps the protocol, cannot be. Under staleness one place does: the newest replaces.

An update comes in parts (see `updates`), so that its sender need not copy all of it before any of it travels; it counts
as here when its last part is. A place holds the frames into which libzmq received, and nothing is copied. To receive
into memory of one's own (`recv_into`) is one more copy, because libzmq receives into its own memory in any case; it
took 1.2 to 1.5 times as long for 2 to 50 MB. So a place that is taken or read can be filled again at once: who reads it
has the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from partreduce.runtime.transport.arrays import frame_of, tensor_of
from partreduce.runtime.transport.updates import Layout
from partreduce.topo.errors import PartreduceError


class PlaceTakenError(PartreduceError):
    """An update came for which its ring cannot have a place: its sender, or this worker, broke the protocol."""


class Arrival(Enum):
    """What came of a part of an update."""

    MORE = "more parts of this update are to come"
    KEPT = "the update is complete and has its place"
    LATE = "the update is complete, nobody needs it any more, and it was dropped"


class PayloadRings:
    """The rings of one worker; one thread puts in what comes while another takes and reads.

    Args:
        worker: whose rings these are, for errors.
        capacities: each in-neighbor's proved capacity, at least 1.
        layout: how an update is cut into parts, the same on all workers.
        newest_only: one place for each in-neighbor, in which a newer update replaces an older one.
    """

    def __init__(
        self,
        worker: int,
        capacities: Mapping[int, int],
        layout: Layout,
        *,
        newest_only: bool = False,
    ) -> None:
        assert all(capacity >= 1 for capacity in capacities.values()), "an update that is sent needs a place"
        self.worker, self.newest_only = worker, newest_only
        self._dtypes = [layout.dtypes[piece.array] for piece in layout.pieces()]
        self._num_parts = len(layout)
        self._rings = {source: _Ring(1 if newest_only else capacity) for source, capacity in capacities.items()}
        self._lock = threading.Lock()
        self._before = 0
        self._arriving: dict[int, tuple[int, list[Any]]] = {}
        self.num_bytes = 0
        """Held now."""
        self.most_bytes = 0
        """The most that was ever held."""
        self.dropped = 0
        """How many updates came too late, or were replaced by newer ones."""

    def receive(self, source: int, step: int, part: int, payload: Sequence[Any]) -> Arrival:
        """Take in one part of an update; those of one update come in order, and so do the updates of one sender.

        Its memory belongs to the ring from now on.

        Raises:
            PlaceTakenError: with the first part: the step is too far ahead, or its place holds an update that is still
                needed.
        """
        with self._lock:
            if part == 0:
                self._forget_arriving(source)
                if not self._is_late(source, step):
                    self._check_if_not_proved(source, step)
                self._arriving[source] = (step, [])
            begun, frames = self._arriving.get(source, (None, []))
            if begun == step:  # or everything was thrown out meanwhile
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
            return self._place(source, step, frames)

    def take(self, source: int, step: int) -> list[torch.Tensor]:
        """The pieces of an update in the layout's order, one-dimensional; they are the caller's, the place is free."""
        with self._lock:
            ring = self._rings[source]
            payload = self._payload(ring, source, step)
            self._empty(ring, step % ring.capacity)
        return self._tensors(payload)

    def look(self, source: int, step: int | None = None) -> list[torch.Tensor]:
        """The same, of the newest where no step is given, and the place stays filled: not to be written to.

        What the caller has does not change, even when a newer update replaces it meanwhile.
        """
        with self._lock:
            ring = self._rings[source]
            payload = self._payload(ring, source, max(ring.held()) if step is None else step)
        return self._tensors(payload)

    def retire(self, before: int) -> None:
        """The updates of steps before this one are over: their places are free, and what comes of them is dropped.

        To be called before any message goes out that lets an in-neighbor continue.
        """
        with self._lock:
            self._before = max(self._before, before)
            for ring in self._rings.values():
                for place, step in enumerate(ring.steps):
                    if step is not None and step < before:
                        self._empty(ring, place)

    def steps(self, source: int) -> tuple[int, ...]:
        """Of which steps an in-neighbor's updates are here, ascending."""
        with self._lock:
            return tuple(sorted(self._rings[source].held()))

    def fill(self) -> dict[int, tuple[int, int]]:
        """How many places of each in-neighbor's ring are filled, and how many there are."""
        with self._lock:
            return {source: (len(ring.held()), ring.capacity) for source, ring in self._rings.items()}

    def restore(self, source: int, step: int, tensors: Sequence[torch.Tensor]) -> None:
        """Put in an update as a checkpoint has it, in memory of its own.

        Raises:
            PlaceTakenError: as `receive`.
        """
        with self._lock:
            self._place(source, step, [frame_of(tensor.clone()) for tensor in tensors])

    def clear(self, before: int = 0) -> None:
        """Throw everything out and begin again with this step."""
        with self._lock:
            for ring in self._rings.values():
                for place in range(ring.capacity):
                    self._empty(ring, place)
            for source in self._rings:
                self._forget_arriving(source)
            self._before = before

    def _place(self, source: int, step: int, payload: Sequence[Any]) -> Arrival:
        """Write a place, if its step is newer than what the place had; under the lock."""
        if self._is_late(source, step):
            self.dropped += 1
            return Arrival.LATE
        self._check_if_not_proved(source, step)
        ring = self._rings[source]
        place = step % ring.capacity
        if ring.steps[place] is not None:
            self.dropped += 1
            self._empty(ring, place)
        ring.steps[place], ring.payloads[place] = step, tuple(payload)
        self._count(_size(payload))
        return Arrival.KEPT

    def _forget_arriving(self, source: int) -> None:
        """Give up what came of an update that is not complete, or count it no more; under the lock."""
        _, frames = self._arriving.pop(source, (None, []))
        self._count(-_size(frames))

    def _is_late(self, source: int, step: int) -> bool:
        there = self._rings[source].steps[0]
        return step < self._before or (self.newest_only and there is not None and there >= step)

    def _check_if_not_proved(self, source: int, step: int) -> None:
        ring = self._rings[source]
        place = step % ring.capacity
        there = ring.steps[place]
        if self.newest_only or (there is None and step < self._before + ring.capacity):
            return
        why = (
            f"place {place} of {ring.capacity} holds that of step {there}, which is still needed"
            if there is not None
            else f"there are {ring.capacity} places, and step {self._before} is not over (place {place} is free)"
        )
        raise PlaceTakenError(
            f"worker {self.worker}: the update of step {step} from worker {source} came although {why}; a worker went "
            "further ahead than was proved"
        )

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.most_bytes = max(self.most_bytes, self.num_bytes)

    def _payload(self, ring: _Ring, source: int, step: int) -> tuple[Any, ...]:
        place = step % ring.capacity
        assert ring.steps[place] == step, f"worker {self.worker} has no update of step {step} from worker {source}"
        return ring.payloads[place]

    def _empty(self, ring: _Ring, place: int) -> None:
        self._count(-_size(ring.payloads[place]))
        ring.steps[place], ring.payloads[place] = None, ()

    def _tensors(self, payload: Sequence[Any]) -> list[torch.Tensor]:
        return [tensor_of(frame, dtype) for frame, dtype in zip(payload, self._dtypes, strict=True)]


def _size(frames: Sequence[Any]) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)


class _Ring:
    """The places for one in-neighbor's updates."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.steps: list[int | None] = [None] * capacity
        self.payloads: list[tuple[Any, ...]] = [()] * capacity

    def held(self) -> list[int]:
        return [step for step in self.steps if step is not None]
