"""Communicator: one group of workers that can reduce, broadcast and exchange, over gloo or NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from preduce.runtime.transport.torch_api import ProcessGroupGloo, sum_options
from preduce.topo.errors import UnavailableError
from preduce.topo.phase import Group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    import torch

    from preduce.runtime.transport.torch_api import Work
    from preduce.runtime.transport.waiting import RunningWork


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
        self.members, self.timeout = members, timeout
        self.place = members.index(rank)
        self._backend: Any = backend

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def is_first(self) -> bool:
        """Whether this worker is the lowest rank in the group."""
        return self.place == 0

    def all_reduce(self, tensor: torch.Tensor) -> RunningWork:
        """Start a sum over the group, in place.

        Raises:
            UnavailableError: the group was destroyed, or a connection of it is broken.
        """
        try:
            work: Work = self._live().allreduce([tensor], sum_options(self.timeout))
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None
        return work

    def exchange(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> list[Work]:
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
            return [backend._end_coalescing()] if together else works  # noqa: SLF001 - as above
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None

    def broadcast(self, tensor: torch.Tensor) -> Work:
        """Start a copy from the lowest rank to the others, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        work: Work = self._live().broadcast([tensor], options)
        return work

    def all_to_all(
        self, target: torch.Tensor, source: torch.Tensor, receives: Sequence[int], sends: Sequence[int]
    ) -> Work:
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
        return work

    def _live(self) -> Any:  # noqa: ANN401 - a ProcessGroup or a Backend, which share no typed base
        if self._backend is None:
            raise UnavailableError(f"group {Group(self.members)}: was destroyed after an earlier failure")
        return self._backend

    def close(self) -> list[object]:
        """Let go of what lies below and return it; when the last reference to it goes, its sockets close."""
        backend, self._backend = self._backend, None
        return [backend]


def first_line(error: BaseException) -> str:
    """The first line of an error of torch's, which often has many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
