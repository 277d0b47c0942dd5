"""Times phases on the running workers: all groups of a phase at once, as a schedule would run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from partreduce.runtime.transport.worlds import World
from partreduce.topo.phase import Phase

WARM_UP = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of one phase with `size` bytes per worker: the slowest worker's time, once per repetition."""

    phase: Phase
    size: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        ordered = sorted(self.seconds)
        return ordered[len(ordered) // 2]


def measure_phases(
    world: World, wanted: Sequence[tuple[Phase, int]], *, repetitions: int, device: torch.device
) -> list[Measurement]:
    """Time (phase, bytes) pairs; all workers call this with the same list, and the groups have been prepared.

    Every repetition goes through the whole list, so that a disturbance of the machine spreads over all phases instead
    of spoiling one. A phase begins when a one-element mean of all workers has returned, so workers start within its
    latency of one another; the slowest worker's time counts.

    Raises:
        UnavailableError: a group was not prepared, or a peer is gone.
    """
    gate = torch.zeros(1, dtype=torch.float32, device=device)
    buffer = torch.zeros(max(max(1, size // 4) for _, size in wanted), dtype=torch.float32, device=device)
    times = torch.zeros(len(wanted), repetitions, world.size, dtype=torch.float32, device=device)
    for repetition in range(-WARM_UP, repetitions):
        for index, (phase, size) in enumerate(wanted):
            mine = next((group.members for group in phase if world.rank in group.members), None)
            part = buffer[: max(1, size // 4)]
            world.everyone().all_reduce(gate).wait()
            settle(device)
            started = perf_counter()
            if mine is not None:
                world.communicator(mine).all_reduce(part).wait()
                settle(device)
            if repetition >= 0:
                times[index, repetition, world.rank] = perf_counter() - started
    world.everyone().all_reduce(times).wait()
    slowest = times.max(dim=2).values
    return [Measurement(phase, size, tuple(row.tolist())) for (phase, size), row in zip(wanted, slowest, strict=True)]


def settle(device: torch.device) -> None:
    """Wait until the device has done what was asked: here the time itself is the result."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
