"""Staged sums: sums of several stages, carried out one after the other by a thread of their group, or by a stream.

A stage begins when the one before it has ended, so somebody has to wait between them. On the CPU it is a thread, which
has groups of its own for it, so that nothing else comes between its operations. On a device it is a stream: the host
queues all stages and continues.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from typing import Protocol

import torch

from partreduce.runtime.codecs.coding import Coding
from partreduce.runtime.transport.background import Background
from partreduce.runtime.transport.streams import Marker, Streams
from partreduce.runtime.transport.waiting import LimitedWork, RunningWork, wait_a_while

CLOSING_SECONDS = 0.02
"""Between two looks whether the group was destroyed, or the interpreter ends."""


class StagedWork(LimitedWork):
    """A running sum of a group's thread."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._problem: str | None = None

    def end(self, problem: str | None = None) -> None:
        """Say that it has ended, and what went wrong."""
        self._problem = problem
        self._ended.set()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def ended_within(self, seconds: float) -> bool:
        """Wait until it has ended, at most so long."""
        return self._ended.wait(seconds)

    def wait(self) -> None:
        """Wait until it has ended, and raise what a stage raised."""
        self._ended.wait()
        if self._problem is not None:
            raise RuntimeError(self._problem)


class QueuedWork:
    """A running sum whose stages are queued on a device, with the face of a torch work."""

    def __init__(self, streams: Streams, end: Marker) -> None:
        self._streams, self._end = streams, end

    def is_completed(self) -> bool:
        """Whether the device has come to its end."""
        return self._end.query()

    def wait(self) -> None:
        """Let the current stream wait for it, not the host."""
        self._streams.follow(self._end)


class Stages(ABC):
    """What the thread does; it knows nothing of the group's communicator, so that this can go.

    After a failure every later sum fails: the members may not be at the same place of the order of operations.
    """

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[torch.Tensor, Coding | None, StagedWork] | None] = queue.SimpleQueue()
        self.closed = False
        self.is_queued = False
        """Whether the current stream waits for a stage, and not this host."""
        self._failure: str | None = None

    def close(self) -> None:
        self.closed = True
        self.calls.put(None)

    @abstractmethod
    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        """Sum a one-dimensional tensor over the group, in place."""

    def run(self) -> None:
        """Carry out sums in order of calls until there are no more."""
        while (call := self.calls.get()) is not None:
            tensor, coding, work = call
            if self._failure is None:
                try:
                    with torch.no_grad():
                        self.sum(tensor, coding)
                except Exception as error:  # noqa: BLE001 - the thread that waits for it raises it
                    self._failure = str(error) or type(error).__name__
            work.end(self._failure)
            del call, tensor, coding, work

    def wait(self, work: RunningWork) -> None:
        """Wait for one stage, inside the library for a moment at a time: looks take a fifth of a sum's processor time.

        The interpreter's end waits for this thread, and closes the stages before (see `background`).

        Raises:
            RuntimeError: the stage failed or timed out, or the group is closed meanwhile.
        """
        start = time.monotonic()
        while not self.is_queued and not work.is_completed():
            if self.closed:
                raise RuntimeError("the group was destroyed while its sum was running")
            if isinstance(work, LimitedWork):
                work.ended_within(CLOSING_SECONDS)
            else:
                wait_a_while(work, CLOSING_SECONDS, time.monotonic() - start)
        work.wait()


class Sums(Protocol):
    """The sums of a group that run in stages."""

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> RunningWork:
        """Start a sum over the group, in place."""

    def close(self) -> None:
        """End sums that wait or run."""


class QueuedSums:
    """Those of a group on a device, in a stream of its own."""

    def __init__(self, stages: Stages, streams: Streams) -> None:
        self.stages, self._streams = stages, streams.another()
        stages.is_queued = True

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> QueuedWork:
        """Queue a sum over the group, in place, after what the current stream has queued."""
        with self._streams.side(), torch.no_grad():
            self.stages.sum(tensor.view(-1), coding)
            return QueuedWork(self._streams, self._streams.mark())

    def close(self) -> None:
        """What is queued ends with the group's operations."""


class StagedSums:
    """Those of a group on the CPU; the thread begins with the first one and ends with this object."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.thread: threading.Thread | None = None

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> StagedWork:
        """Start a sum over the group, in place."""
        if self.thread is None:
            self.thread = Background(self.stages.run, name="partreduce-stages", stop=self.stages.close)
            self.thread.start()
            weakref.finalize(self, self.stages.calls.put, None)
        work = StagedWork()
        self.stages.calls.put((tensor.view(-1), coding, work))
        return work

    def close(self) -> None:
        self.stages.close()
