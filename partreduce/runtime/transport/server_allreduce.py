"""All-reduce over all workers through parameter servers: every host adds up one shard and sends the sum to all workers.

Hosts are workers that are servers, too. `ServerCommunicator` has the interface of a group, so that a synchronous server
uses the same tags, deadlines and commits as groups. A host adds up the workers' parts of its shard in rank order, each
as soon as it and all earlier ones have arrived, so that the sum is the same in every run. Encoded parts are decoded,
added in float32 and encoded again; the host's own worker uses the encoded sum too. Each worker sends and receives its
model once; each host sends and receives its shard n − 1 times. No further copies are made: uncoded parts are sent from
the array itself, which does not change until its sum has arrived, and are added up in the memory of the first part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from partreduce.runtime.codecs import Coding, decode_values, encode_values
from partreduce.runtime.transport.array_frames import frame_of, tensor_of
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.mailbox import Mailbox, Message
from partreduce.runtime.transport.multistage_allreduce import block_bounds
from partreduce.runtime.transport.waiting import SignsOfLife
from partreduce.runtime.transport.work import Work
from partreduce.runtime.transport.worlds import World
from partreduce.topo.codec_numbers import SCALE_BYTES
from partreduce.topo.strategies.axes import Codec

_Running = tuple[Coding | None, dict[int, Any]]  # coding of a running all-reduce, and the hosts' answers


class ServerCommunicator(Communicator):
    """Communicator of all workers whose all-reduces run through parameter servers, on the workers `hosts`.

    `key`, `max_bytes` and `timeout` (seconds) are passed to the `Mailbox`; `heartbeat` tells which workers are gone.
    """

    def __init__(
        self, world: World, hosts: Sequence[int], heartbeat: SignsOfLife, *, key: str, max_bytes: int, timeout: float
    ) -> None:
        super().__init__(tuple(range(world.size)), world.rank, None)
        self.hosts, self.heartbeat = tuple(hosts), heartbeat
        self._next = 0
        self._sums: dict[int, _Sum] = {}
        self._running: dict[int, _Running] = {}
        self.mailbox = Mailbox(
            world.store, world.rank, key, self._deliver, max_bytes=max_bytes, timeout=timeout, heartbeat=heartbeat
        )
        self.mailbox.start()

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        """Start an all-reduce (sum) over all workers, in place; with a `coding` (codec) all messages are encoded."""
        number, self._next = self._next, self._next + 1
        parts: dict[int, Any] = {}
        self._running[number] = coding, parts
        shards = dict(zip(self.hosts, block_bounds(tensor.numel(), len(self.hosts)), strict=True))
        for host, (start, end) in shards.items():
            piece = tensor[start:end]
            if coding is None:
                kind, frame = f"push {tensor.dtype}".replace("torch.", ""), frame_of(piece)
            else:
                kind = f"push coded {coding.transport.codec} {coding.transport.block}"
                frame = frame_of(encode_values(piece.to("cpu"), coding, f"to host {host}"))
            self.mailbox.send(host, kind, (number, end - start), [frame])

        def has_all() -> bool:
            return len(parts) == len(shards)

        def take() -> None:
            self.mailbox.wait_until(has_all, self.heartbeat, self.members, 0)
            for host, (start, end) in shards.items():
                if end > start:  # a host of a short array may have nothing
                    tensor[start:end].copy_(_decode_answer(parts[host], end - start, tensor.dtype, coding))
            del self._running[number]

        # After a failure of the mailbox there is no answer, and `take` raises.
        return Work(lambda: has_all() or self.mailbox.has_failed, take)

    def _deliver(self, message: Message) -> None:
        if message.kind == "sum":
            self._running[message.numbers[0]][1][message.source] = message.payload[0]
            return
        number, length = message.numbers
        total = self._sums.setdefault(number, _Sum(self.mailbox.rank))
        total.add(message.source, _decode_push(message, length))
        if total.count == self.size:
            del self._sums[number]
            assert total.value is not None, "something was added"
            coding, _ = self._running[number]  # this worker has pushed, too
            value = total.value if coding is None else encode_values(total.value, coding, "sum")
            frame = frame_of(value)
            for rank in self.members:
                self.mailbox.send(rank, "sum", (number,), [frame])


def _decode_answer(frame: Any, length: int, dtype: torch.dtype, coding: Coding | None) -> torch.Tensor:  # noqa: ANN401 - as below
    if coding is None:
        return tensor_of(frame, dtype)
    return decode_values(_code_of(frame), length, coding.transport.codec, coding.transport.block)


def _decode_push(message: Message, length: int) -> torch.Tensor:
    """Return the part (numbers) in a worker's message to a host; in float32 if it was sent encoded."""
    _, *algorithm = message.kind.split()
    if len(algorithm) == 1:
        return tensor_of(message.payload[0], getattr(torch, algorithm[0]))
    _, codec, block = algorithm
    return decode_values(_code_of(message.payload[0]), length, Codec(codec), int(block))


def _code_of(frame: Any) -> torch.Tensor:  # noqa: ANN401 - any buffer
    """Return a frame's encoded bytes as a tensor, copied if the frame is not aligned for the codec's scales."""
    code = tensor_of(frame, torch.uint8)
    return code.clone() if code.data_ptr() % SCALE_BYTES else code


class _Sum:
    """The running sum of one shard, added in rank order in the memory of rank 0's part; `owner` is the host's rank."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.value: torch.Tensor | None = None
        self.count = 0
        self._early: dict[int, torch.Tensor] = {}

    def add(self, rank: int, part: torch.Tensor) -> None:
        """Add a worker's part now, or once the parts of all lower ranks have arrived."""
        self._early[rank] = part
        while self.count in self._early:
            part = self._early.pop(self.count)
            if self.value is None:  # the host's own part is the array that waits for the sum
                self.value = part.clone() if self.count == self.owner else part
            else:
                self.value.add_(part)
            self.count += 1


class _ThroughServers:
    def __init__(self, world: World, communicator: ServerCommunicator) -> None:
        self._world, self._communicator = world, communicator

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        return getattr(self._world, name)

    def communicator(self, members: Sequence[int], *, name: str = "") -> Communicator:
        if name:
            return self._world.communicator(members, name=name)
        assert len(members) == self._world.size, "only the group of all workers passes through the hosts"
        return self._communicator

    def everyone(self) -> Communicator:
        return self._communicator

    def has(self, members: Sequence[int], *, name: str = "") -> bool:
        return self._world.has(members, name=name) if name else len(members) == self._world.size

    def create(self, members: tuple[int, ...], *, name: str = "") -> Communicator:
        return self._world.create(members, name=name) if name else self.communicator(members)

    def abandon(self) -> None:
        """Abandon the world, and end the mailbox, so that this host no longer answers."""
        self._world.abandon()
        self._communicator.mailbox.abandon()


def through_servers(world: World, communicator: ServerCommunicator) -> World:
    """Return a world like `world`, except that its group of all workers is `communicator`."""
    return cast("World", _ThroughServers(world, communicator))
