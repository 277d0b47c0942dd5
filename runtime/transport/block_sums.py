"""Sums in eight bits or four: quantise, all-to-all, add in float32, quantise again, all-gather.

Each member adds up one shard, in order of places, and hands out its code; it takes the decoded numbers itself, too, so
that all members end with the same bits. Two roundings at any number of members; a ring would round at every hop.
Each member sends (k-1)/k of the code of its whole tensor twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from partreduce.runtime.codecs.blocks import BlockCodec
from partreduce.runtime.codecs.coding import Coding
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.staged import Stages
from partreduce.runtime.transport.waiting import RunningWork
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.strategies.axes import How

Bounds = list[tuple[int, int]]


def block_bounds(length: int, num_parts: int, block: int) -> Bounds:
    """`num_parts` nearly equal parts of an array, in whole blocks (the last one may be shorter); some may be empty."""
    num_blocks = -(-length // block)
    cuts = [min(length, num_blocks * part // num_parts * block) for part in range(num_parts + 1)]
    return list(itertools.pairwise(cuts))


def bytes_of(count: int, how: How) -> int:
    """Of the code of so many numbers."""
    return block_bytes(how.codec, count, how.block)


def code_size(bounds: Bounds, how: How) -> int:
    """Bytes of the longest part's code."""
    return max(bytes_of(end - start, how) for start, end in bounds)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where in a sum something is exchanged.

    `place` names its roundings among all of the sum, and `room` the arrays it works in: those of what is under way at
    the same time differ.
    """

    place: str
    room: str


FLAT = Stage("flat", "flat")


@dataclass(frozen=True, slots=True)
class Scatter:
    """Codes on their way to the members that add them."""

    group: Communicator
    work: RunningWork | None
    """None where there are no numbers at all."""
    sent: torch.Tensor
    received: torch.Tensor
    count: int
    """Numbers of this member's shard."""


class BlockStages:
    """The stages, for the thread that carries them out; it keeps the arrays that they need.

    Args:
        wait: waits for one operation.
    """

    def __init__(self, wait: Callable[[RunningWork], None]) -> None:
        self._wait = wait
        self._codecs: dict[How, BlockCodec] = {}
        self._rooms: dict[str, torch.Tensor] = {}

    def scatter(self, group: Communicator, values: torch.Tensor, coding: Coding, stage: Stage) -> Scatter:
        """Start sending each member the code of its shard of `values`, which are one-dimensional."""
        bounds = block_bounds(len(values), group.size, coding.how.block)
        sizes = [bytes_of(end - start, coding.how) for start, end in bounds]
        sent = self._room(f"{stage.room} sent", sum(sizes))
        self.encode(values, bounds, list(torch.split(sent, sizes)), coding=coding, place=stage.place)
        received = self._room(f"{stage.room} received", sizes[group.place] * group.size)
        start, end = bounds[group.place]
        work = group.all_to_all(received, sent, [sizes[group.place]] * group.size, sizes) if len(values) else None
        return Scatter(group, work, sent, received, end - start)

    def total(self, scatter: Scatter, how: How) -> torch.Tensor:
        """The sum of this member's shard, in float32, added in order of places."""
        if scatter.work is not None:
            self._wait(scatter.work)
        codec, count = self._codec(how), scatter.count
        total, part = torch.empty(count), torch.empty(count)
        for index, code in enumerate(scatter.received.view(scatter.group.size, bytes_of(count, how))):
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
        codec, left = self._codec(coding.how), coding.leftovers
        if left is not None:
            left.add_to(place, values)
        for (start, end), code in zip(bounds, codes, strict=True):
            codec.encode(values[start:end], code)
        if left is not None:
            decoded = torch.empty_like(values)
            self.decode(bounds, codes, decoded, coding.how)
            left.keep(place, values, decoded)

    def decode(self, bounds: Bounds, codes: list[torch.Tensor], values: torch.Tensor, how: How) -> None:
        """Write the numbers of the parts' codes into `values`; codes may be followed by unused bytes."""
        codec = self._codec(how)
        for (start, end), code in zip(bounds, codes, strict=True):
            codec.decode(code[: bytes_of(end - start, how)], values[start:end])

    def own_code(self, total: torch.Tensor, size: int, coding: Coding, stage: Stage) -> torch.Tensor:
        """The code of a shard's sum, at the beginning of an array of `size` bytes, which is the same for all."""
        code = self._room(f"{stage.room} code", size)
        own = code[: bytes_of(len(total), coding.how)]
        self.encode(total, [(0, len(total))], [own], coding=coding, place=f"{stage.place} sum")
        return code

    def gather(self, group: Communicator, code: torch.Tensor, stage: Stage) -> torch.Tensor:
        """The arrays of all members, [members, bytes]."""
        gathered = self._room(f"{stage.room} gathered", group.size * len(code))
        self._wait(group.all_gather(gathered, code))
        return gathered.view(group.size, -1)

    def _codec(self, how: How) -> BlockCodec:
        if how not in self._codecs:
            self._codecs[how] = BlockCodec(how.codec, how.block)
        return self._codecs[how]

    def _room(self, name: str, num_bytes: int) -> torch.Tensor:
        """An array that is used again by every sum."""
        if name not in self._rooms or len(self._rooms[name]) < num_bytes:
            self._rooms[name] = torch.zeros(num_bytes, dtype=torch.uint8)
        return self._rooms[name][:num_bytes]


class FlatBlockStages(Stages):
    """Sums over one group that nothing else uses."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.group = group
        self._blocks = BlockStages(self.wait)

    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        assert coding is not None, "what is not coded goes by the group's own reduction"
        group, stages, how = self.group, self._blocks, coding.how
        bounds = block_bounds(len(tensor), group.size, how.block)
        total = stages.total(stages.scatter(group, tensor, coding, FLAT), how)
        code = stages.own_code(total, code_size(bounds, how), coding, FLAT)
        stages.decode(bounds, list(stages.gather(group, code, FLAT)), tensor, how)
