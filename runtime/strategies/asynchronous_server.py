"""Strategy `server`, asynchronous: hosts add a worker's progress to their shards as it arrives."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

import torch

from partreduce.runtime.strategies.one_sided import OneSided
from partreduce.runtime.transport.arrays import Snapshots, frame_of, tensor_of
from partreduce.runtime.transport.notes import Notes
from partreduce.runtime.transport.through_servers import shard_bounds
from partreduce.runtime.transport.waiting import GoneError, Wait, pause_after
from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from partreduce.runtime.recorder import Operation
    from partreduce.runtime.strategies.base import Run
    from partreduce.runtime.transport.mailbox import Mailbox, Message
    from partreduce.topo.strategies.server import Server


class AsynchronousServer(OneSided):
    """After each round a worker sends its progress to the hosts, which add it at once, and gets the newest model back.

    For plain SGD the progress of a step is −rate · gradient, so this is asynchronous SGD; optimizer state stays with
    the worker. n workers move the model n times as far per step of time as one does: start from a rate divided by n.
    With `staleness` s a host answers a worker only when that is at most s rounds ahead of the slowest. With overlap the
    answer is awaited one round later. Buffers are averaged in the mean model only.

    Raises:
        InputError: a policy that asks for optimizer state to travel.
    """

    def __init__(self, server: Server, run: Run) -> None:
        super().__init__(server, run, "an asynchronous server", self._deliver)
        self.server = server
        self._bounds = [shard_bounds(bucket.size, len(server.hosts)) for bucket in run.flat.buckets]
        """For each bucket the part of every host."""
        self._base: list[torch.Tensor] = []
        self._generation = 0
        self._number = 0
        self._answers: dict[int, tuple[Any, ...]] = {}
        self._pending: Operation | None = None
        self._shard: _Shard | None = None
        if run.rank in server.hosts:
            own = server.hosts.index(run.rank)
            self._shard = _Shard([bounds[own] for bounds in self._bounds], run.schedule.num_workers, server.staleness)
        self._mailbox.start()

    def before_step(self, step: int, round_: int, *, first: bool) -> None:  # noqa: ARG002 - the signature of all
        """Before the first step: where progress is counted from."""
        self._open(round_)

    def end_round(self, step: int, round_: int) -> None:
        """Send the round's progress and take the model that comes back."""
        self.run.reducer.refuse_if_gone(self._peer_watch, step, round_)
        self._open(round_)
        progress = [bucket.flat - base for bucket, base in zip(self.run.flat.buckets, self._base, strict=True)]
        if self._factor != 1.0:
            for part in progress:
                part.mul_(self._factor)
        if self.server.overlap:
            if self._pending is None:
                self._remember()
            else:
                self._take(progress)
            self._push(step, round_, progress)
        else:
            self._push(step, round_, progress)
            self._take(None)

    def settle(self) -> None:
        """Take the answer in flight and the newest model, keeping what was learned since."""
        if self._base:
            self._refresh()

    def drain(self) -> None:
        """Drop the answer in flight; afterwards the hosts start again from their workers' parameters."""
        if self._pending is not None:
            self._wait(self._pending)
            self._pending = None
        self._base = []
        self._generation += 1

    def takes_for_progress(self, round_: int, *, first: bool) -> bool:  # noqa: ARG002 - the signature of all
        """From the first step on: whatever changed since the last answer is sent."""
        return bool(self._base)

    def _open(self, round_: int) -> None:
        if self._base:
            return
        self._remember()
        if self._generation == 0:
            self._refuse_several_models()
        if self._shard is not None:
            self._shard.take(self._generation, round_, self._base)
            self._mailbox.send(self.run.rank, "open")

    def _refuse_several_models(self) -> None:
        """Compare the parameters of the first step with those of the first host.

        Raises:
            InputError: they differ: the hosts' shards would be parts of several models, and progress of others.
        """
        digest = hashlib.sha256()
        for base in self._base:
            digest.update(base.view(torch.uint8).cpu().numpy().tobytes())
        reducer, host = self.run.reducer, self.server.hosts[0]
        notes = Notes(reducer.world.store, f"first-model/{reducer.key}")
        if self.run.rank == host:
            notes.write("digest", digest.hexdigest())
            return
        operation = reducer.recorder.begin("first model", 0, 0, tuple(sorted((host, self.run.rank))), 0)
        try:
            self._await_note(notes, host)
        except GoneError as error:
            raise reducer.failure(operation, error) from None
        reducer.recorder.end(operation)
        if notes.wait_for("digest") != digest.hexdigest():
            raise InputError(
                f"model: worker {self.run.rank} starts from other parameters than worker {host}, and an asynchronous "
                "server trains one model; use initial='broadcast'"
            )

    def _await_note(self, notes: Notes, host: int) -> None:
        """Wait for a host's note, as long as it can come."""
        start, wait = time.monotonic(), Wait(self.run.reducer.heartbeat, (host,), self.run.reducer.timeout, 0)
        while not notes.has("digest"):
            wait.look()
            time.sleep(pause_after(time.monotonic() - start))

    def _remember(self) -> None:
        with torch.no_grad():
            self._base = [bucket.flat.clone() for bucket in self.run.flat.buckets]

    def _push(self, step: int, round_: int, progress: list[torch.Tensor], kind: str = "push") -> None:
        base = self.run.reducer
        num_bytes = sum(part.nbytes for part in progress)
        members = tuple(sorted({self.run.rank, *self.server.hosts}))
        self._pending = base.recorder.begin(kind, step, round_, members, num_bytes)
        base.heartbeat.doing(f"entered {self._pending}")
        self._number += 1
        self._answers = {}
        for index, host in enumerate(self.server.hosts):
            frames = [
                frame_of(part[bounds[index][0] : bounds[index][1]])  # this round's progress is written no more
                for part, bounds in zip(progress, self._bounds, strict=kind == "push")
            ]
            try:
                self._mailbox.send(host, kind, (self._generation, self._number, round_), frames)
            except GoneError as error:
                raise base.failure(self._pending, error) from None

    def _refresh(self) -> None:
        """Take the answer in flight, then ask for the newest model."""
        progress = [bucket.flat - base for bucket, base in zip(self.run.flat.buckets, self._base, strict=True)]
        if self._pending is not None:
            self._take(progress)
        self._push(-1, -1, [], kind="pull")
        self._take(progress)
        for base, part in zip(self._base, progress, strict=True):
            base.sub_(part)

    def _take(self, progress: list[torch.Tensor] | None) -> None:
        """Wait for the hosts' answers: the model becomes theirs, plus `progress`; it counts from there."""
        operation = self._pending
        if operation is None:
            return
        self._pending = None
        self._wait(operation)
        with torch.no_grad():
            for place, (bucket, bounds) in enumerate(zip(self.run.flat.buckets, self._bounds, strict=True)):
                for host, (start, end) in zip(self.server.hosts, bounds, strict=True):
                    if end > start:
                        bucket.flat[start:end].copy_(tensor_of(self._answers[host][place], bucket.dtype))
                if progress is not None:
                    bucket.flat.add_(progress[place])
        self._remember()

    def _wait(self, operation: Operation) -> None:
        reducer, num_hosts = self.run.reducer, len(self.server.hosts)
        reducer.heartbeat.doing(
            f"entered {operation}", [host for host in self.server.hosts if host not in self._answers]
        )
        everyone = range(self.run.schedule.num_workers)
        try:
            self._mailbox.until(lambda: len(self._answers) == num_hosts, reducer.heartbeat, everyone, operation.round)
        except GoneError as error:
            raise reducer.failure(operation, error) from None
        reducer.recorder.end(operation)
        reducer.heartbeat.doing(f"finished {operation}")

    def _deliver(self, message: Message) -> None:
        if message.kind == "model":
            if message.numbers[0] == self._number:
                self._answers[message.source] = message.payload
        else:
            assert self._shard is not None, "only hosts are written to"
            self._shard.receive(message, self._mailbox)


class _Shard:
    """One host's part of the model; lives in the side thread.

    Args:
        bounds: for each bucket this host's part.
        num_workers: of the run.
        staleness: a worker is answered when it is at most so many rounds ahead of the slowest; None: always.
    """

    def __init__(self, bounds: list[tuple[int, int]], num_workers: int, staleness: int | None) -> None:
        self._bounds, self._num_workers, self._staleness = bounds, num_workers, staleness
        self._opening: tuple[int, int, list[torch.Tensor]] | None = None
        self._generation = -1
        self._parts: list[torch.Tensor] = []
        self._clocks: list[int] = []
        self._applied: list[int] = []
        self._early: list[Message] = []
        self._waiting: dict[int, tuple[int, int]] = {}
        self._snapshots = Snapshots()

    def take(self, generation: int, round_: int, arrays: list[torch.Tensor]) -> None:
        """From the main thread: start again from these parameters at the next message `open`."""
        parts = [
            array[start:end].detach().to("cpu", copy=True)
            for array, (start, end) in zip(arrays, self._bounds, strict=True)
        ]
        self._opening = (generation, round_, parts)

    def receive(self, message: Message, mailbox: Mailbox) -> None:
        """Apply a push, answer a pull; messages of a generation that has not begun here wait."""
        if message.kind == "open":
            assert self._opening is not None, "take() comes first"
            self._generation, round_, self._parts = self._opening
            self._clocks = [round_] * self._num_workers
            self._applied = [0] * self._num_workers
            early, self._early = self._early, []
            for held in early:
                self.receive(held, mailbox)
            return
        generation, number, round_ = message.numbers
        if generation != self._generation:
            if generation > self._generation:
                self._early.append(message)
            return
        if message.kind == "push":
            if number <= self._applied[message.source]:
                return  # nothing is applied twice
            self._applied[message.source] = number
            for part, frame in zip(self._parts, message.payload, strict=True):
                if part.numel():
                    part.add_(tensor_of(frame, part.dtype))
            self._clocks[message.source] = round_ + 1
            self._waiting[message.source] = (number, round_ + 1)
        else:
            self._waiting[message.source] = (number, -1)
        self._answer_those_who_may_go_on(mailbox)

    def _answer_those_who_may_go_on(self, mailbox: Mailbox) -> None:
        slowest = min(self._clocks)
        ready = [
            (rank, number)
            for rank, (number, round_) in self._waiting.items()
            if self._staleness is None or round_ - slowest <= self._staleness
        ]
        if ready:
            frames = self._snapshots.take(self._parts)  # the next push changes them
            for rank, number in ready:
                del self._waiting[rank]
                mailbox.send(rank, "model", (number,), frames)
