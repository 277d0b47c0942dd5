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
    """Return a tensor's bytes; a contiguous CPU tensor's are its own memory, which must not change while it is sent."""
    return tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().data


def tensor_of(frame: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 - any buffer
    """Return the bytes of a frame as a one-dimensional tensor: a view, or a copy if not aligned to the dtype."""
    if not len(frame):
        return torch.empty(0, dtype=dtype)
    place = np.frombuffer(frame, dtype=np.uint8)
    return torch.frombuffer(place.copy() if place.ctypes.data % dtype.itemsize else frame, dtype=dtype)


class Snapshots:
    """Copies of tensors in reused memory (snapshots), to send while the tensors change.

    The memory of a snapshot is reused only when no sender, queued message or libzmq references its frames any more. So
    data in flight never changes, however slow a peer is.

    Args:
        streams: streams of the tensors' device. On CUDA copies are only queued in the current stream; a snapshot is
            complete once a marker set after `take` is reached.
        usual: how many snapshots are in use at most if no receiver is slow; before it allocates more, `take` waits
            briefly for a free one. None: it never waits.
    """

    def __init__(self, streams: Streams | None = None, usual: int | None = None) -> None:
        self._streams, self._usual = streams or Streams(), usual
        self._taken: list[_Snapshot] = []

    def take(self, tensors: Sequence[torch.Tensor]) -> list[memoryview]:
        """Copy tensors, of the same sizes in every call, and return the bytes of the copies; not thread-safe."""
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
        """Return an unused snapshot, or None; keep up to `MAX_SPARE` other unused ones and release the rest."""
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
        """Copy tensors into this memory; return the bytes of each copy. It counts as in use while these exist."""
        for room, tensor in zip(self._rooms, tensors, strict=True):
            if len(room):
                room.view(tensor.dtype).copy_(tensor.detach().reshape(-1), non_blocking=True)
        views = [home.view() for home in self._homes]
        self._lent = [weakref.ref(view) for view in views]
        return [view.data for view in views]
