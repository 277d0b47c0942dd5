"""Pipe-SGD's timing model (Li et al., NeurIPS 2018, section 3.2, equations 2 to 7).

The paper models the time of T iterations from the update l_up, the computing l_comp and the communication l_comm of
one iteration: one after the other when synchronous, the larger of (update and computing) and communication when the
gradients are one iteration late. The formulas below are written from that model and the standard cost of a ring
all-reduce with a term for adding. Checked against notes from a reading of the paper are equation 4, the pipeline; 5 and
6, the same with the ring's cost for a gradient in one piece and for one that is sent layer by layer. Equation 7 is
derived from what it defines, and which of the other formulas is 2 and 3 was not checked. Compression is this module's
own parameter: it scales the bytes and adds its own seconds to the communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from partreduce.topo.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Seconds of the parts of one iteration."""

    update: float
    forward: float
    backward: float
    communicate: float

    def __post_init__(self) -> None:
        """Refuse negative times."""
        for name in self.__slots__:
            if not getattr(self, name) >= 0:
                raise InputError(f"{name}: {getattr(self, name)} s; times are >= 0")

    @property
    def local(self) -> float:
        """Update and computing: what a worker does by itself."""
        return self.update + self.forward + self.backward


def ring_seconds(
    num_workers: int,
    num_bytes: float,
    *,
    latency: float,
    seconds_per_byte: float,
    add_seconds_per_byte: float = 0.0,
    synchronise: float = 0.0,
) -> float:
    """A ring all-reduce: 2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ + S.

    Args:
        num_workers: p.
        num_bytes: n.
        latency: α, of every message.
        seconds_per_byte: β.
        add_seconds_per_byte: γ, the time to add one byte of two messages.
        synchronise: S, a constant per operation.
    """
    hops = num_workers - 1
    moved = hops / num_workers * num_bytes
    return 2 * hops * latency + moved * (2 * seconds_per_byte + add_seconds_per_byte) + synchronise


def compressed(seconds_per_byte: float, ratio: float, *, compress_seconds_per_byte: float = 0.0) -> float:
    """Seconds per original byte when messages shrink by `ratio` (2 for 16 bits, 4 for 8 bits) and compressing costs.

    Compression inside the ring happens at each of its two passes, so it is counted once per moved byte.
    """
    if not ratio >= 1:
        raise InputError(f"compression ratio {ratio}: messages do not grow; it is >= 1")
    return seconds_per_byte / ratio + compress_seconds_per_byte


def synchronous_seconds(iteration: Iteration, num_iterations: int) -> float:
    """T iterations one part after the other: T·(l_up + l_comp + l_comm)."""
    return num_iterations * (iteration.local + iteration.communicate)


def pipelined_seconds(iteration: Iteration, num_iterations: int, *, width: int = 2) -> float:
    """T iterations of a pipeline of `width` K: T·max(l_up + l_comp, l_comm) once it is full, for K ≥ 2.

    One worker computes one iteration at a time and sends one at a time, so a width beyond 2 gains nothing: the paper's
    argument for K = 2. The first communication is not hidden, which this function adds; K = 1 is synchronous.
    """
    if width < 1:
        raise InputError(f"pipeline width {width}: it is a number of iterations >= 1")
    if width == 1:
        return synchronous_seconds(iteration, num_iterations)
    slower = max(iteration.local, iteration.communicate)
    return iteration.local + (num_iterations - 1) * slower + iteration.communicate


def ideal_pipelined_seconds(iteration: Iteration, num_iterations: int, *, width: int) -> float:
    """T iterations if K of them could run fully side by side: ⌈T/K⌉·(l_up + l_comp + l_comm), a lower bound."""
    return ceil(num_iterations / width) * (iteration.local + iteration.communicate)


def pipelined_layers_seconds(
    local: float,
    num_iterations: int,
    *,
    num_workers: int,
    num_bytes: float,
    num_layers: int,
    latency: float,
    seconds_per_byte: float,
    add_seconds_per_byte: float = 0.0,
    synchronise: float = 0.0,
) -> float:
    """Equation 6, a pipeline that sends layer by layer: T·max(l_up + l_for + l_b, 2(p−1)Lα + … + L·S).

    The bytes are those of `ring_seconds` (equation 5 is T·max of them and of what is local), but each of the L layers
    pays latencies and S. Where the wire is the longer part, sending in one piece is never slower.

    Args:
        local: l_up + l_for + l_b.
        num_iterations: T.
        num_workers: p.
        num_bytes: n, of all layers.
        num_layers: L.
        latency: α, of every message.
        seconds_per_byte: β.
        add_seconds_per_byte: γ.
        synchronise: S, for each layer.
    """
    sent = ring_seconds(
        num_workers, num_bytes, latency=num_layers * latency, seconds_per_byte=seconds_per_byte,
        add_seconds_per_byte=add_seconds_per_byte, synchronise=num_layers * synchronise,
    )  # fmt: skip
    return num_iterations * max(local, sent)


def scaling_efficiency(iteration: Iteration, *, width: int = 2) -> float:
    """Equation 7: the speed-up by p workers over one, divided by p; 1 where nothing is lost.

    One worker takes l_up + l_comp for an iteration, and p workers with as much data each do p iterations' work in the
    seconds of one of theirs, so it is (l_up + l_comp) / (seconds of one of theirs), which in a full pipeline are
    max(l_up + l_comp, l_comm). Derived from that definition; the paper's own writing of it was not at hand.
    """
    each = iteration.local + iteration.communicate if width == 1 else max(iteration.local, iteration.communicate)
    return iteration.local / each if each else 1.0


def ddp_seconds(iteration: Iteration, num_iterations: int, *, num_layers: int, latency_part: float) -> float:
    """Synchronous training that sends each layer's gradient as soon as it is there: not the paper's, but what DDP does.

    Backward and communication overlap, but each of the L layers pays the latency part of its own all-reduce:
    T·(l_up + l_for + max(l_back, l_comm + (L−1)·latency_part)), which leaves out that the first layer is not there when
    backward begins and the last one not before it ends (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3,
    describes the overlap; the formula is ours).
    """
    sent = iteration.communicate + (num_layers - 1) * latency_part
    return num_iterations * (iteration.update + iteration.forward + max(iteration.backward, sent))
