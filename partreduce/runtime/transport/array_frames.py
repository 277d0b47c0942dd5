"""Turn tensors into frames (byte buffers) of ZeroMQ messages: views of their memory, or copies (snapshots).

libzmq sends directly from a frame's memory, and receives into memory that it allocates, which the receiver may
overwrite. So nothing is copied except by the kernel and for snapshots.
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
    """Return a tensor's bytes. A contiguous CPU tensor is not copied, so it must not change until they are sent."""
    return tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().data


def tensor_of(frame: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 - any buffer
    """Return a frame's bytes as a one-dimensional tensor of `dtype`: a view, or a copy if the frame is not aligned."""
    if not len(frame):
        return torch.empty(0, dtype=dtype)
    place = np.frombuffer(frame, dtype=np.uint8)
    return torch.frombuffer(place.copy() if place.ctypes.data % dtype.itemsize else frame, dtype=dtype)


class Snapshots:
    """Copies of tensors (snapshots) in reused memory, to send the copies while the tensors change.

    The memory of a snapshot is reused only when no sender, queued message or libzmq references its frames any more. So
    data in flight never changes, however slow a peer is.

    Args:
        streams: streams of the tensors' device. On CUDA `take` only queues the copies in the current stream; they are
            complete once a marker (`Streams.mark`) that is set afterwards is reached.
        usual: number of snapshots that suffice if no receiver is slow. If as many are in use, `take` waits briefly for
            a free one before it allocates another. None: it never waits.
    """

    def __init__(self, streams: Streams | None = None, usual: int | None = None) -> None:
        self._streams, self._usual = streams or Streams(), usual
        self._taken: list[_Snapshot] = []

    def take(self, tensors: Sequence[torch.Tensor]) -> list[memoryview]:
        """Copy tensors, which have the same sizes in every call, and return the bytes of each copy; not thread-safe."""
        snapshot = self._free() or self._freed_soon() or _Snapshot([tensor.nbytes for tensor in tensors], self._streams)
        self._taken.append(snapshot)
        return snapshot.of(tensors)

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def num_bytes(self) -> int:
        return sum(snapshot.num_bytes for snapshot in self._taken)

    def _freed_soon(self) -> _Snapshot | None:
        """If `usual` snapshots are in use, wait up to `PATIENCE` seconds for a free one; return it, or None."""
        if self._usual is None or len(self._taken) < self._usual:
            return None
        start = time.monotonic()
        while (snapshot := self._free()) is None and (waited := time.monotonic() - start) < PATIENCE:
            time.sleep(pause_after(waited))
        return snapshot

    def _free(self) -> _Snapshot | None:
        """Return an unused snapshot, or None. Of the other unused ones keep up to `MAX_SPARE` and release the rest."""
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
        """Copy tensors into this memory; return the bytes of each copy. The memory is in use while these exist."""
        for room, tensor in zip(self._rooms, tensors, strict=True):
            if len(room):
                room.view(tensor.dtype).copy_(tensor.detach().reshape(-1), non_blocking=True)
        views = [home.view() for home in self._homes]
        self._lent = [weakref.ref(view) for view in views]
        return [view.data for view in views]
