"""Carry out sums of several stages, one after the other, by a thread of their group or by a stream.

A stage begins when the one before it has ended, so a thread or stream has to wait between them. On the CPU it is a
thread with its own groups, so that no other operation comes between. On a device it is a stream: the host queues all
stages and continues.

Sums with a codec have these stages: encode, all-to-all, add in float32, encode again, all-gather. Each member adds up
one shard, in order of places, and hands out its code; it takes the decoded numbers itself, too, so that all members end
with the same bits. Two roundings at any number of members; a ring would round at every hop. Each member sends (k-1)/k
of the code of its whole tensor twice.

A tensor goes in parts, each through its stages one after the other. While a stage of one part is on its way, others are
encoded, added and decoded, as in Pipe-SGD's pipelined sum (Li et al., NeurIPS 2018, Figure 3).
"""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from partreduce.runtime.codecs import BlockCodec, Coding, HalfPrecisionCodec, code_bytes, codec_of, unit_of
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.work import Background, Completion, Work
from partreduce.topo.strategies.axes import Codec

Bounds = list[tuple[int, int]]

LARGEST_PART, SMALLEST_MESSAGE, PARTS = 8 * 2**20, 2**18, 4
"""A coded tensor goes in at most so many parts of at most so many bytes, of which so many at least go to each member:
the first stage and the last one of all parts have nothing at the same time, and each further part costs its
messages."""
ROOMS = 4
"""Parts that may be under way at the same time: each is in another stage."""
CLOSING_SECONDS = 0.02
"""Between two looks whether the group was destroyed, or the interpreter ends."""


class Stages(ABC):
    """What the thread does; it knows nothing of the group's communicator, so that this can go.

    After a failure every later sum fails: the members may not be at the same place of the order of operations.
    """

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[torch.Tensor, Coding | None, Completion] | None] = queue.SimpleQueue()
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
            tensor, coding, completion = call
            if self._failure is None:
                try:
                    with torch.no_grad():
                        self.sum(tensor, coding)
                except Exception as error:  # noqa: BLE001 - the thread that waits for it raises it
                    self._failure = str(error) or type(error).__name__
            completion.reached(self._failure)
            del call, tensor, coding, completion

    def wait(self, work: Work) -> None:
        """Wait for one stage, inside the library for a moment at a time: looks take a fifth of a sum's processor time.

        The interpreter's end waits for this thread, and closes the stages before (see `Background`).
        """
        work.wait(None if self.is_queued else self._look, for_moments=True)

    def _look(self) -> float:
        if self.closed:
            raise RuntimeError("the group was destroyed while its sum was running")
        return CLOSING_SECONDS


class QueuedSums:
    """Those of a group on a device, in its own stream."""

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
        completion = Completion()
        self.stages.calls.put((tensor.view(-1), coding, completion))
        return completion.work()

    def close(self) -> None:
        self.stages.close()


def block_bounds(length: int, num_parts: int, block: int) -> Bounds:
    """`num_parts` nearly equal parts of an array, in whole blocks (the last one may be shorter); some may be empty."""
    num_blocks = -(-length // block)
    cuts = [min(length, num_blocks * part // num_parts * block) for part in range(num_parts + 1)]
    return list(itertools.pairwise(cuts))


def num_coded_parts(num_bytes: int, num_members: int) -> int:
    """In how many parts a tensor of so many bytes goes in a group."""
    size = min(LARGEST_PART, max(SMALLEST_MESSAGE * num_members, -(-num_bytes // PARTS)))
    return max(1, -(-num_bytes // size))


def in_parts(
    tensor: torch.Tensor, num_parts: int, block: int, stages: Callable[[torch.Tensor, int], Iterator[None]]
) -> None:
    """Take the parts of a tensor through their stages, all members in one order: the newest part first.

    Args:
        tensor: one-dimensional.
        num_parts: how many.
        block: numbers that stay together.
        stages: of a part and its number; whenever it yields, something of the part is on its way.
    """
    under_way: list[Iterator[None]] = []
    parts = [bounds for bounds in enumerate(block_bounds(len(tensor), num_parts, block)) if bounds[1][0] < bounds[1][1]]
    for index, (start, end) in parts:
        under_way = _one_stage_further([stages(tensor[start:end], index), *under_way])
    while under_way:
        under_way = _one_stage_further(under_way)


def _one_stage_further(parts: list[Iterator[None]]) -> list[Iterator[None]]:
    """Those that have not come to their end."""
    ended = object()
    return [part for part in parts if next(part, ended) is not ended]


def code_size(bounds: Bounds, coding: Coding) -> int:
    """Bytes of the longest part's code."""
    return max(code_bytes(end - start, coding) for start, end in bounds)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where in a sum something is exchanged.

    `place` names its roundings among all of the sum, and `room` the arrays it works in: those of what is under way at
    the same time differ.
    """

    place: str
    room: str

    @classmethod
    def of(cls, where: str, index: int) -> Stage:
        """That of one part."""
        return cls(f"{where} {index}", f"{where} {index % ROOMS}")


@dataclass(frozen=True, slots=True)
class Scatter:
    """Codes on their way to the members that add them."""

    group: Communicator
    work: Work | None
    """None where there are no numbers at all."""
    received: torch.Tensor
    count: int
    """Numbers of this member's shard."""


@dataclass(frozen=True, slots=True)
class Gather:
    """The codes of all members' shards on their way to everybody."""

    work: Work
    codes: torch.Tensor
    """[members, bytes]"""


class CodedStages:
    """The stages, for the thread that carries them out; it keeps the arrays that they need.

    Args:
        wait: waits for one operation.
        at_once: hand codes to all at once, as a scatter does, in as many messages and bytes as around a ring: in small
            groups no worker then waits for a message to have come around.
    """

    def __init__(self, wait: Callable[[Work], None], *, at_once: bool = False) -> None:
        self._wait, self._at_once = wait, at_once
        self._device = torch.device("cpu")
        self._codecs: dict[tuple[Codec, int], BlockCodec | HalfPrecisionCodec] = {}
        self._rooms: dict[str, torch.Tensor] = {}

    def scatter(self, group: Communicator, values: torch.Tensor, coding: Coding, stage: Stage) -> Scatter:
        """Start sending each member the code of its shard of `values`, which are one-dimensional."""
        bounds = block_bounds(len(values), group.size, unit_of(coding))
        sizes = [code_bytes(end - start, coding) for start, end in bounds]
        sent = self.room(f"{stage.room} sent", sum(sizes))
        self.encode(values, bounds, list(torch.split(sent, sizes)), coding=coding, place=stage.place)
        received = self.room(f"{stage.room} received", sizes[group.place] * group.size)
        start, end = bounds[group.place]
        work = group.all_to_all(received, sent, [sizes[group.place]] * group.size, sizes) if len(values) else None
        return Scatter(group, work, received, end - start)

    def total(self, scatter: Scatter, coding: Coding) -> torch.Tensor:
        """The sum of this member's shard, in float32, added in order of places."""
        if scatter.work is not None:
            self._wait(scatter.work)
        codec, count = self._codec(coding), scatter.count
        total, part = (torch.empty(count, device=self._device) for _ in range(2))
        for index, code in enumerate(scatter.received.view(scatter.group.size, code_bytes(count, coding))):
            codec.decode(code, part if index else total)
            if index:
                total.add_(part)
        return total

    def encode(
        self,
        values: torch.Tensor,
        bounds: Bounds,
        codes: list[torch.Tensor],
        *,
        coding: Coding,
        place: str,
    ) -> None:
        """Write the codes of parts of `values`; with error feedback what was left over goes in and the rest is kept."""
        codec, left = self._codec(coding), coding.leftovers
        if left is not None:
            left.add_to(place, values)
        for (start, end), code in zip(bounds, codes, strict=True):
            codec.encode(values[start:end], code)
        if left is not None:
            decoded = torch.empty_like(values)
            self.decode(bounds, codes, decoded, coding)
            left.keep(place, values, decoded)

    def decode(self, bounds: Bounds, codes: list[torch.Tensor], values: torch.Tensor, coding: Coding) -> None:
        """Write the numbers of the parts' codes into `values`; codes may be followed by unused bytes."""
        codec = self._codec(coding)
        for (start, end), code in zip(bounds, codes, strict=True):
            codec.decode(code[: code_bytes(end - start, coding)], values[start:end])

    def own_code(self, total: torch.Tensor, size: int, coding: Coding, stage: Stage) -> torch.Tensor:
        """The code of a shard's sum, at the beginning of an array of `size` bytes, which is the same for all."""
        code = self.room(f"{stage.room} code", size)
        own = code[: code_bytes(len(total), coding)]
        self.encode(total, [(0, len(total))], [own], coding=coding, place=f"{stage.place} sum")
        return code

    def gather(self, group: Communicator, code: torch.Tensor, stage: Stage) -> Gather:
        """Start handing everybody's array to everybody."""
        gathered, sizes = self.room(f"{stage.room} gathered", group.size * len(code)), [len(code)] * group.size
        if self._at_once and self._device.type == "cpu":
            handed = self.room(f"{stage.room} handed", len(gathered))
            handed.view(group.size, -1).copy_(code.expand(group.size, -1))
            work = group.all_to_all(gathered, handed, sizes, sizes)
        else:
            work = group.all_gather(gathered, code)
        return Gather(work, gathered.view(group.size, -1))

    def gathered(self, gather: Gather) -> torch.Tensor:
        """The arrays of all members, [members, bytes]."""
        self._wait(gather.work)
        return gather.codes

    def on(self, device: torch.device) -> None:
        """Work in the memory of this device: what is summed lies there, always on the same one."""
        self._device = device

    def _codec(self, coding: Coding) -> BlockCodec | HalfPrecisionCodec:
        key = coding.transport.codec, coding.transport.block
        if key not in self._codecs:
            self._codecs[key] = codec_of(*key, self._device)
        return self._codecs[key]

    def room(self, name: str, num_bytes: int) -> torch.Tensor:
        """An array that is used again by every sum."""
        if name not in self._rooms or len(self._rooms[name]) < num_bytes:
            self._rooms[name] = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        return self._rooms[name][:num_bytes]


class FlatCodedStages(Stages):
    """Sums over one group that nothing else uses."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.group = group
        self._coded = CodedStages(self.wait)

    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        assert coding is not None, "what is not coded goes by the group's own reduction"
        self._coded.on(tensor.device)
        number = num_coded_parts(tensor.nbytes, self.group.size)
        in_parts(tensor, number, unit_of(coding), lambda part, index: self._stages(part, index, coding))

    def _stages(self, part: torch.Tensor, index: int, coding: Coding) -> Iterator[None]:
        group, stages, stage = self.group, self._coded, Stage.of("flat", index)
        bounds = block_bounds(len(part), group.size, unit_of(coding))
        scatter = stages.scatter(group, part, coding, stage)
        yield
        code = stages.own_code(stages.total(scatter, coding), code_size(bounds, coding), coding, stage)
        gather = stages.gather(group, code, stage)
        yield
        stages.decode(bounds, list(stages.gathered(gather)), part, coding)
