"""Run the copies and sums of group operations on streams, and notify the host of their end.

On CPU that is the calling thread itself. On a CUDA device it is a stream next to the user's: the host only queues work
there and runs ahead. Each stream must wait for data of the other before it reads it; `side` and `rejoin` do that, and
nothing else in the run-time orders streams. A world gives its own streams (`World.streams`), so that tests may stand in
for a device.
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
    """A point in a stream, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the stream has come to it."""

    def elapsed_time(self, end: Any, /) -> float:  # noqa: ANN401 - a mark of the same device
        """Milliseconds from this point to a later one; both timed and passed."""


class Streams:
    """The CPU's: everything is done when the call returns."""

    runs_ahead = False  # whether the host may be ahead of the device, so that it must not look at a result

    def side(self) -> contextlib.AbstractContextManager[object]:
        """Inside, work is queued next to the user's stream, after what that one has queued."""
        return contextlib.nullcontext()

    def rejoin(self) -> None:
        """Let the user's stream wait for what was queued there."""

    def another(self) -> Streams:
        return self

    def follow(self, mark: Marker) -> None: ...

    def upload(self, numbers: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        """A few numbers as a tensor on the device, without waiting for it."""
        return torch.tensor(numbers, dtype=dtype)

    def download(self, values: torch.Tensor) -> torch.Tensor:
        """A copy in host memory, valid once a mark that is set after it was passed."""
        return values.cpu()

    def host_room(self, num_bytes: int) -> torch.Tensor:
        """Host memory that is written from the device without the host waiting for it."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def stage(self, values: torch.Tensor, device: torch.device) -> torch.Tensor:
        """An array of the host on the device; the host may change it at once, but does not wait for the device."""
        return values.to(device)

    def mark(self, *, timed: bool = False) -> Marker:
        """A mark after everything that the current stream has queued."""
        raise NotImplementedError

    def settle(self) -> None: ...


class CudaStreams(Streams):
    """One side stream of one CUDA device, shared by all operations of a worker, or by all sums of one group."""

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
        """From pinned memory, which torch keeps until the copy is done."""
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
    """The streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else Streams()


def await_mark(mark: Marker) -> None:
    """Let the host wait until a stream has come to a mark."""
    start = time.monotonic()
    while not mark.query():
        time.sleep(pause_after(time.monotonic() - start))


class DeviceClock:
    """When the device came to a mark, in seconds of the host's clock, counted from one mark that both saw."""

    def __init__(self, streams: Streams) -> None:
        self._start = streams.mark(timed=True)
        streams.settle()
        self._at = time.perf_counter()

    def time_of(self, mark: Marker) -> float:
        """As `time.perf_counter` would have said when the device passed the mark."""
        return self._at + self._start.elapsed_time(mark) / 1e3
