"""Payload rings: the updates that a worker's in-neighbours sent ahead of it, in as many places as were proved to do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from preduce.runtime.transport.arrays import frame_of, tensor_of
from preduce.topo.errors import PreduceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch


class PlaceTakenError(PreduceError):
    """An update came for which its ring cannot have a place: its sender, or this worker, broke the protocol."""


class PayloadRings:
    """The rings of one worker; one thread puts what comes while another takes and reads."""

    def __init__(
        self, worker: int, capacities: Mapping[int, int], dtypes: Sequence[torch.dtype], *, newest_only: bool = False
    ) -> None:
        self.worker, self.newest_only, self.dtypes = worker, newest_only, tuple(dtypes)
        self._places: dict[int, list[tuple[int, tuple[Any, ...]] | None]] = {
            source: [None] * (1 if newest_only else capacity) for source, capacity in capacities.items()
        }
        self._lock = threading.Lock()
        self._before = 0
        self.dropped = 0

    def put(self, source: int, step: int, payload: Sequence[Any]) -> bool:
        """Keep an update; False if nobody needs it any more.

        Raises:
            PlaceTakenError: its place holds an update that is still needed.
        """
        with self._lock:
            places = self._places[source]
            there = places[step % len(places)]
            if step < self._before or (self.newest_only and there is not None and there[0] >= step):
                self.dropped += 1
                return False
            if not self.newest_only and (there is not None or step >= self._before + len(places)):
                raise PlaceTakenError(f"worker {self.worker}: no place for the update of step {step} from {source}")
            places[step % len(places)] = (step, tuple(payload))
        return True

    def take(self, source: int, step: int) -> list[torch.Tensor]:
        """The parts of an update, one-dimensional, on the host; they are the caller's, and the place is free."""
        parts = self.look(source, step)
        with self._lock:
            places = self._places[source]
            places[step % len(places)] = None
        return parts

    def look(self, source: int, step: int) -> list[torch.Tensor]:
        """The same, and the place stays filled: not to be written to."""
        with self._lock:
            places = self._places[source]
            there = places[step % len(places)]
        assert there is not None, f"worker {self.worker} has nothing from worker {source}"
        assert there[0] == step, f"worker {self.worker} has step {there[0]} from worker {source}, not {step}"
        return [tensor_of(frame, dtype) for frame, dtype in zip(there[1], self.dtypes, strict=True)]

    def retire(self, before: int) -> None:
        """The updates of steps before this one are over."""
        with self._lock:
            self._before = max(self._before, before)
            for places in self._places.values():
                for place, there in enumerate(places):
                    if there is not None and there[0] < before:
                        places[place] = None

    def steps(self, source: int) -> tuple[int, ...]:
        """Of which steps an in-neighbour's updates are here, ascending."""
        with self._lock:
            return tuple(sorted(there[0] for there in self._places[source] if there is not None))

    def fill(self) -> dict[int, tuple[int, int]]:
        """How many places of each in-neighbour's ring are filled, and how many there are."""
        return {source: (len(self.steps(source)), len(places)) for source, places in self._places.items()}

    def restore(self, source: int, step: int, tensors: Sequence[torch.Tensor]) -> None:
        """Put in an update as a checkpoint has it, in memory of its own."""
        self.put(source, step, [frame_of(tensor.clone()) for tensor in tensors])

    def clear(self, before: int = 0) -> None:
        """Throw everything out and begin again with this step."""
        with self._lock:
            for places in self._places.values():
                places[:] = [None] * len(places)
            self._before = before
