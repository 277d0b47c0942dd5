"""Staging: rows between the device where they lie and the host, over which they travel.

Wherever a table lies, its rows and their numbers are exchanged in host memory (over gloo), since only the host knows
who asked for which. On the CPU nothing is copied. From a CUDA device a copy into pinned memory is queued in the current
stream, and the host waits for a mark behind it before it looks at the numbers; back, a copy from pinned memory is
queued in the current stream, so that what this one does next has them. Nothing else in tables orders streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from partreduce.runtime.transport.streams import Marker, Streams, await_mark, streams_of

DEVICES = ("cpu", "cuda")
"""Where tables may lie."""


@dataclass(frozen=True, slots=True)
class Landing:
    """A copy on its way to the host; without a mark it is there."""

    values: torch.Tensor
    mark: Marker | None = None

    def wait(self) -> torch.Tensor:
        """The copy, once it is there. The host waits for this copy and what its stream did before, for nothing else."""
        if self.mark is not None:
            await_mark(self.mark)
        return self.values


class Staging:
    """Copies between the host and wherever an array lies.

    Args:
        streams: those of a device, as a world gives them.
    """

    def __init__(self, streams: Callable[[torch.device], Streams] = streams_of) -> None:
        self._streams = streams

    def begin(self, values: torch.Tensor) -> Landing:
        """Let an array set out for the host, after what the current stream has queued."""
        streams = self._streams(values.device)
        if not streams.runs_ahead:
            return Landing(values)
        return Landing(streams.download(values.detach()), streams.mark())

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """An array on the host; itself where it lies there."""
        return self.begin(values).wait()

    def to_device(self, values: torch.Tensor, device: torch.device) -> torch.Tensor:
        """An array of the host where the current stream of a device can use it next; itself on the CPU."""
        streams = self._streams(device)
        return streams.stage(values, device) if streams.runs_ahead else values
