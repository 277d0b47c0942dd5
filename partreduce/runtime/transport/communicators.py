"""Communicator: one group of workers that can reduce, broadcast and exchange, over gloo or NCCL."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from partreduce.runtime.codecs.coding import Coding
from partreduce.runtime.transport.staged import Sums
from partreduce.runtime.transport.torch_api import AllgatherOptions, ProcessGroupGloo, Work, sum_options
from partreduce.runtime.transport.waiting import LimitedWork, RunningWork
from partreduce.topo.errors import MissingDependencyError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.strategies.axes import CodecScope

SHORTEST_WAIT = 1e-3
"""Seconds; torch counts whole milliseconds."""


class Communicator:
    """One group that can reduce; `backend` is a torch ProcessGroup or a raw gloo backend.

    `timeout` is that of a sum, where it differs from the one with which the group was made.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        rank: int,
        backend: Any,  # noqa: ANN401 - as in _live
        timeout: timedelta | None = None,
    ) -> None:
        self.members, self.place = members, members.index(rank)
        self._backend: Any = backend
        self.limit_to(timeout)
        self.is_closed = False
        self.in_blocks: Sums | None = None
        """Sums by codecs of blocks, where the world prepared the group for them."""
        self.is_inside_a_node = False
        """Whether the world knows that nothing of this group crosses from one node to another."""

    def limit_to(self, timeout: timedelta | None) -> None:
        """Let gloo itself end operations from now on that take longer."""
        self.timeout, self._sum_options = timeout, sum_options(timeout)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def is_first(self) -> bool:
        """Whether this worker is the lowest rank in the group."""
        return self.place == 0

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> RunningWork:
        """Start a sum over the group, in place; with a `coding` the tensor holds the decoded sum once it is waited for.

        In 16 bits the backend adds the coded numbers. All members end with the same bits.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
            MissingDependencyError: a codec of blocks, for which the group was not made.
        """
        if coding is not None and not (self.is_inside_a_node and coding.transport.where is CodecScope.ACROSS_NODES):
            return self._coded(tensor, coding)
        try:
            work: Work = self._live().allreduce([tensor], self._sum_options)
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None
        return _limited(work, tensor)

    def _coded(self, tensor: torch.Tensor, coding: Coding) -> RunningWork:
        if coding.in_blocks:
            if self.in_blocks is None:
                raise MissingDependencyError(
                    f"group {Group(self.members)}: was not made for sums in {coding.transport.codec}; use float16 or "
                    "bfloat16"
                )
            self._live()
            return self.in_blocks.start(tensor, coding)
        dtype = coding.dtype
        if dtype is None or dtype is tensor.dtype:
            return self.all_reduce(tensor)
        short = tensor.detach().to(dtype)
        work = self.all_reduce(short)
        return (LimitedShortWork if isinstance(work, LimitedWork) else ShortWork)(tensor, short, work)

    def exchange(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> Sequence[RunningWork]:
        """Start sending and receiving whole tensors, as (place in the group, tensor) pairs in equal order on both ends.

        All receives are posted before the first send: a send over gloo blocks until its receive is posted, so no order
        of workers can wait in a circle.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        try:
            backend = self._live()
            together = not isinstance(backend, ProcessGroupGloo) and bool(sends or receives)
            if together:
                # NCCL runs one after another what is not one call, and two workers' orders may wait in a circle.
                backend._start_coalescing()  # noqa: SLF001 - as torch.distributed.batch_isend_irecv does
            works: list[Work] = [backend.recv([tensor], place, 0) for place, tensor in receives]
            works += [backend.send([tensor], place, 0) for place, tensor in sends]
            if together:
                return [backend._end_coalescing()]  # noqa: SLF001 - as above
            return works if self.timeout is None else [PointWork(work, self.timeout) for work in works]
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None

    def broadcast(self, tensor: torch.Tensor) -> RunningWork:
        """Start a copy from the lowest rank to the others, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        if self.timeout is not None:
            options.timeout = self.timeout
        return _limited(self._live().broadcast([tensor], options), tensor)

    def all_to_all(
        self, target: torch.Tensor, source: torch.Tensor, receives: Sequence[int], sends: Sequence[int]
    ) -> RunningWork:
        """Start handing out pieces of `source`, one to each member in order, and collecting theirs in `target`.

        Args:
            target: filled with the pieces of all members, in order of their places.
            source: cut into pieces; read until the work has ended.
            receives: elements from each member.
            sends: elements to each member; what i sends to j is what j receives from i.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        options = dist.AllToAllOptions()
        if self.timeout is not None:
            options.timeout = self.timeout
        try:
            work: Work = self._live().alltoall_base(target, source, list(receives), list(sends), options)
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None
        return _limited(work, target)

    def all_gather(self, target: torch.Tensor, source: torch.Tensor) -> RunningWork:
        """Start collecting equally long tensors of all members in `target`, in order of their places.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        options = AllgatherOptions()
        if self.timeout is not None:
            options.timeout = self.timeout
        try:
            work: Work = self._live()._allgather_base(target, source, options)  # noqa: SLF001 - as torch.distributed
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None
        return _limited(work, target)

    def _live(self) -> Any:  # noqa: ANN401 - a ProcessGroup or a Backend, which share no typed base
        if self._backend is None:
            raise UnavailableError(f"group {Group(self.members)}: was destroyed after an earlier failure")
        return self._backend

    def close(self) -> list[object]:
        """Let go of what lies below and return it; when the last reference to it goes, its sockets close."""
        backend, self._backend, self.is_closed = self._backend, None, True
        if self.in_blocks is not None:
            self.in_blocks.close()
        return [backend]


class HostWork(LimitedWork):
    """A running collective of numbers on the host: gloo's, whose own wait sleeps until it ends and may have a limit."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def may_wait_here(self) -> bool:
        """Only the main thread cannot be inside the library when the interpreter ends."""
        return threading.current_thread() is threading.main_thread()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._work.is_completed()

    def ended_within(self, seconds: float) -> bool:
        """Wait until it has ended, at most so long but a millisecond at least: to torch, none means without end."""
        try:
            self._work.wait(timedelta(seconds=max(SHORTEST_WAIT, seconds)))
        except RuntimeError:
            return self._work.is_completed()  # its time is over; or it failed, which `wait` raises
        return True

    def wait(self) -> None:
        """Wait until it has ended, and raise what went wrong."""
        self._work.wait()


class PointWork:
    """A running operation of gloo's from point to point, whose limit is given where it is waited for."""

    def __init__(self, work: Work, timeout: timedelta) -> None:
        self._work, self._timeout = work, timeout

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._work.is_completed()

    def wait(self) -> None:
        """Wait until it has ended, and raise what went wrong."""
        self._work.wait(self._timeout)


def _limited(work: Work, tensor: torch.Tensor) -> RunningWork:
    """The operation as one whose wait has a limit, where it is gloo's."""
    return HostWork(work) if tensor.device.type == "cpu" else work


class ShortWork:
    """A running sum of a copy in 16 bits, with the face of a torch work; decoded once it is waited for."""

    def __init__(self, tensor: torch.Tensor, short: torch.Tensor, work: RunningWork) -> None:
        self._tensor, self._short, self._work = tensor, short, work
        self._decoded = False

    def is_completed(self) -> bool:
        """Whether the sum is there, well or not."""
        return self._work.is_completed()

    def wait(self) -> None:
        """Wait for the sum and write it into the tensor; on CUDA the current stream does, not the host."""
        self._work.wait()
        if not self._decoded:
            self._decoded = True
            self._tensor.detach().copy_(self._short)


class LimitedShortWork(ShortWork, LimitedWork):
    """The same on the host."""

    _work: LimitedWork

    def may_wait_here(self) -> bool:
        """Whether this thread may wait for the sum."""
        return self._work.may_wait_here()

    def ended_within(self, seconds: float) -> bool:
        """Wait until the sum is there, at most so long."""
        return self._work.ended_within(seconds)


def first_line(error: BaseException) -> str:
    """The first line of an error of torch's, which often has many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
