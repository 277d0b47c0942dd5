"""Run all-reduces of several stages: with a codec, and hierarchical ones inside and across nodes.

A stage starts when the one before it has ended. On the CPU a thread waits between stages; it has its own groups, so
that no other operation is mixed in. On a device the host queues all stages in a stream and continues.

All-reduces with a codec have these stages: encode, all-to-all, add in float32, encode again, all-gather. Each member
adds up one shard, in order of the members, and sends its encoded sum; it also uses the decoded numbers itself, so that
all members end with the same bits. There are two roundings for any number of members; a ring would round at every hop.
Each member sends (k-1)/k of its whole encoded tensor twice. A tensor is split into parts: while one part is being sent,
others are encoded, added and decoded, as in Pipe-SGD (Li et al., NeurIPS 2018, Figure 3).

The algorithm `hierarchical` reduces shards inside each node, then across nodes, then distributes them. It applies to
groups with the same number l ≥ 2 of workers on each of m ≥ 2 nodes; any other group uses a ring. Every worker sends
2(m−1)/m of its l-th of the tensor out of its node, and 2(l−1)/l of the tensor inside; in a ring it sends 2(k−1)/k of
the tensor over its link to the next worker. The two levels are pipelined, as `topo.timing.cost` assumes. A codec
applies to all messages, or only to those between nodes; encoded sums from other nodes are distributed as they are.

Shards are exchanged by all_to_all: gloo's own reduce-scatter (torch 2.13) sends as much as an all-reduce and never
reports its end; with it, all-reduces of 4x4 workers took 1.04 to 1.17 times as long.
"""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from partreduce.runtime.codecs import BlockCodec, Coding, HalfPrecisionCodec, code_bytes, codec_of, unit_of
from partreduce.runtime.transport.communicators import Communicator, Sums
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.work import Background, Completion, Work
from partreduce.topo.strategies.axes import Codec, CodecScope

Bounds = list[tuple[int, int]]

LARGEST_PART, SMALLEST_MESSAGE, PARTS = 8 * 2**20, 2**18, 4
"""Limits for splitting a coded tensor: largest part in bytes, fewest bytes of a part per member, most parts. More parts
overlap better, but each costs its messages."""
PART_BYTES = LARGEST_PART  # part size of an uncoded tensor; one array of this size is kept per group
ROOMS = 4  # parts that may be in progress at the same time, each in another stage
CLOSING_SECONDS = 0.02  # between two checks whether the group was destroyed or the interpreter exits
SMALL_BYTES = 1024
"""Shorter tensors, such as tags, use a ring over the whole group: three stages would only add latency."""


class Stages(ABC):
    """Base class of a group's all-reduces in several stages (transfers one after the other), run in order of the calls.

    After a failure every later all-reduce fails, since members may disagree on the order of operations.
    """

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[torch.Tensor, Coding | None, Completion] | None] = queue.SimpleQueue()
        self.closed = False
        self.is_queued = False  # whether the current stream, not the host, waits for a stage
        self._failure: str | None = None

    def close(self) -> None:
        self.closed = True
        self.calls.put(None)

    @abstractmethod
    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        """All-reduce a one-dimensional tensor over the group, in place."""

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            tensor, coding, completion = call
            if self._failure is None:
                try:
                    with torch.no_grad():
                        self.sum(tensor, coding)
                except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                    self._failure = str(error) or type(error).__name__
            completion.reached(self._failure)
            del call, tensor, coding, completion

    def wait(self, work: Work) -> None:
        """Wait for the transfer of one stage, inside torch's library for short times, which is cheaper than polling.

        Raises RuntimeError if the stages are closed meanwhile, as they are when the interpreter exits.
        """
        work.wait(None if self.is_queued else self._look, for_moments=True)

    def _look(self) -> float:
        if self.closed:
            raise RuntimeError("the group was destroyed while its sum was running")
        return CLOSING_SECONDS


class QueuedSums:
    """Runner of a group's `Stages` on a CUDA device: it queues all stages in a separate stream."""

    def __init__(self, stages: Stages, streams: Streams) -> None:
        self.stages, self._streams = stages, streams.another()
        stages.is_queued = True

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        with self._streams.side(), torch.no_grad():
            self.stages.sum(tensor.view(-1), coding)
            end = self._streams.mark()
        return Work(end.query, partial(self._streams.follow, end))

    def close(self) -> None: ...


class StagedSums:
    """Runner of a group's `Stages` on the CPU, in a thread that starts with the first all-reduce."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.thread: threading.Thread | None = None

    def start(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        if self.thread is None:
            self.thread = Background(self.stages.run, name="partreduce-stages", stop=self.stages.close)
            self.thread.start()
            weakref.finalize(self, self.stages.calls.put, None)
        completion = Completion()
        self.stages.calls.put((tensor.view(-1), coding, completion))
        return completion.work()

    def close(self) -> None:
        self.stages.close()


def block_bounds(length: int, num_parts: int, block: int = 1) -> Bounds:
    """Divide `length` elements into `num_parts` nearly equal ranges (start, end), between blocks; some may be empty."""
    num_blocks = -(-length // block)
    cuts = [min(length, num_blocks * part // num_parts * block) for part in range(num_parts + 1)]
    return list(itertools.pairwise(cuts))


def lengths_of(bounds: Bounds) -> list[int]:
    """Return the length of each range (start, end)."""
    return [end - start for start, end in bounds]


def in_parts(
    tensor: torch.Tensor, num_parts: int, block: int, stages: Callable[[torch.Tensor, int], Iterator[None]]
) -> None:
    """Divide a one-dimensional tensor into `num_parts` parts, and run them through their stages, overlapped.

    Blocks of `block` elements are not split. `stages(part, number)` is a generator that yields while a transfer is in
    progress. All members advance the parts in the same order, the newest part first.
    """
    under_way: list[Iterator[None]] = []
    parts = [bounds for bounds in enumerate(block_bounds(len(tensor), num_parts, block)) if bounds[1][0] < bounds[1][1]]
    for index, (start, end) in parts:
        under_way = _one_stage_further([stages(tensor[start:end], index), *under_way])
    while under_way:
        under_way = _one_stage_further(under_way)


def _one_stage_further(parts: list[Iterator[None]]) -> list[Iterator[None]]:
    ended = object()
    return [part for part in parts if next(part, ended) is not ended]


def code_size(bounds: Bounds, coding: Coding) -> int:
    """Return the encoded size in bytes of the longest of the ranges `bounds`."""
    return max(code_bytes(length, coding) for length in lengths_of(bounds))


class Stage(NamedTuple):
    """Names for one transfer of an all-reduce: `place` of its stored rounding errors, `room` of its scratch arrays."""

    place: str
    room: str

    @classmethod
    def of(cls, where: str, index: int) -> Stage:
        return cls(f"{where} {index}", f"{where} {index % ROOMS}")


class CodedStages(Stages):
    """Base class of all-reduces with a codec: encodes, exchanges and decodes shards, in scratch arrays that it reuses.

    With `at_once`, every member sends its encoded sums to all others at once instead of around a ring, with equally
    many messages and bytes; in small groups this avoids waiting for each hop.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        super().__init__()
        self._at_once = at_once
        self._device = torch.device("cpu")
        self._codecs: dict[tuple[Codec, int], BlockCodec | HalfPrecisionCodec] = {}
        self._rooms: dict[str, torch.Tensor] = {}

    def in_coded_parts(
        self, tensor: torch.Tensor, num_members: int, coding: Coding, stages: Callable[..., Iterator[None]]
    ) -> None:
        """Run `stages(part, number, coding)` on all parts of a tensor; `num_members` determines the size of a part."""
        size = min(LARGEST_PART, max(SMALLEST_MESSAGE * num_members, -(-tensor.nbytes // PARTS)))
        number = max(1, -(-tensor.nbytes // size))
        in_parts(tensor, number, unit_of(coding), lambda part, index: stages(part, index, coding))

    def scatter(
        self, group: Communicator, values: torch.Tensor, coding: Coding, stage: Stage
    ) -> Callable[[], torch.Tensor]:
        """Start sending each member its shard (range) of `values`, encoded.

        Returns a function that waits for all members' codes of this worker's shard, and returns the decoded sum.
        """
        bounds = block_bounds(len(values), group.size, unit_of(coding))
        sizes = [code_bytes(length, coding) for length in lengths_of(bounds)]
        sent = self.room(f"{stage.room} sent", sum(sizes))
        self.encode(values, bounds, list(torch.split(sent, sizes)), coding=coding, place=stage.place)
        received = self.room(f"{stage.room} received", sizes[group.place] * group.size)
        work = group.all_to_all(received, sent, [sizes[group.place]] * group.size, sizes) if len(values) else None
        codes, count = received.view(group.size, sizes[group.place]), lengths_of(bounds)[group.place]
        return lambda: self.total(work, codes, count, coding)

    def total(self, work: Work | None, received: torch.Tensor, count: int, coding: Coding) -> torch.Tensor:
        """Wait for `work`; decode `received`, a row of `count` numbers per member, and return the sum of the rows."""
        if work is not None:  # None for an empty tensor
            self.wait(work)
        codec = self._codec(coding)
        total, part = (torch.empty(count, device=self._device) for _ in range(2))
        for index, code in enumerate(received):
            codec.decode(code, part if index else total)
            if index:
                total.add_(part)
        return total

    def encode(
        self, values: torch.Tensor, bounds: Bounds, codes: list[torch.Tensor], *, coding: Coding, place: str
    ) -> None:
        """Encode ranges `bounds` of `values` to `codes`; error feedback adds and stores the errors called `place`."""
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
        """Decode `codes` into the ranges `bounds` of `values`; a code may be followed by unused bytes."""
        codec = self._codec(coding)
        for (start, end), code in zip(bounds, codes, strict=True):
            codec.decode(code[: code_bytes(end - start, coding)], values[start:end])

    def own_code(self, total: torch.Tensor, size: int, coding: Coding, stage: Stage) -> torch.Tensor:
        """Return `total`, the sum of this worker's shard, encoded in `size` bytes, enough for any member's shard."""
        code = self.room(f"{stage.room} code", size)
        own = code[: code_bytes(len(total), coding)]
        self.encode(total, [(0, len(total))], [own], coding=coding, place=f"{stage.place} sum")
        return code

    def gather(self, group: Communicator, code: torch.Tensor, stage: Stage) -> Callable[[], torch.Tensor]:
        """Start an all-gather of `code`, encoded sums; return a function that waits and returns [members, bytes]."""
        gathered, sizes = self.room(f"{stage.room} gathered", group.size * len(code)), [len(code)] * group.size
        if self._at_once and self._device.type == "cpu":
            handed = self.room(f"{stage.room} handed", len(gathered))
            handed.view(group.size, -1).copy_(code.expand(group.size, -1))
            work = group.all_to_all(gathered, handed, sizes, sizes)
        else:
            work = group.all_gather(gathered, code)

        def wait() -> torch.Tensor:
            self.wait(work)
            return gathered.view(group.size, -1)

        return wait

    def _codec(self, coding: Coding) -> BlockCodec | HalfPrecisionCodec:
        key = coding.transport.codec, coding.transport.block
        if key not in self._codecs:
            self._codecs[key] = codec_of(*key, self._device)
        return self._codecs[key]

    def room(self, name: str, num_bytes: int) -> torch.Tensor:
        """Return the first `num_bytes` bytes of the reusable scratch array called `name`."""
        if name not in self._rooms or len(self._rooms[name]) < num_bytes:
            self._rooms[name] = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        return self._rooms[name][:num_bytes]


class FlatCodedStages(CodedStages):
    """All-reduces with a codec directly among all members of `group`, a communicator that nothing else uses."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.group = group

    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        assert coding is not None, "what is not coded goes by the group's own reduction"
        self._device = tensor.device
        self.in_coded_parts(tensor, self.group.size, coding, self._stages)

    def _stages(self, part: torch.Tensor, index: int, coding: Coding) -> Iterator[None]:
        group, stage = self.group, Stage.of("flat", index)
        bounds = block_bounds(len(part), group.size, unit_of(coding))
        total = self.scatter(group, part, coding, stage)
        yield
        gathered = self.gather(group, self.own_code(total(), code_size(bounds, coding), coding, stage), stage)
        yield
        self.decode(bounds, list(gathered()), part, coding)


def levels_of(
    members: Sequence[int], nodes: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return this worker's two groups in a hierarchical all-reduce: the members on its node, and one member per node.

    The latter have the same local index on their nodes. None if a ring applies: fewer than two nodes, or fewer than two
    or unequally many members on them. `members` are ascending and contain `rank`; `nodes` has the node of every worker.
    """
    on_node: dict[int, list[int]] = {}
    for member in members:
        on_node.setdefault(nodes[member], []).append(member)
    inside = on_node[nodes[rank]]
    if len(on_node) < 2 or len(inside) < 2 or any(len(part) != len(inside) for part in on_node.values()):
        return None
    place = inside.index(rank)
    return tuple(inside), tuple(sorted(part[place] for part in on_node.values()))


class HierarchicalCommunicator(Communicator):
    """Communicator of a group with equally many members on each node; all-reduces run inside nodes and across them.

    `whole` connects all members, `inside` those on this node, `across` one member per node. The runner of stages that
    `staged` makes keeps the order of the calls; short all-reduces and all other operations use `whole`.
    """

    def __init__(
        self, whole: Communicator, inside: Communicator, across: Communicator, staged: Callable[[Stages], Sums]
    ) -> None:
        (backend,) = whole.close()
        super().__init__(whole.members, whole.members[whole.place], backend, whole.timeout)
        self.sums = staged(_Levels(inside, across))
        self._levels = inside, across

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> Work:
        """Start an all-reduce over the group, in place (see `Communicator`); a short tensor is not encoded."""
        if tensor.nbytes < SMALL_BYTES or tensor.numel() < self._levels[0].size:
            return super().all_reduce(tensor)
        self._live()
        return self.sums.start(tensor, coding)

    def close(self) -> list[object]:
        self.sums.close()
        return [*super().close(), *(backend for level in self._levels for backend in level.close())]


class _Levels(CodedStages):
    """The stages of a hierarchical all-reduce: inside the node, across nodes, inside the node again.

    One worker of a node adds up each shard in order of the members, and the others copy that sum, so that all members
    end with the same bits, in every run.
    """

    def __init__(self, inside: Communicator, across: Communicator) -> None:
        super().__init__(at_once=True)
        self.inside, self.across = inside, across

    def sum(self, tensor: torch.Tensor, coding: Coding | None) -> None:
        """All-reduce a tensor in parts: while one part is sent between nodes, others are coded or sent inside nodes."""
        self._device = tensor.device
        if coding is None:
            in_parts(tensor, -(-tensor.nbytes // PART_BYTES), 1, lambda part, _index: self._plain(part))
        else:
            self.in_coded_parts(tensor, self.inside.size * self.across.size, coding, self._in_codes)

    def _plain(self, part: torch.Tensor) -> Iterator[None]:
        bounds = block_bounds(len(part), self.inside.size)
        own = self._add_rows(part, bounds, *self._collect(part, bounds, "rows"))
        crossing = self.across.all_reduce(own)
        yield
        self.wait(crossing)
        rows = self._rows(own, "rows")
        rows.copy_(own.expand_as(rows))
        self.wait(self.inside.all_to_all(part, rows.view(-1), lengths_of(bounds), [len(own)] * self.inside.size))

    def _collect(self, part: torch.Tensor, bounds: Bounds, room: str) -> tuple[torch.Tensor, Work]:
        """Start receiving this worker's shard (one of the ranges `bounds`) of a part from all members on its node.

        Returns the array [members, numbers], in the scratch array called `room`, and the work to wait for.
        """
        start, end = bounds[self.inside.place]
        rows = self._rows(part[start:end], room)
        sizes = [end - start] * self.inside.size
        return rows, self.inside.all_to_all(rows.view(-1), part, sizes, lengths_of(bounds))

    def _add_rows(self, part: torch.Tensor, bounds: Bounds, rows: torch.Tensor, work: Work) -> torch.Tensor:
        """Wait for `work`, which fills `rows`; set this worker's shard of `part` to their sum, and return the shard."""
        self.wait(work)
        start, end = bounds[self.inside.place]
        own = part[start:end]
        torch.add(rows[0], rows[1], out=own)
        for row in rows[2:]:
            own.add_(row)
        return own

    def _in_codes(self, part: torch.Tensor, index: int, coding: Coding) -> Iterator[None]:
        """Run the stages of part number `index` with a codec; the total is encoded once and distributed unchanged."""
        unit, inside, across = unit_of(coding), self.inside, self.across
        within, crosses = Stage.of("inside", index), Stage.of("across", index)
        bounds = block_bounds(len(part), inside.size, unit)
        if coding.transport.where is CodecScope.ACROSS_NODES:
            collected = self._collect(part, bounds, f"{within.room} rows")
            yield
            own = self._add_rows(part, bounds, *collected)
        else:
            total = self.scatter(inside, part, coding, within)
            yield
            own = total()
        total = self.scatter(across, own, coding, crosses)
        yield
        finer = [block_bounds(length, across.size, unit) for length in lengths_of(bounds)]
        size = max(code_size(shard, coding) for shard in finer)
        gathered = self.gather(across, self.own_code(total(), size, coding, crosses), crosses)
        yield
        gathered = self.gather(inside, gathered().view(-1), within)  # a row of [nodes, bytes]
        yield
        codes = gathered().view(inside.size, across.size, size)
        for (start, stop), shard, mine in zip(bounds, finer, codes, strict=True):
            self.decode(shard, list(mine), part[start:stop], coding)

    def _rows(self, own: torch.Tensor, room: str) -> torch.Tensor:
        """Return the scratch array called `room` as one row, with `own`'s length and dtype, per member of the node."""
        rows = self.room(room, self.inside.size * own.nbytes)
        return rows.view(own.dtype).view(self.inside.size, len(own))
