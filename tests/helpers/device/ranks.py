"""Simulated ranks: threads of one process with a stand-in for NCCL that is made of streams and marks.

The runtime's own `NcclWorld` creates, keeps and aborts the groups. The last member of a sum that arrives lets the
communicator's stream wait for a mark of every other, adds in order of ranks, and copies the sum to all. As with NCCL,
no host waits for that. Sums can be delayed, and can fail as a `Fault` says.
"""

import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from helpers.device.simulated_device import Mark, SimulatedDevice, device_of, without_versions
from helpers.one_processor import on_one_processor
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.nccl import NcclWorld
from partreduce.runtime.transport.tags import TAG_LENGTH

JOIN_SECONDS = 300.0


@dataclass(frozen=True)
class Fault:
    """A fault in the `at`-th payload of each rank (that of round `at`) and in the tag that follows it.

    `wrong tag`: a member runs another operation. `NaN payload`: the same, and the sum is not a number. `never
    complete`: the operation never ends on the device. `partial sum`: an abort in the middle; the end of the array is
    summed, its beginning and the tag are not.
    """

    kind: str
    at: int


class Launch(Enum):
    """The stream in which sums are launched; since torch 2.8 `asyncOp` decides."""

    OWN_STREAM = "in the communicator's own stream"
    CURRENT_STREAM = "in the stream that is current where they are called"


@dataclass
class Slot:
    """The state of one collective in one group, by the members' places in it."""

    arrivals: dict[int, tuple[list[torch.Tensor], Any]] = field(default_factory=dict)
    done: dict[int, Any] = field(default_factory=dict)
    aborted: dict[int, threading.Event] = field(default_factory=dict)
    launched: threading.Event = field(default_factory=threading.Event)


class SharedState:
    """The state that the ranks of one process share: a store, and the running collectives."""

    def __init__(self, *, delay=0.0, fault=None, launch=Launch.OWN_STREAM):
        self.store = dist.HashStore()
        self.delay, self.fault, self.launch = delay, fault, launch
        self.lock = threading.Lock()
        self.slots: dict[tuple[object, ...], Slot] = {}

    def slot(self, key):
        return self.slots.setdefault(key, Slot())


class SimulatedWork:
    """A running operation of one rank, like torch's Work: one collective, or several coalesced messages."""

    def __init__(self, device, meetings, stash):
        self.device, self.meetings = device, meetings
        self._stash: Sequence[torch.Tensor] = stash
        """References that torch keeps until `wait`, so that the allocator does not reuse the memory."""

    def is_completed(self):
        marks = [slot.done.get(place) for slot, place in self.meetings]
        return all(mark is not None and mark.query() for mark in marks)

    def wait(self, timeout=None):
        """Let the current stream wait for the operation. On CUDA the host also waits until all members called it."""
        for slot, place in self.meetings:
            self._launched(slot)
            self.device.wait(slot.done[place], aborted=slot.aborted[place])
        self._stash = ()

    def _launched(self, slot):
        deadline = time.monotonic() + JOIN_SECONDS
        while not isinstance(self.device, SimulatedDevice) and not slot.launched.wait(0.002):
            if any(event.is_set() for event in slot.aborted.values()) or time.monotonic() > deadline:
                raise RuntimeError("the collective was aborted before all members had called it")


class SimulatedBackend:
    """One rank's stand-in for `ProcessGroupNCCL`: a communicator with its own stream.

    Since torch 2.8 an operation with `asyncOp` false is launched in the caller's current stream, returns no Work, and
    keeps no references. The runtime leaves `asyncOp` true; `SharedState.launch` overrides that for a whole run.
    """

    def __init__(self, world, place, rank, size):
        self.world, self.name, self.place, self.size = world, place, rank, size
        self.shared, self.device = world.shared, world.simulated_device
        self.stream: Any = self.device.stream(f"nccl {place}")
        self._calls = 0
        self._messages: dict[tuple[int, int], int] = {}
        self._coalesced: list[tuple[tuple[int, int], torch.Tensor]] | None = None
        self.gone = threading.Event()
        """Set by an abort, which ends the waits of this rank's streams."""

    def allreduce(self, tensors, options):
        (tensor,) = tensors
        # With coded payloads a tag has one number more (see `averaging.reduction`).
        is_tag = tensor.numel() in (TAG_LENGTH, TAG_LENGTH + 1) and tensor.dtype is torch.float32
        fault, world = self.shared.fault, self.world.counted
        hit = None if fault is None or fault.at != world.payloads - is_tag else fault.kind
        world.payloads += not is_tag
        if hit in ("wrong tag", "NaN payload") and is_tag and self.place == 0:
            tensor.add_(1)
        return self._collective([tensor], options, lambda all_: self._sum([one[0] for one in all_], hit, is_tag=is_tag))

    def broadcast(self, tensors, options):
        def copy(everyone):
            for (tensor,) in everyone[1:]:
                tensor.copy_(everyone[0][0])

        assert options.rootRank == 0
        return self._collective(tensors, options, copy)

    def alltoall_base(self, target, source, receives, sends, options):
        """Do what torch's does; what i sends to j must be as long as what j receives from i."""

        def hand_out(everyone):
            for place, pieces in enumerate(everyone):
                for other in range(len(everyone)):
                    pieces[other].copy_(everyone[other][len(everyone) + place])

        return self._collective([*target.split(receives), *source.split(sends)], options, hand_out)

    def _allgather_base(self, target, source, options):
        def collect(everyone):
            for arrays in everyone:
                for row, (_, given) in zip(arrays[0].view(len(everyone), -1), everyone, strict=True):
                    row.copy_(given)

        return self._collective([target, source], options, collect)

    def send(self, tensors, to, _tag):
        assert self._coalesced is not None, "messages in different orders may deadlock"
        self._coalesced.append(((self.place, to), tensors[0]))

    def recv(self, tensors, source, _tag):
        assert self._coalesced is not None, "messages in different orders may deadlock"
        self._coalesced.append(((source, self.place), tensors[0]))

    def _start_coalescing(self):
        self._coalesced = []

    def _end_coalescing(self):
        """Start the coalesced messages, each a collective of two, in the communicator's stream as torch does."""
        messages, self._coalesced = self._coalesced or [], None
        meetings = []
        for pair, tensor in messages:
            count = self._messages[pair] = self._messages.get(pair, 0) + 1
            meetings.append(self._meet(f"message {pair} {count}", sorted(pair), [tensor], _copy_from(pair)))
        return SimulatedWork(self.device, meetings, [tensor for _, tensor in messages])

    def abort(self):
        """End the waits of this rank's streams; other ranks are not notified."""
        self.gone.set()

    def _group_start(self):
        """Do nothing; torch calls this before several aborts."""

    def _group_end(self):
        """Do nothing; torch calls this after several aborts."""

    def _sum(self, tensors, hit, *, is_tag):
        if is_tag and hit in ("partial sum", "never complete"):
            return  # after an abort a communicator does nothing
        if hit == "never complete" and not is_tag:
            self.device.stall(self.gone)
            return
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            total.add_(tensor)
        if hit == "NaN payload" and not is_tag:
            total.fill_(float("nan"))
        first = len(total) // 2 if hit == "partial sum" else 0
        for tensor in tensors:
            tensor[first:].copy_(total[first:])

    def _collective(self, tensors, options, combine):
        self._calls += 1
        own_stream = options.asyncOp and self.shared.launch is Launch.OWN_STREAM
        meeting = self._meet(f"{self._calls}", range(self.size), tensors, combine, own_stream=own_stream)
        work = SimulatedWork(self.device, [meeting], tensors if own_stream else ())
        return work if options.asyncOp else None

    def _meet(self, call, places, tensors, combine, *, own_stream=True):
        """Arrive at a collective; the last of the members `places` runs `combine` on the arrays of all."""
        device, key = self.device, (self.name, call)
        ready = device.mark()
        with self.shared.lock:
            slot = self.shared.slot(key)
            slot.arrivals[self.place] = ([device.memory_of(tensor) for tensor in tensors], ready)
            slot.aborted[self.place] = self.gone
            if isinstance(device, SimulatedDevice):
                slot.done[self.place] = Mark()
            last = len(slot.arrivals) == len(places)
            if last:
                del self.shared.slots[key]
        if last:
            with device.on(self.stream if own_stream else device.current), without_versions():
                for _, mark in slot.arrivals.values():
                    device.wait(mark, aborted=self.gone)
                device.sleep(self.shared.delay)
                combine([slot.arrivals[place][0] for place in places])
                for place in places:
                    if isinstance(device, SimulatedDevice):
                        device.current.submit(slot.done[place].set)
                    else:
                        slot.done[place] = device.mark()
            slot.launched.set()
        work = SimulatedWork(device, [(slot, self.place)], ())
        if not own_stream:
            work.wait()
        return slot, self.place


def _copy_from(pair):
    """Return a function that copies the message of a pair (sender, receiver) whose arrays are in rank order."""

    def copy(both):
        sent, received = both if pair[0] < pair[1] else reversed(both)
        received[0].copy_(sent[0])

    return copy


class SimulatedWorld(NcclWorld):
    """The NCCL world of a simulated rank, with simulated backends."""

    def __init__(self, shared, rank, size, device, *, timeout):
        super().__init__(shared.store, rank, size, timedelta(seconds=timeout), device=device.device)
        self.shared, self.simulated_device = shared, device
        self.counted = self
        """The world that counts payloads; worlds with a prefix share it."""
        self.payloads = 0
        self._streams[device.device] = device.streams()

    def with_prefix(self, prefix):
        other = SimulatedWorld(
            self.shared, self.rank, self.size, self.simulated_device, timeout=self.timeout.total_seconds()
        )
        other.prefix, other._streams, other.counted = prefix, self._streams, self.counted
        return other

    def _connect(self, members, place, within):
        """Connect without a first operation; it would run in another thread, which has no device."""
        return Communicator(members, self.rank, self.backend(members, place))

    def backend(self, members, place):
        return SimulatedBackend(self, place, members.index(self.rank), len(members))


class GlooRank(GlooWorld):
    """A rank without a device, over gloo, with the attributes of simulated ranks."""

    def __init__(self, shared, rank, size, device, *, timeout):
        super().__init__(shared.store, rank, size, timedelta(seconds=timeout))
        self.shared, self.simulated_device = shared, device


def run_ranks(kind, size, action, shared, *, timeout=30.0):
    """Return for each rank what `action(world)` returned, or the exception that it raised."""
    results: list[Any] = [None] * size

    def body(rank):
        device = devices[rank]
        world: Any = (
            GlooRank(shared, rank, size, device, timeout=timeout)
            if kind == "gloo"
            else SimulatedWorld(shared, rank, size, device, timeout=timeout)
        )
        try:
            with device.running():
                results[rank] = action(world)
        except Exception as error:  # noqa: BLE001 - the caller judges it
            error.add_note(traceback.format_exc())
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(size)]
    with on_one_processor():
        devices = [device_of(kind, rank) for rank in range(size)]
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
