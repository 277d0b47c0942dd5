"""Pipe-SGD's timing model (Li et al., NeurIPS 2018, section 3.2, equations 2 to 7).

The paper models the time of T iterations from the update l_up, the computing l_comp and the communication l_comm of
one iteration: one after the other when synchronous, the larger of (update and computing) and communication when the
gradients are one iteration late. The formulas below are written from that model and the standard cost of a ring
all-reduce with a term for adding; the numbering of single equations is the paper's range, not checked one by one.
Compression is this module's own parameter: it scales the bytes and adds its own seconds to the communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from preduce.topo.errors import InputError


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


def layerwise_seconds(iteration: Iteration, num_iterations: int, *, num_layers: int, latency_part: float) -> float:
    """Synchronous training that sends each layer's gradient as soon as it is there (as DDP does).

    Backward and communication overlap, but each of the L layers pays the latency part of its own all-reduce:
    T·(l_up + l_for + max(l_back, l_comm + (L−1)·latency_part)).
    """
    sent = iteration.communicate + (num_layers - 1) * latency_part
    return num_iterations * (iteration.update + iteration.forward + max(iteration.backward, sent))
