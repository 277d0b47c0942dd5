"""All-reduce, broadcast and exchange tensors within one group of workers, over gloo or NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from partreduce.runtime.codecs import Coding
from partreduce.runtime.transport.torch_api import AllgatherOptions, ProcessGroupGloo, TorchWork
from partreduce.runtime.transport.work import Work
from partreduce.topo.errors import MissingDependencyError, UnavailableError
from partreduce.topo.phase import Group
from partreduce.topo.strategies.axes import CodecScope

AHEAD = 2  # rounds that may run at the same time
BURST_BYTES = 256 * 2**10  # assumed capacity of a link's queue; if more may arrive at once, messages count as long
SHORTEST_WAIT = 1e-3  # seconds; torch counts whole milliseconds


class Sums(Protocol):
    """Interface of an object that runs all-reduces in several stages, such as encode, exchange, add, decode."""

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work: ...

    def close(self) -> None: ...


class Communicator:
    """One group of workers, the ranks `members`, and its collectives; `backend` is torch's process group or backend.

    `timeout` limits each operation; None: the timeout with which the group connected. Methods that start an operation
    raise UnavailableError if the group was destroyed or a connection is broken.
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
        self.in_blocks: Sums | None = None  # all-reduces with int8 or int4, if the group was prepared for them
        self.is_inside_a_node = False
        """Whether all members are known to be on one node."""

    def limit_to(self, timeout: timedelta | None) -> None:
        self.timeout = timeout
        self._sum_options = self._with_timeout(dist.AllreduceOptions())
        self._sum_options.reduceOp = dist.ReduceOp.SUM

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def is_first(self) -> bool:
        return self.place == 0

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        """Start an all-reduce (sum) over the group, in place; with a `coding` (codec) numbers are sent encoded.

        The result is then the decoded sum. With a 16-bit codec the backend adds the encoded numbers. All members get
        the same bits. Raises MissingDependencyError if `World.make` did not prepare the group for int8 or int4.
        """
        if coding is not None and not (self.is_inside_a_node and coding.transport.where is CodecScope.ACROSS_NODES):
            return self._compressed_all_reduce(tensor, coding)
        return self._start(tensor, lambda backend: backend.allreduce([tensor], self._sum_options))

    def _compressed_all_reduce(self, tensor: torch.Tensor, coding: Coding) -> Work:
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
        return self.all_reduce(short).then(lambda: tensor.detach().copy_(short))

    def exchange(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> Sequence[Work]:
        """Start sending and receiving tensors, each given as (index of the other member in the group, tensor).

        Two members list the tensors between them in the same order. All receives are posted before the first send, so
        that workers cannot wait in a circle: over gloo a send blocks until its receive is posted.
        """
        try:
            backend = self._live()
            together = not isinstance(backend, ProcessGroupGloo) and bool(sends or receives)
            if together:
                # NCCL runs separate calls one after the other, so the orders of two workers could deadlock.
                backend._start_coalescing()  # noqa: SLF001 - as torch.distributed.batch_isend_irecv does
            works: list[TorchWork] = [backend.recv([tensor], place, 0) for place, tensor in receives]
            works += [backend.send([tensor], place, 0) for place, tensor in sends]
            if together:
                works = [backend._end_coalescing()]  # noqa: SLF001 - as above
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None
        limit = [] if self.timeout is None or together else [self.timeout]
        return [Work(work.is_completed, partial(work.wait, *limit)) for work in works]

    def broadcast(self, tensor: torch.Tensor) -> Work:
        """Start a broadcast of `tensor`, in place, from the lowest rank of the group."""
        options = self._with_timeout(dist.BroadcastOptions())
        options.rootRank = 0
        options.rootTensor = 0
        return self._start(tensor, lambda backend: backend.broadcast([tensor], options))

    def all_to_all(
        self, target: torch.Tensor, source: torch.Tensor, receives: Sequence[int], sends: Sequence[int]
    ) -> Work:
        """Start an all-to-all: send one piece of `source` to each member, and receive one piece from each in `target`.

        Args:
            target: one-dimensional; receives the pieces in order of the members.
            source: one-dimensional, the pieces in order of the members; must not change until the work has ended.
            receives: number of elements from each member.
            sends: number of elements to each member; what i sends to j equals what j expects from i.
        """
        options, pieces = self._with_timeout(dist.AllToAllOptions()), (list(receives), list(sends))
        return self._start(target, lambda backend: backend.alltoall_base(target, source, *pieces, options))

    def all_gather(self, target: torch.Tensor, source: torch.Tensor) -> Work:
        """Start an all-gather: `target` receives the `source` of each member, in order; all are equally long."""
        options = self._with_timeout(AllgatherOptions())
        return self._start(
            target,
            lambda backend: backend._allgather_base(target, source, options),  # noqa: SLF001 - as torch.distributed
        )

    def _with_timeout(self, options: Any) -> Any:  # noqa: ANN401 - torch's, which share no typed base
        if self.timeout is not None:
            options.timeout = self.timeout
        return options

    def _start(self, tensor: torch.Tensor, start: Callable[[Any], TorchWork]) -> Work:
        try:
            return _work(start(self._live()), tensor)
        except RuntimeError as error:
            raise UnavailableError(first_line(error)) from None

    def _live(self) -> Any:  # noqa: ANN401 - a ProcessGroup or a Backend, which share no typed base
        if self._backend is None:
            raise UnavailableError(f"group {Group(self.members)}: was destroyed after an earlier failure")
        return self._backend

    def close(self) -> list[object]:
        """Drop and return the backend objects; their sockets close when the last reference to them is gone."""
        backend, self._backend, self.is_closed = self._backend, None, True
        if self.in_blocks is not None:
            self.in_blocks.close()
        return [backend]


def _work(work: TorchWork, tensor: torch.Tensor) -> Work:
    """Wrap torch's operation on `tensor` as a `Work`. Its wait inside torch has a time limit for CPU tensors only."""
    if tensor.device.type != "cpu":
        return Work(work.is_completed, work.wait)
    return Work(work.is_completed, work.wait, partial(_ended_within, work), on_main_thread=True)


def _ended_within(work: TorchWork, seconds: float) -> bool:
    """Wait up to `seconds` (at least 1 ms, since torch takes 0 as no limit); return whether the operation has ended."""
    try:
        work.wait(timedelta(seconds=max(SHORTEST_WAIT, seconds)))
    except RuntimeError:
        return work.is_completed()  # the limit has passed; or it failed, which `Work.wait` raises
    return True


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, at most 200 characters; its class's name if there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def goes_in_rounds(longest: int, group_size: int, node_size: int) -> bool:
    """Return whether an all_to_all with messages of up to `longest` bytes should use `pairwise_exchange`.

    It should if all messages to one node, with at most `node_size` workers, would overflow the queue of its link.
    """
    return group_size > 1 + AHEAD and longest * (group_size - 1) * node_size > BURST_BYTES


def pairwise_exchange(
    group: Communicator, target: torch.Tensor, source: torch.Tensor, receives: Sequence[int], sends: Sequence[int]
) -> Iterator[Work]:
    """Run an all_to_all (arguments as of `Communicator.all_to_all`) in rounds of pairs, by the works that it yields.

    The caller waits for each work before it asks for the next. In round i each worker sends to rank + i, as in MPICH's
    pairwise exchange (Thakur et al., Optimization of Collective Communication Operations in MPICH, 2005, section 4.4).
    Long messages sent all at once would overflow the queue of one link, and senders notice lost packets only after 0.2
    s or more (TCP incast: Phanishayee et al., FAST 2008). A worker sends its next message when the messages of all
    rounds except the last `AHEAD` have arrived, so a late worker delays few others, and about `AHEAD` senders share a
    link. All receives are posted first. Empty messages are not sent. O(group.size) messages.
    """
    theirs, mine = torch.split(target, list(receives)), torch.split(source, list(sends))
    theirs[group.place].copy_(mine[group.place])
    distances = range(1, group.size)
    sources = [(group.place - distance) % group.size for distance in distances]
    posted = iter(group.exchange([], [(place, theirs[place]) for place in sources if len(theirs[place])]))
    coming = [[next(posted)] if len(theirs[place]) else [] for place in sources]
    sent: list[Work] = []
    for index, distance in enumerate(distances):
        if index >= AHEAD:
            yield from coming[index - AHEAD]
        place = (group.place + distance) % group.size
        if len(mine[place]):
            sent += group.exchange([(place, mine[place])], [])
    for last in coming[-AHEAD:]:
        yield from last
    yield from sent
