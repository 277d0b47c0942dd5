"""Staged sums: sums of several stages, carried out one after the other by a thread of their group, or by a stream.

A stage begins when the one before it has ended, so somebody has to wait between them. On the CPU it is a thread, which
has groups of its own for it, so that nothing else comes between its operations. On a device it is a stream: the host
queues all stages and continues.
"""

from __future__ import annotations

import queue
import threading
import weakref
from abc import ABC, abstractmethod
from functools import partial
from typing import Protocol

import torch

from partreduce.runtime.codecs.coding import Coding
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.work import Background, Ending, Work

CLOSING_SECONDS = 0.02
"""Between two looks whether the group was destroyed, or the interpreter ends."""


class Stages(ABC):
    """What the thread does; it knows nothing of the group's communicator, so that this can go.

    After a failure every later sum fails: the members may not be at the same place of the order of operations.
    """

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[torch.Tensor, Coding | None, Ending] | None] = queue.SimpleQueue()
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
            tensor, coding, ending = call
            if self._failure is None:
                try:
                    with torch.no_grad():
                        self.sum(tensor, coding)
                except Exception as error:  # noqa: BLE001 - the thread that waits for it raises it
                    self._failure = str(error) or type(error).__name__
            ending.reached(self._failure)
            del call, tensor, coding, ending

    def wait(self, work: Work) -> None:
        """Wait for one stage, inside the library for a moment at a time: looks take a fifth of a sum's processor time.

        The interpreter's end waits for this thread, and closes the stages before (see `Background`).

        Raises:
            RuntimeError: the stage failed or timed out, or the group is closed meanwhile.
        """
        work.wait(None if self.is_queued else self._look, for_moments=True)

    def _look(self) -> float:
        if self.closed:
            raise RuntimeError("the group was destroyed while its sum was running")
        return CLOSING_SECONDS


class Sums(Protocol):
    """The sums of a group that run in stages."""

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        """Start a sum over the group, in place."""

    def close(self) -> None:
        """End sums that wait or run."""


class QueuedSums:
    """Those of a group on a device, in a stream of its own."""

    def __init__(self, stages: Stages, streams: Streams) -> None:
        self.stages, self._streams = stages, streams.another()
        stages.is_queued = True

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        """Queue a sum over the group, in place, after what the current stream has queued."""
        with self._streams.side(), torch.no_grad():
            self.stages.sum(tensor.view(-1), coding)
            end = self._streams.mark()
        return Work(end.query, partial(self._streams.follow, end))

    def close(self) -> None:
        """What is queued ends with the group's operations."""


class StagedSums:
    """Those of a group on the CPU; the thread begins with the first one and ends with this object."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.thread: threading.Thread | None = None

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        """Start a sum over the group, in place."""
        if self.thread is None:
            self.thread = Background(self.stages.run, name="partreduce-stages", stop=self.stages.close)
            self.thread.start()
            weakref.finalize(self, self.stages.calls.put, None)
        ending = Ending()
        self.stages.calls.put((tensor.view(-1), coding, ending))
        return ending.work()

    def close(self) -> None:
        self.stages.close()
