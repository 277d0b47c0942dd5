"""What a codec makes of a sum: fewer bytes on the wire, another way to add them up, and its own seconds.

Around a ring 16 bits are added up by the backend's own all-reduce and halve every byte of it. 8 bits cannot be added up
in 8 bits, so a sum is quantize → all_to_all → exact sum → quantize → all_gather (`topo.timing.traffic`): a byte for
each number and 4 bytes of scale for each block. Stages inside and across nodes do the same with 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from partreduce.topo.codec_numbers import NUMBER_BYTES, SCALE_BYTES
from partreduce.topo.hardware import CodecSeconds, Hardware
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, CodecScope, GradientBuckets, Transport
from partreduce.topo.strategies.base import Strategy
from partreduce.topo.strategies.fragments import Move, moves

FREE = CodecSeconds()
"""No time."""

SECONDS = {
    Codec.FLOAT16: CodecSeconds(2e-10, 1e-10),
    Codec.BFLOAT16: CodecSeconds(2e-10, 1e-10),
    Codec.INT8: CodecSeconds(4e-10, 2e-10),
    Codec.INT4: CodecSeconds(6e-10, 4e-10),
}
"""What encoding and decoding take per byte of float32 on one ordinary core, where the hardware does not say
(docs/clusters.md)."""

LAYERS = 8
"""Segments of a gradient that is sent layer by layer, where the hardware does not say: the weight layers of AlexNet."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How the numbers of a sum are written: `wire` bytes for every byte of float32.

    `exchanged` sums go by all_to_all and all_gather also where there are no stages; `across_only` ones are
    coded only where they cross from node to node. `seconds` are those of encoding and decoding.
    """

    wire: float = 1.0
    exchanged: bool = False
    across_only: bool = False
    seconds: CodecSeconds = FREE

    @classmethod
    def of(cls, transport: Transport, hardware: Hardware) -> Coding:
        """What the hardware makes of a codec; where no link takes time for bytes, coding them takes none either."""
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
"""float32 as it is."""


@dataclass(frozen=True, slots=True)
class Travel:
    """How a sum travels: its algorithm, its coding, and the shares of the payload that are sent one after the other.

    Segment j of L is ready when the share `ready[j]` of a step's computing is done. With `turns` each is sent and
    merged where these shares of a round's computing are done (one for each worker where steps per round differ), and
    computing waits for it where it is merged.
    """

    algorithm: AllReduceAlgorithm
    coding: Coding = PLAIN
    shares: tuple[float, ...] = (1.0,)
    ready: tuple[float, ...] = (1.0,)
    turns: tuple[tuple[float | npt.NDArray[np.float64], Move], ...] = ()

    @classmethod
    def of_strategy(cls, strategy: Strategy, hardware: Hardware, algorithm: AllReduceAlgorithm | None = None) -> Travel:
        """As `of`; fragments that take turns, or a model that is merged late, share the payload evenly."""
        travel, count = cls.of(strategy.transport, hardware, algorithm), strategy.payload.num_fragments
        if not strategy.lacks_newest:
            return travel
        steps_per_round, late = strategy.steps_per_round, strategy.sync.late_steps
        turns: tuple[tuple[float | npt.NDArray[np.float64], Move], ...]
        if isinstance(steps_per_round, int):
            turns = tuple((move.taken / steps_per_round, move) for move in moves(count, steps_per_round, late))
        else:  # where nothing is late, so that all workers have one order
            of_workers = zip(*(moves(count, own, late) for own in steps_per_round), strict=True)
            turns = tuple((np.array([move.taken for move in same]) / steps_per_round, same[0]) for same in of_workers)
        return replace(travel, shares=(1 / count,) * count, turns=turns)

    @classmethod
    def of(cls, transport: Transport, hardware: Hardware, algorithm: AllReduceAlgorithm | None = None) -> Travel:
        """As a schedule says, in its own algorithm unless another is asked for.

        Segments become ready at equal distances during backward, the last share of a step's computing; those without
        any bytes send nothing.
        """
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
