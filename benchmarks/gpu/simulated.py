"""Simulated ranks: threads of one process, and a stand-in for the NCCL world whose sums are made of streams and marks.

The last member that arrives lets its communication stream wait for a mark of every other, adds up there in order of
ranks, and copies the sum to all. As with NCCL, nobody's host waits for that. Sums can be delayed, and they can fail in
the ways that a fault may make them: see `Fault`.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.devices import Device, Mark, PretendedDevice, device_of, unversioned
from partreduce.runtime.codecs.coding import Coding
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.needed_groups import member_sets
from partreduce.runtime.transport.streams import Streams
from partreduce.runtime.transport.tags import TAG_LENGTH
from partreduce.runtime.transport.waiting import RunningWork
from partreduce.runtime.transport.worlds import GroupTable
from partreduce.topo.errors import UnavailableError
from partreduce.topo.schedule import Schedule

JOIN_SECONDS = 90.0


@dataclass(frozen=True)
class Fault:
    """What goes wrong in each rank's `at`-th payload, which is that of round `at`, and in the tag that follows it.

    `wrong tag`: a member meant another operation. `NaN payload`: that, and the sum is not a number. `never complete`:
    the device never comes to the end. `partial sum`: an abort in the middle: the end of the array is summed, the
    beginning is not, and neither is the tag.
    """

    kind: str
    at: int


@dataclass
class Slot:
    """One collective of one group."""

    arrivals: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    done: dict[int, Any] = field(default_factory=dict)
    launched: threading.Event = field(default_factory=threading.Event)


class Shared:
    """What the ranks of one process share: a store, and the collectives that are under way."""

    def __init__(self, *, delay: float = 0.0, fault: Fault | None = None) -> None:
        self.store = dist.HashStore()
        self.delay, self.fault = delay, fault
        self.lock = threading.Lock()
        self.slots: dict[tuple[object, ...], Slot] = {}

    def slot(self, key: tuple[object, ...]) -> Slot:
        return self.slots.setdefault(key, Slot())


class SimulatedWork:
    """A running collective of one rank."""

    def __init__(self, device: Device, slot: Slot, place: int) -> None:
        self.device, self.slot, self.place = device, slot, place

    def is_completed(self) -> bool:
        """Whether the device has come to its end."""
        done = self.slot.done.get(self.place)
        return done is not None and done.query()

    def wait(self) -> None:
        """Let the current stream wait for it. On CUDA the host also waits until all members have called it."""
        if isinstance(self.device, PretendedDevice):
            self.device.wait(self.slot.done[self.place], of_others=True)
            return
        deadline = time.monotonic() + JOIN_SECONDS
        while not self.slot.launched.wait(0.002):
            if self.device.gone.is_set() or time.monotonic() > deadline:
                raise RuntimeError("the collective was aborted before all members had called it")
        self.device.wait(self.slot.done[self.place])


class SimulatedCommunicator(Communicator):
    """A group whose collectives meet in `Shared`."""

    def __init__(self, world: SimulatedWorld, members: tuple[int, ...]) -> None:
        super().__init__(members, world.rank, world)
        self.world, self.shared, self.pretended = world, world.shared, world.pretended
        self._calls = 0

    def all_reduce(self, tensor: torch.Tensor, coding: Coding | None = None) -> RunningWork:
        if coding is not None:
            return super().all_reduce(tensor, coding)
        self._live()
        # Beside coded payloads a tag has one number more (see `averaging.coded`).
        is_tag = tensor.numel() in (TAG_LENGTH, TAG_LENGTH + 1) and tensor.dtype is torch.float32
        fault = self.shared.fault
        hit = None if fault is None or fault.at != self.world.payloads - is_tag else fault.kind
        self.world.payloads += not is_tag
        if hit in ("wrong tag", "NaN payload") and is_tag and self.place == 0:
            tensor.add_(1)
        return self._collective(tensor, lambda tensors: self._sum(tensors, hit, is_tag=is_tag))

    def broadcast(self, tensor: torch.Tensor) -> SimulatedWork:
        def copy(tensors: dict[int, torch.Tensor]) -> None:
            for place in tensors.keys() - {0}:
                tensors[place].copy_(tensors[0])

        return self._collective(tensor, copy)

    def exchange(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> list[SimulatedWork]:
        """Start sending and receiving: one meeting of two for each tensor."""
        self._live()
        works = []
        for tensor_of, ends in ((receives, False), (sends, True)):
            for other, tensor in tensor_of:
                pair = (self.place, other) if ends else (other, self.place)
                count = self.world.messages[pair] = self.world.messages.get(pair, 0) + 1
                works.append(self._meet(("message", *pair, count), pair, tensor, _copy_from(pair[0])))
        return works

    def close(self) -> list[object]:
        self._backend = None
        return []

    def _sum(self, tensors: dict[int, torch.Tensor], hit: str | None, *, is_tag: bool) -> None:
        if is_tag and hit in ("partial sum", "never complete"):
            return  # a communicator does one thing after another: after an abort it does nothing
        if hit == "never complete" and not is_tag:
            self.pretended.stall()
            return
        total = tensors[0].clone()
        for place in range(1, len(tensors)):
            total.add_(tensors[place])
        if hit == "NaN payload" and not is_tag:
            total.fill_(float("nan"))
        first = len(total) // 2 if hit == "partial sum" else 0
        for tensor in tensors.values():
            tensor[first:].copy_(total[first:])

    def _collective(self, tensor: torch.Tensor, combine: Callable[[dict[int, torch.Tensor]], None]) -> SimulatedWork:
        self._calls += 1
        return self._meet((self.members, self._calls), tuple(range(self.size)), tensor, combine)

    def _meet(
        self,
        key: tuple[object, ...],
        places: Sequence[int],
        tensor: torch.Tensor,
        combine: Callable[[dict[int, torch.Tensor]], None],
    ) -> SimulatedWork:
        """Arrive at a collective; the last of `places` carries it out."""
        device, slot = self.pretended, None
        ready = device.mark()
        with self.shared.lock:
            slot = self.shared.slot(key)
            slot.arrivals[self.place] = (tensor, ready)
            if isinstance(device, PretendedDevice):
                slot.done[self.place] = Mark()
            last = len(slot.arrivals) == len(places)
            if last:
                del self.shared.slots[key]
        if not last:
            return SimulatedWork(device, slot, self.place)
        with device.on(self.world.stream), unversioned():
            for _, mark in slot.arrivals.values():
                device.wait(mark, of_others=True)
            device.sleep(self.shared.delay)
            combine({place: value for place, (value, _) in slot.arrivals.items()})
            for place in places:
                if isinstance(device, PretendedDevice):
                    self.world.stream.submit(slot.done[place].set)
                else:
                    slot.done[place] = device.mark()
        slot.launched.set()
        return SimulatedWork(device, slot, self.place)


def _copy_from(source: int) -> Callable[[dict[int, torch.Tensor]], None]:
    """A message: the other's tensor becomes the sender's."""

    def copy(tensors: dict[int, torch.Tensor]) -> None:
        (target,) = tensors.keys() - {source}
        tensors[target].copy_(tensors[source])

    return copy


class SimulatedWorld(GroupTable):
    """A rank of a simulated run."""

    def __init__(self, shared: Shared, rank: int, size: int, device: Device, *, timeout: float) -> None:
        super().__init__(shared.store, rank, size, timedelta(seconds=timeout))
        self.shared, self.pretended = shared, device
        self.stream: Any = device.stream("communication")
        self.messages: dict[tuple[int, int], int] = {}
        self.payloads = 0
        self._own_streams = device.streams()
        self._on_host: GlooWorld | None = None

    def prepare(self, schedule: Schedule) -> None:
        for members in sorted(member_sets(schedule, self.rank) | {tuple(range(self.size))}):
            if not self.has(members):
                self.create(members)

    def create(self, members: tuple[int, ...]) -> Communicator:
        if self.abandoned:
            raise UnavailableError("the groups of this run were destroyed after a failure")
        communicator = self._groups[members] = SimulatedCommunicator(self, members)
        return communicator

    def streams(self, device: torch.device) -> Streams:  # noqa: ARG002 - a rank has one
        return self._own_streams

    def on_host(self) -> GlooWorld:
        """The same ranks over gloo, as beside NCCL."""
        if self._on_host is None:
            self._on_host = GlooWorld(self.store, self.rank, self.size, self.timeout)
            self._on_host.signs = self.signs
        return self._on_host

    def abandon(self) -> None:
        self.pretended.gone.set()
        if self._on_host is not None:
            self._on_host.abandon()
        super().abandon()


def run_ranks(
    kind: str, size: int, action: Callable[[SimulatedWorld], Any], shared: Shared, *, timeout: float = 30.0
) -> list[Any]:
    """What `action(world)` returns on each rank, or the error that it raised.

    Args:
        kind: `plain`, `pretended` or `cuda`.
        size: the number of ranks.
        action: one rank's part, called in a thread of its own on its device.
        shared: what the ranks have in common; new for each run.
        timeout: of group operations.
    """
    results: list[Any] = [None] * size
    devices = [device_of(kind, rank) for rank in range(size)]

    def body(rank: int) -> None:
        device = devices[rank]
        world = SimulatedWorld(shared, rank, size, device, timeout=timeout)
        try:
            with device.running():
                results[rank] = action(world)
        except Exception as error:  # noqa: BLE001 - the caller judges it
            error.add_note(traceback.format_exc())
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread.name for thread in threads if thread.is_alive()]
    for device in devices:
        device.end()
    if stuck:
        raise TimeoutError(f"{', '.join(stuck)} did not end within {JOIN_SECONDS:g} s")
    return results
