"""Strategy `server`: a sharded parameter server, synchronous or asynchronous."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from preduce.runtime.averaging.reducer import GoneError, Reducer
from preduce.runtime.strategies.gradient_means import GradientMeans
from preduce.runtime.strategies.group_means import GroupMeans
from preduce.runtime.transport.mailbox import Letter, Post
from preduce.runtime.transport.through_servers import (
    ServerCommunicator,
    ThroughServers,
    from_bytes,
    shard_bounds,
    to_bytes,
)
from preduce.topo.errors import InputError
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.strategies.base import Averaging
from preduce.topo.strategies.server import Server

if TYPE_CHECKING:
    from preduce.runtime.recorder import Operation
    from preduce.runtime.strategies.base import Run, Strategy


class SynchronousServer:
    """All-reduce whose sums pass through the hosts: gradients at pace 1 (which equals DDP), parameters otherwise."""

    def __init__(self, run: Run) -> None:
        server = run.schedule.strategy
        assert isinstance(server, Server), "build() chose this class"
        base = run.reducer
        communicator = ServerCommunicator(
            base.world,
            server.hosts,
            base.watch,
            key=f"{base.key} server",
            max_bytes=max(lane.scratch().nbytes for lane in base.lanes),
            timeout=base.timeout,
        )
        self._post = communicator.post
        world = ThroughServers(base.world, communicator)
        reducer = Reducer(world, base.lanes, base.recorder, base.watch, key=base.key, timeout=base.timeout)
        same = AllReduce(pace=server.pace, when=server.when, averaging=server.averaging)
        schedule = Schedule(run.schedule.name, run.schedule.cluster, same)
        inner_run = replace(run, schedule=schedule, reducer=reducer)
        self._inner: Strategy = (
            GradientMeans(inner_run) if same.averages_gradients else GroupMeans(inner_run, overlap=server.overlap)
        )
        self.averages_gradients = same.averages_gradients

    def before_step(self, step: int, round_: int, *, first: bool) -> None:
        """As all-reduce."""
        self._inner.before_step(step, round_, first=first)

    def end_round(self, step: int, round_: int) -> None:
        """As all-reduce."""
        self._inner.end_round(step, round_)

    def settle(self) -> None:
        """As all-reduce."""
        self._inner.settle()

    def drain(self) -> None:
        """As all-reduce."""
        self._inner.drain()

    def resume(self, step: int, round_: int) -> None:
        """As all-reduce."""
        self._inner.resume(step, round_)

    def close(self) -> None:
        """End the side thread; whoever still waits for a sum learns it from the notes in the store."""
        self._post.close()


class AsynchronousServer:
    """After each round a worker sends its progress to the hosts, which add it at once, and gets the newest model back.

    For plain SGD the progress of a step is −rate · gradient, so this is asynchronous SGD; optimizer state stays with
    the worker. n workers move the model n times as far per step of time as one does: start from a rate divided by n.
    With `staleness` s a host answers a worker only when that is at most s rounds ahead of the slowest. With overlap the
    answer is awaited one round later. Buffers are averaged in the mean model only.

    Raises:
        InputError: a policy that asks for optimizer state to travel.
    """

    averages_gradients = False

    def __init__(self, run: Run) -> None:
        server = run.schedule.strategy
        assert isinstance(server, Server), "build() chose this class"
        if any(":" in rider.name for lane in run.flat.lanes for rider in lane.riders):
            raise InputError("optimizer_state='average': stays with each worker of an asynchronous server; use 'local'")
        self.run, self.server = run, server
        base = run.reducer
        paces = run.schedule.paces()
        normalises = server.averaging is Averaging.STEP_NORMALISED
        self._factor = float(paces.mean()) / run.pace if normalises else 1.0
        self._bounds = [shard_bounds(lane.size, len(server.hosts)) for lane in run.flat.lanes]
        self._base: list[torch.Tensor] = []
        self._generation = 0
        self._number = 0
        self._answers: dict[int, tuple[Any, ...]] = {}
        self._pending: Operation | None = None
        self._shard = _Shard(self, server.hosts.index(run.rank)) if run.rank in server.hosts else None
        self._post = Post(
            base.world.store,
            run.rank,
            f"{base.key} server",
            self._deliver,
            max_bytes=max(lane.size * lane.dtype.itemsize for lane in run.flat.lanes),
            timeout=base.timeout,
        )
        self._post.start()

    def before_step(self, step: int, round_: int, *, first: bool) -> None:  # noqa: ARG002 - the protocol's signature
        """Before the first step: where progress is counted from."""
        self._open(round_)

    def end_round(self, step: int, round_: int) -> None:
        """Send the round's progress and take the model that comes back."""
        self._open(round_)
        progress = [lane.flat - base for lane, base in zip(self.run.flat.lanes, self._base, strict=True)]
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

    def resume(self, step: int, round_: int) -> None:
        """The hosts start afresh from the loaded parameters with the first step."""

    def close(self) -> None:
        """End the side thread."""
        self._post.close()

    def _open(self, round_: int) -> None:
        if self._base:
            return
        self._remember()
        if self._shard is not None:
            self._shard.take(self._generation, round_, self._base)
            self._post.send(self.run.rank, "open")

    def _remember(self) -> None:
        with torch.no_grad():
            self._base = [lane.flat.clone() for lane in self.run.flat.lanes]

    def _push(self, step: int, round_: int, progress: list[torch.Tensor], kind: str = "push") -> None:
        base = self.run.reducer
        num_bytes = sum(part.nbytes for part in progress)
        members = tuple(sorted({self.run.rank, *self.server.hosts}))
        self._pending = base.recorder.begin(kind, step, round_, members, num_bytes)
        base.watch.doing(f"entered {self._pending}")
        self._number += 1
        self._answers = {}
        for index, host in enumerate(self.server.hosts):
            frames = [
                to_bytes(part[bounds[index][0] : bounds[index][1]])
                for part, bounds in zip(progress, self._bounds, strict=kind == "push")
            ]
            self._post.send(host, kind, (self._generation, self._number, round_), frames)

    def _refresh(self) -> None:
        """Take the answer in flight, then ask for the newest model."""
        progress = [lane.flat - base for lane, base in zip(self.run.flat.lanes, self._base, strict=True)]
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
            for place, (lane, bounds) in enumerate(zip(self.run.flat.lanes, self._bounds, strict=True)):
                for host, (start, end) in zip(self.server.hosts, bounds, strict=True):
                    if end > start:
                        lane.flat[start:end].copy_(from_bytes(self._answers[host][place], lane.dtype))
                if progress is not None:
                    lane.flat.add_(progress[place])
        self._remember()

    def _wait(self, operation: Operation) -> None:
        reducer, num_hosts = self.run.reducer, len(self.server.hosts)
        everyone = range(self.run.schedule.num_workers)
        try:
            self._post.until(lambda: len(self._answers) == num_hosts, reducer.watch, everyone, operation.round)
        except GoneError as error:
            raise reducer.failure(operation, error) from None
        reducer.recorder.end(operation)
        reducer.watch.doing(f"finished {operation}")

    def _deliver(self, letter: Letter) -> None:
        if letter.kind == "model":
            if letter.numbers[0] == self._number:
                self._answers[letter.source] = letter.payload
        else:
            assert self._shard is not None, "only hosts are written to"
            self._shard.receive(letter, self._post)


class _Shard:
    """One host's part of the model; lives in the side thread."""

    def __init__(self, owner: AsynchronousServer, index: int) -> None:
        self._owner, self._index = owner, index
        self._opening: tuple[int, int, list[torch.Tensor]] | None = None
        self._generation = -1
        self._parts: list[torch.Tensor] = []
        self._clocks: list[int] = []
        self._applied: list[int] = []
        self._early: list[Letter] = []
        self._waiting: dict[int, tuple[int, int]] = {}

    def take(self, generation: int, round_: int, arrays: list[torch.Tensor]) -> None:
        """From the main thread: start again from these parameters at the next letter `open`."""
        parts = []
        for array, bounds in zip(arrays, self._owner._bounds, strict=True):  # noqa: SLF001 - its own other half
            start, end = bounds[self._index]
            parts.append(array[start:end].detach().to("cpu", copy=True))
        self._opening = (generation, round_, parts)

    def receive(self, letter: Letter, post: Post) -> None:
        """Apply a push, answer a pull; letters of a generation that has not begun here wait."""
        if letter.kind == "open":
            assert self._opening is not None, "take() comes first"
            num_workers = self._owner.run.schedule.num_workers
            self._generation, round_, self._parts = self._opening
            self._clocks = [round_] * num_workers
            self._applied = [0] * num_workers
            early, self._early = self._early, []
            for held in early:
                self.receive(held, post)
            return
        generation, number, round_ = letter.numbers
        if generation != self._generation:
            if generation > self._generation:
                self._early.append(letter)
            return
        if letter.kind == "push":
            if number <= self._applied[letter.source]:
                return  # nothing is applied twice
            self._applied[letter.source] = number
            for part, frame in zip(self._parts, letter.payload, strict=True):
                if part.numel():
                    part.add_(from_bytes(frame, part.dtype))
            self._clocks[letter.source] = round_ + 1
            self._waiting[letter.source] = (number, round_ + 1)
        else:
            self._waiting[letter.source] = (number, -1)
        self._answer_those_who_may_go_on(post)

    def _answer_those_who_may_go_on(self, post: Post) -> None:
        staleness = self._owner.server.staleness
        slowest = min(self._clocks)
        ready = [
            (rank, number)
            for rank, (number, round_) in self._waiting.items()
            if staleness is None or round_ - slowest <= staleness
        ]
        if ready:
            frames = [to_bytes(part) for part in self._parts]
            for rank, number in ready:
                del self._waiting[rank]
                post.send(rank, "model", (number,), frames)
