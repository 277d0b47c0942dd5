"""Prepare arrays for messages: as views of their own memory, or as snapshots in reused memory.

A message moves data from a tensor to a tensor of another process. Only the kernel's copies at both ends are
unavoidable, and nothing else is copied: libzmq sends from the array's memory, and receives into memory that it
allocates, which only the receiver has and may overwrite.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.waiting import pause_after

MAX_SPARE = 2  # number of unused snapshots to keep for reuse
PATIENCE = 0.1  # seconds to wait for a free snapshot before allocating more than usual


def frame_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of an array; on the host they are its own memory, which must not change while it is sent."""
    return tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().data


def tensor_of(frame: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 - any buffer
    """Return the numbers in a frame as a view, or as a copy if the frame is not aligned to the dtype."""
    if not len(frame):
        return torch.empty(0, dtype=dtype)
    place = np.frombuffer(frame, dtype=np.uint8)
    return torch.frombuffer(place.copy() if place.ctypes.data % dtype.itemsize else frame, dtype=dtype)


class Snapshots:
    """Copies of arrays, to send while the arrays change; their memory is reused.

    A snapshot's memory is reused only when nothing references its frames any more: no sender, no waiting message, not
    libzmq, and no message to this worker itself. So data in flight never changes, however slow a peer is.

    Args:
        streams: streams of the arrays' device. On CUDA copies are only queued in the current stream; a snapshot is
            complete once a marker set after `take` is reached.
        usual: how many snapshots are in use at most if no worker is late; before it allocates more, `take` waits
            briefly for a free one.
    """

    def __init__(self, streams: Streams | None = None, usual: int | None = None) -> None:
        self._streams, self._usual = streams or Streams(), usual
        self._taken: list[_Snapshot] = []

    def take(self, tensors: Sequence[torch.Tensor]) -> list[memoryview]:
        """Return the bytes of these arrays (always of the same sizes) as they are now; not thread-safe."""
        snapshot = self._free() or self._freed_soon() or _Snapshot([tensor.nbytes for tensor in tensors], self._streams)
        self._taken.append(snapshot)
        return snapshot.of(tensors)

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def num_bytes(self) -> int:
        return sum(snapshot.num_bytes for snapshot in self._taken)

    def _freed_soon(self) -> _Snapshot | None:
        """Wait briefly for a snapshot to become free, if as many as usual are in use; None if none does."""
        if self._usual is None or len(self._taken) < self._usual:
            return None
        start = time.monotonic()
        while (snapshot := self._free()) is None and (waited := time.monotonic() - start) < PATIENCE:
            time.sleep(pause_after(waited))
        return snapshot

    def _free(self) -> _Snapshot | None:
        """Return a snapshot that is no longer in use; keep a few other unused ones and release the rest."""
        free = [snapshot for snapshot in self._taken if snapshot.is_free()]
        used = [snapshot for snapshot in self._taken if snapshot not in free]
        self._taken = used + free[1 : 1 + MAX_SPARE]
        return free[0] if free else None


class _Snapshot:
    """The memory of one snapshot (copy of several arrays), with weak references that show whether it is in use."""

    def __init__(self, sizes: Sequence[int], streams: Streams) -> None:
        self._rooms = [streams.host_room(size) for size in sizes]
        self._homes: list[npt.NDArray[np.uint8]] = [room.numpy() for room in self._rooms]
        self.num_bytes = sum(sizes)
        self._lent: list[weakref.ref[npt.NDArray[np.uint8]]] = []

    def is_free(self) -> bool:
        return all(view() is None for view in self._lent)

    def of(self, tensors: Sequence[torch.Tensor]) -> list[memoryview]:
        """Copy these arrays into the memory; return its bytes, each referencing a view that shows its use."""
        for room, tensor in zip(self._rooms, tensors, strict=True):
            if len(room):
                room.view(tensor.dtype).copy_(tensor.detach().reshape(-1), non_blocking=True)
        views = [home.view() for home in self._homes]
        self._lent = [weakref.ref(view) for view in views]
        return [view.data for view in views]
