"""The traffic of one group operation, as shares of its payload: rings, stages, all-to-all, all-reduce with a codec.

Through a NIC, or the uplink of a switch, an operation sends in one of two ways. The data of a ring leaves every place
(a node, or a switch) that the ring crosses once, however many of its members are there. In an all_to_all a place that
holds h of k members sends one piece, 1/k of the payload, for each pair of a member here and a member elsewhere:
h(k−h) pieces.

    operation, k members on m nodes         through a NIC with h of them          latencies         inside a node
    ring                                    2(k−1)/k                              2(k−1)            2(k−1)/k
    hierarchical, l on each node            2(m−1)/m                              2(l−1) + 2(m−1)   2(l−1)/l
    all_to_all                              h(k−h)/k                              k−1               (h−1)/k
    8 bits                                  w(h(k−h)/k + (k−1)/k)                 2(k−1)            w((h−1)/k + (k−1)/k)
    8 bits, hierarchical                    2w(m−1)/m                             2(l−1) + 2(m−1)   2w(l−1)/l, or
                                                                                                    (1+w)(l−1)/l

"8 bits" stands for int8 and int4, w for their bytes on the wire per byte of float32. 16 bits send half of what the
algorithm sends. 8 bits are quantized, exchanged by an all_to_all, added up, quantized again and gathered around a ring.
In the hierarchical algorithm 16 bits, too, go this way among the m nodes, for each of the l shards, and before that
inside a node unless only traffic between nodes is coded. The result that is distributed inside a node at the end has
crossed nodes and is coded in any case. Groups to which the hierarchical algorithm does not apply use the flat one; if
only traffic between nodes is coded, those inside a node are not.

With 2.19 MB on 16 workers on 4 nodes this gives 2.19 MB through each NIC for flat 8 bits and 0.83 MB hierarchical; a
prototype over gloo sent 2.20 and 0.84.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partreduce.topo.codec_numbers import NUMBER_BYTES, SCALE_BYTES
from partreduce.topo.fields import Flags, Floats, Whole
from partreduce.topo.hardware import CodecSeconds, Hardware
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, GradientBuckets, Transport
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.payload import Move, moves

Algorithm = AllReduceAlgorithm | None
"""An all-reduce algorithm, or None for the one of the schedule."""

FREE = CodecSeconds()
"""The coding times of a codec that takes no time."""

SECONDS = {
    Codec.FLOAT16: CodecSeconds(2e-10, 1e-10),
    Codec.BFLOAT16: CodecSeconds(2e-10, 1e-10),
    Codec.INT8: CodecSeconds(4e-10, 2e-10),
    Codec.INT4: CodecSeconds(6e-10, 4e-10),
}
"""Default times to encode and decode one byte of float32 on one ordinary core, in seconds (docs/clusters.md)."""

LAYERS = 8
"""The default number of segments of a gradient that is sent layer by layer: AlexNet's number of weight layers."""


@dataclass(frozen=True, slots=True)
class Coding:
    """The number format of an all-reduce on the wire: `wire` bytes for every byte of float32.

    With `exchanged` (int8, int4) also a flat all-reduce consists of an all_to_all and an all_gather; with `across_only`
    it is encoded only between nodes. `seconds` are the times to encode and decode a byte of float32.
    """

    wire: float = 1.0
    exchanged: bool = False
    across_only: bool = False
    seconds: CodecSeconds = FREE

    @classmethod
    def of(cls, transport: Transport, hardware: Hardware) -> Coding:
        """Return the coding of a transport; it takes no time if no link of the hardware takes time for bytes."""
        if transport.codec is Codec.NONE:
            return PLAIN
        scales = SCALE_BYTES / transport.block if transport.codec.has_blocks else 0.0
        stated = dict(hardware.codec).get(transport.codec.value, SECONDS[transport.codec])
        return cls(
            wire=(NUMBER_BYTES[transport.codec.value] + scales) / 4,
            exchanged=transport.codec.has_blocks,
            across_only=transport.where is CodecScope.ACROSS_NODES,
            seconds=FREE if hardware.is_free_of_bytes() else stated,
        )


PLAIN = Coding()
"""Uncompressed float32."""


@dataclass(frozen=True, slots=True)
class Travel:
    """How an all-reduce is sent: its algorithm, its coding, and its segments, which are sent one after another.

    Segment j is `shares[j]` of the payload, ready when the share `ready[j]` of a step's computing is done. `turns` are
    (when, move): a segment is sent or merged when this share of a round's computing is done (an array by worker if
    steps per round differ); at its merge computing waits for it.
    """

    algorithm: AllReduceAlgorithm
    coding: Coding = PLAIN
    shares: tuple[float, ...] = (1.0,)
    ready: tuple[float, ...] = (1.0,)
    turns: tuple[tuple[float | Floats, Move], ...] = ()

    @classmethod
    def of_strategy(cls, strategy: Strategy, hardware: Hardware, algorithm: Algorithm = None) -> Travel:
        """Build from a strategy's transport, as `of`; fragments or a delayed merge add `turns`, of equal shares."""
        travel, count = cls.of(strategy.transport, hardware, algorithm), strategy.payload.num_fragments
        if not strategy.lacks_newest:
            return travel
        steps_per_round, late = strategy.steps_per_round, strategy.sync.late_steps
        turns: tuple[tuple[float | Floats, Move], ...]
        if isinstance(steps_per_round, int):
            turns = tuple((move.taken / steps_per_round, move) for move in moves(count, steps_per_round, late))
        else:  # no merge is late here, so all workers have the same order of moves
            of_workers = zip(*(moves(count, own, late) for own in steps_per_round), strict=True)
            turns = tuple((np.array([move.taken for move in same]) / steps_per_round, same[0]) for same in of_workers)
        return replace(travel, shares=(1 / count,) * count, turns=turns)

    @classmethod
    def of(cls, transport: Transport, hardware: Hardware, algorithm: Algorithm = None) -> Travel:
        """Build from a transport, or with another `algorithm`; layers get ready at equal intervals of backward."""
        chosen = transport.algorithm if algorithm is None else algorithm
        if transport.where is CodecScope.ACROSS_NODES and chosen is not transport.algorithm:
            type(transport)(algorithm=chosen, codec=transport.codec, where=transport.where).check()
        coding = Coding.of(transport, hardware)
        if transport.gradient_buckets is GradientBuckets.SINGLE:
            return cls(chosen, coding)
        sizes = hardware.layers if isinstance(hardware.layers, tuple) else (1,) * (hardware.layers or LAYERS)
        count, whole = len(sizes), sum(sizes)
        places = [place for place, size in enumerate(sizes, start=1) if size]
        shares = tuple(sizes[place - 1] / whole for place in places)
        return cls(chosen, coding, shares, tuple(1 - hardware.backward * (1 - place / count) for place in places))


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of groups, arrays (groups,): workers, nodes, and each group's `most` and `least` workers on one node.

    `here` has one entry for each pair of a group and a node on which it has workers: the number of these workers.
    """

    sizes: Whole
    num_nodes: Whole
    most: Floats
    least: Floats
    here: Floats

    @property
    def members(self) -> Floats:
        """The number of workers of each group, shape (groups,)."""
        return self.sizes.astype(float)

    @property
    def crosses(self) -> Flags:
        """Whether each group has workers on several nodes, shape (groups,)."""
        crosses: Flags = self.num_nodes > 1
        return crosses

    @property
    def inside(self) -> Floats:
        """The largest number of workers that a group has on one node, at least 1; shape (groups,)."""
        return np.maximum(self.most, 1.0)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes and latencies of one operation of each group, arrays of shape (groups,).

    Bytes are shares of the payload: `ring` passes through every NIC and uplink that the group crosses, and in addition
    `exchanged` · h(parts − h)/parts through one with h of the group's `parts` behind it; parts are workers or, where
    `by_node`, nodes. `inside` passes through the links inside a node, `sent` leaves each worker by any link. The
    operation waits for `flat_hops` latencies of the group's slowest link, `inside_hops` of links inside nodes and
    `nic_hops` of links across nodes; each worker sends `messages`. Coding takes `codec` seconds per payload byte.
    """

    ring: Floats
    exchanged: Floats
    parts: Floats
    by_node: Flags
    inside: Floats
    sent: Floats
    flat_hops: Floats
    inside_hops: Floats
    nic_hops: Floats
    messages: Floats
    codec: Floats

    def through(self, group: Whole, workers: Floats, nodes: Floats) -> Floats:
        """Return, for each i, the payload share of group[i] on a link with workers[i] on nodes[i] nodes behind it."""
        if not self.exchanged.any():
            return self.ring[group]
        parts, here = self.parts[group], np.where(self.by_node[group], nodes, workers)
        return self.ring[group] + self.exchanged[group] * here * (parts - here) / parts


def of_sum(shape: Shape, algorithm: str, coding: Coding = PLAIN) -> Traffic:
    """Return the traffic of an all-reduce in each group, by `algorithm` "ring" or "hierarchical", in this `coding`."""
    k, m, few = shape.members, shape.num_nodes.astype(float), shape.inside
    # Groups with separate stages inside nodes and across nodes.
    split: Flags = shape.crosses & (few > 1) & (shape.most == shape.least) & (algorithm == "hierarchical")
    none, hops = np.zeros(len(k)), 2 * (k - 1)
    whole = hops / k
    across = np.where(split, 2 * (m - 1) / m, whole)
    inside = np.where(few > 1, np.where(split, 2 * (few - 1) / few, whole), 0.0)
    plain = Traffic(
        ring=across,
        exchanged=none,
        parts=np.where(split, m, k),
        by_node=split,
        inside=inside,
        sent=whole,
        flat_hops=np.where(split, 0.0, hops),
        inside_hops=np.where(split, 2 * (few - 1), 0.0),
        nic_hops=np.where(split, 2 * (m - 1), 0.0),
        messages=hops,
        codec=none,
    )
    return plain if coding == PLAIN else _with_codec(plain, shape, split, coding)


def _with_codec(plain: Traffic, shape: Shape, split: Flags, coding: Coding) -> Traffic:
    """Return the traffic of all-reduces with a codec, from the traffic without, `plain`.

    There are fewer bytes and, except for 16 bits, an all-to-all instead of half of a ring. `split` (groups,) is True
    for groups with separate stages inside nodes and across.
    """
    k, few = shape.members, shape.inside
    coded = shape.crosses if coding.across_only else np.ones(len(k), dtype=bool)
    wire = np.where(coded, coding.wire, 1.0)
    exchanged = coded & (coding.exchanged | split)
    flat_inside = np.where(exchanged, (few - 1) / k + (k - 1) / k, plain.inside)
    # Values summed inside a node before they cross keep their precision; the distributed result has crossed.
    first = np.where(split & coding.across_only, 1.0, wire)
    stages = (few - 1) / few * (first + wire)
    return replace(
        plain,
        ring=wire * np.where(exchanged, plain.ring / 2, plain.ring),
        exchanged=np.where(exchanged, wire, 0.0),
        inside=np.where(few > 1, np.where(split, stages, flat_inside * wire), 0.0),
        sent=np.where(split, stages + plain.ring / few * wire, plain.sent * wire),
        codec=np.where(coded, _codec_seconds(shape, split, coding), 0.0),
    )


def all_to_all(shape: Shape, wire: float = 1.0) -> Traffic:
    """Return the traffic of an all-to-all in each group; a worker's payload is one equal piece for each member.

    `wire` are the bytes on the wire for each byte of the payload. O(groups).
    """
    k, few, none = shape.members, shape.inside, np.zeros(len(shape.sizes))
    return Traffic(
        ring=none,
        exchanged=np.full(len(k), wire),
        parts=k,
        by_node=np.zeros(len(k), dtype=bool),
        inside=wire * (few - 1) / k,
        sent=wire * (k - 1) / k,
        flat_hops=k - 1,
        inside_hops=none,
        nic_hops=none,
        messages=k - 1,
        codec=none,
    )


def _codec_seconds(shape: Shape, split: Flags, coding: Coding) -> Floats:
    """Return the coding seconds of one worker per byte of the payload, (groups,); `split` as in `_with_codec`.

    A ring of 16 bits encodes and decodes everything once. Otherwise, among p members, a worker encodes everything,
    decodes the p pieces that it adds up (together one payload), encodes their sum of 1/p, and decodes the result.
    Groups with separate stages inside nodes do this to a shard, but decode everything at the end; if inside traffic is
    coded as well, they encode everything and decode the pieces to add before that.
    """
    encode, decode, few = coding.seconds.encode, coding.seconds.decode, shape.inside
    parts = np.where(split, shape.num_nodes, shape.sizes)
    summed = encode * (1 + 1 / parts) + decode
    before = 0.0 if coding.across_only else encode + decode
    flat = summed if coding.exchanged else np.full(len(parts), encode)
    seconds: Floats = np.where(split, before + summed / few, flat) + decode
    return seconds
