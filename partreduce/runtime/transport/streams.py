"""Run copies and all-reduces on a side stream of a CUDA device, or in the calling thread on CPU, by one interface.

On a CUDA device the host only queues work in the side stream and runs ahead. The side stream and the current stream
must wait for each other's data before they read them; `side`, `rejoin` and `follow` do this, and no other code of the
runtime orders streams. `World.streams` provides the objects, so that tests can replace a device.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from partreduce.runtime.transport.waiting import pause_after


class Marker(Protocol):
    """Interface of a point in a stream of device work, like `torch.cuda.Event`."""

    def query(self) -> bool:
        """Return whether the stream has reached the point."""

    def elapsed_time(self, end: Any, /) -> float:  # noqa: ANN401 - a mark of the same device
        """Return the milliseconds from this point to a later one; both must be reached and `timed` (`Streams.mark`)."""


class Streams:
    """Base class, which serves the CPU: every operation is complete when its call returns.

    On CUDA (`CudaStreams`) work is queued in torch's current stream, or in a side stream, which runs at the same time.
    """

    runs_ahead = False  # whether the host may run ahead of the device, so that it must not read results

    def side(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which work is queued in the side stream, after the current stream's work."""
        return contextlib.nullcontext()

    def rejoin(self) -> None:
        """Make the current stream wait for the side stream."""

    def another(self) -> Streams:
        return self

    def follow(self, mark: Marker) -> None: ...

    def upload(self, numbers: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        """Return a few numbers as a tensor on the device, without waiting for the device."""
        return torch.tensor(numbers, dtype=dtype)

    def download(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy of `values` in host memory, complete once a marker that is set afterwards is reached."""
        return values.cpu()

    def host_room(self, num_bytes: int) -> torch.Tensor:
        """Return `num_bytes` bytes of host memory; for a CUDA device it is pinned, so that copies need no wait."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def stage(self, values: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a copy of a host array on `device` without waiting for the device; the array may change at once."""
        return values.to(device)

    def mark(self, *, timed: bool = False) -> Marker:
        """Return a marker behind all work queued so far in the current stream; `timed`: it allows `elapsed_time`."""
        raise NotImplementedError

    def settle(self) -> None: ...


class CudaStreams(Streams):
    """Streams of a CUDA device: the current stream, and a side stream, created at its first use; see `Streams`."""

    runs_ahead = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side: torch.cuda.Stream | None = None
        self._lock = threading.Lock()

    def side(self) -> contextlib.AbstractContextManager[object]:
        with self._lock:
            if self._side is None:
                self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self.device)
        if current != self._side:
            self._side.wait_stream(current)
        return torch.cuda.stream(self._side)

    def rejoin(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._side)

    def another(self) -> Streams:
        return CudaStreams(self.device)

    def follow(self, mark: Marker) -> None:
        torch.cuda.current_stream(self.device).wait_event(mark)  # type: ignore[arg-type]  # its own mark

    def upload(self, numbers: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        """Return the numbers on the device, copied from pinned memory, which torch keeps until the copy is done."""
        return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(self.device, non_blocking=True)

    def download(self, values: torch.Tensor) -> torch.Tensor:
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return host.copy_(values, non_blocking=True)

    def host_room(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def stage(self, values: torch.Tensor, device: torch.device) -> torch.Tensor:
        return values.pin_memory().to(device, non_blocking=True)

    def mark(self, *, timed: bool = False) -> Marker:
        event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)


def streams_of(device: torch.device) -> Streams:
    """Return new streams for a device: `CudaStreams` for a CUDA device, else `Streams`."""
    return CudaStreams(device) if device.type == "cuda" else Streams()


def await_mark(mark: Marker) -> None:
    """Block the calling thread until the device has reached a marker."""
    start = time.monotonic()
    while not mark.query():
        time.sleep(pause_after(time.monotonic() - start))


class DeviceClock:
    """Converter of a device's timed markers to host time; its reference is a marker whose host time it measured."""

    def __init__(self, streams: Streams) -> None:
        self._start = streams.mark(timed=True)
        streams.settle()
        self._at = time.perf_counter()

    def time_of(self, mark: Marker) -> float:
        """Return when the device reached a marker, in seconds of `time.perf_counter`."""
        return self._at + self._start.elapsed_time(mark) / 1e3
