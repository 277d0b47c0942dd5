"""Run an asynchronous parameter server: workers that hold parts of the model add other workers' changes to them."""

from __future__ import annotations

from typing import Any

import torch

from partreduce.runtime.averaging.bucket import copy_to
from partreduce.runtime.averaging.flat_model import digest_of
from partreduce.runtime.recorder import Operation
from partreduce.runtime.strategies.base import DIFFERENT, ON_TIME, AveragedGradients, OneSided, Run, StepResult
from partreduce.runtime.strategies.protocol_driver import ProtocolDriver
from partreduce.runtime.transport.array_frames import Snapshots, frame_of, tensor_of
from partreduce.runtime.transport.mailbox import Mailbox, Message
from partreduce.runtime.transport.multistage_allreduce import block_bounds
from partreduce.runtime.transport.store import Notes, Pauses
from partreduce.runtime.transport.waiting import PeerGoneError, Wait
from partreduce.schedulers.protocols import shards
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.server import Server

# messages to a shard; each has two integers
MESSAGES = {"open": shards.Opened, "push": shards.Progress, "pull": shards.Ask}


class AsynchronousServer(OneSided):
    """Runner of an asynchronous parameter server: after a round a worker pushes its progress and pulls the model.

    Progress is the change of the parameters in the round. The hosts, workers that each hold a part of the model, add it
    at once: with plain SGD this is asynchronous SGD. Optimizer state stays on the worker. With `staleness` s a host
    answers only workers that are at most s rounds ahead of the slowest. With a delay a worker waits for the answer at
    the end of the next round. Buffers are averaged in the mean model only.
    """

    def __init__(self, server: Server, run: Run) -> None:
        super().__init__(server, run, "an asynchronous server", self._deliver)
        self.server = server
        self._bounds = [block_bounds(bucket.size, len(server.hosts)) for bucket in run.flat.buckets]
        """For each bucket and host: (start, end) of the host's part, in elements."""
        self._machine = shards.shards_of(server, run.schedule.num_workers)
        self.driver = ProtocolDriver[Any](self._machine, run.rank, is_open=True)
        self._answers: dict[int, tuple[Any, ...]] = {}
        self._pending: Operation | None = None
        self._shard: _Shard | None = None
        if run.rank in server.hosts:
            own = server.hosts.index(run.rank)
            self._shard = _Shard(self._machine, self._machine.shards[own], [b[own] for b in self._bounds])
        self._mailbox.start()

    def before_step(self, step: int) -> AveragedGradients:
        self._open(step // self.run.steps_per_round)
        return ON_TIME

    def end_round(self, step: int, round_: int) -> StepResult:
        self.run.reducer.check_if_gone(self._peer_watch, step, round_)
        self._open(round_)
        progress = [part.mul_(self._factor) for part in self._progress()]
        if self.server.is_delayed:
            if self._pending is None:
                self._starts = copy_to(self._starts, self.run.flat.buckets)
            else:
                self._take(progress)
            self._ask(shards.Push(), step, round_, progress)
        else:
            self._ask(shards.Push(), step, round_, progress)
            self._take(None, shards.Take())
        return DIFFERENT

    def settle(self, *, ends: bool = False) -> None:  # noqa: ARG002 - the signature of all
        """Wait for the hosts' answer; take their newest model and add what this worker changed since its last push."""
        if self.is_measured:
            self._refresh()

    def drain(self) -> str:
        """Wait for the hosts' answer and drop it; hosts restart from workers' parameters. Returns "": no warning."""
        if self._pending is not None:
            self._wait(self._pending)
            self._pending = None
        if not self.is_measured:
            self._begin(self.driver.open_state.round)  # so that all workers count the same generations
        self.driver.raised(shards.Drain())
        return ""

    @property
    def is_measured(self) -> bool:
        """Whether the hosts hold a model already: any change of parameters, even by loading, is then pushed to them."""
        return bool(self.driver.open_state.stage != shards.CLOSED)

    def _open(self, round_: int) -> None:
        if self.is_measured:
            return
        self._starts = copy_to(self._starts, self.run.flat.buckets)
        if self.driver.open_state.generation == 0:
            self._check_several_models()
        self._begin(round_)

    def _begin(self, round_: int) -> None:
        if self._shard is not None:
            self._shard.take([bucket.flat for bucket in self.run.flat.buckets])
        for action in self.driver.raised(shards.Open(round_)):
            match action:
                case Send(_, shards.Opened(generation, begun)):
                    self._mailbox.send(self.run.rank, "open", (generation, begun))

    def _check_several_models(self) -> None:
        """Raise InputError if this worker's initial parameters differ from those of the first host."""
        digest = digest_of(self._starts)
        reducer, host = self.run.reducer, self.server.hosts[0]
        notes = Notes(reducer.world.store, f"first-model/{reducer.key}")
        if self.run.rank == host:
            notes.write("digest", digest)
            return
        wait, pauses = Wait(reducer.heartbeat, (host,), reducer.timeout, 0), Pauses()
        with reducer.recorded("first model", 0, 0, tuple(sorted((host, self.run.rank)))):
            while not notes.has("digest"):
                wait.check()
                pauses.sleep()
        if notes.wait_for("digest") != digest:
            raise InputError(
                f"model: worker {self.run.rank} starts from other parameters than worker {host}, and an asynchronous "
                "server trains one model; use initial='broadcast'"
            )

    def _ask(self, event: shards.Push | shards.Pull, step: int, round_: int, progress: list[torch.Tensor]) -> None:
        """Send each host its part of `progress` (for a `Push`), or ask each for its part of the model (for a `Pull`).

        `progress` has one tensor per bucket, none for a `Pull`; traces show `step` and `round_`. Waits for no answer.
        """
        base, kind = self.run.reducer, "push" if isinstance(event, shards.Push) else "pull"
        num_bytes = sum(part.nbytes for part in progress)
        members = tuple(sorted({self.run.rank, *self.server.hosts}))
        self._pending = base.recorder.begin(kind, step, round_, members, num_bytes)
        base.heartbeat.doing(self._pending.entered)
        self._answers = {}
        for action in self.driver.raised(event):
            match action:
                case Send(shard, shards.Progress(generation, number) | shards.Ask(generation, number)):
                    index = self._machine.shards.index(shard)
                    frames = [
                        frame_of(part[slice(*bounds[index])])  # views, since the progress stays unchanged
                        for part, bounds in zip(progress, self._bounds, strict=kind == "push")
                    ]
                    try:
                        self._mailbox.send(self.server.hosts[index], kind, (generation, number), frames)
                    except PeerGoneError as error:
                        raise base.failure(self._pending, error) from None

    def _refresh(self) -> None:
        progress = self._progress()
        if self._pending is not None:
            self._take(progress)
        self._ask(shards.Pull(), -1, -1, [])
        self._take(progress, shards.Take())
        for start, part in zip(self._starts, progress, strict=True):
            start.sub_(part)

    def _take(self, progress: list[torch.Tensor] | None, event: shards.Take | None = None) -> None:
        """Wait for the hosts' answers and set the parameters to their model plus `progress`, one tensor per bucket.

        `event`, if given, is applied to the protocol once the answers have arrived. Does nothing if none was asked for.
        """
        operation = self._pending
        if operation is None:
            return
        self._pending = None
        self._wait(operation)
        if event is not None:
            self.driver.raised(event)
        with torch.no_grad():
            for place, (bucket, bounds) in enumerate(zip(self.run.flat.buckets, self._bounds, strict=True)):
                for host, (start, end) in zip(self.server.hosts, bounds, strict=True):
                    if end > start:
                        bucket.flat[start:end].copy_(tensor_of(self._answers[host][place], bucket.dtype))
                if progress is not None:
                    bucket.flat.add_(progress[place])
        self._starts = copy_to(self._starts, self.run.flat.buckets)

    def _wait(self, operation: Operation) -> None:
        driver, missing = self.driver, [host for host in self.server.hosts if host not in self._answers]
        self.run.reducer.heartbeat.doing(operation.entered, missing)
        self.wait_until(lambda: not driver.open_state.missing, range(self.run.schedule.num_workers), operation)

    def _deliver(self, message: Message) -> None:
        if message.kind == "model":
            driver = self.driver
            with driver.condition:
                if message.numbers[0] == driver.open_state.number:
                    self._answers[message.source] = message.payload
                shard = self._machine.shards[self.server.hosts.index(message.source)]
                driver.step(Received(shard, shards.Answer(message.numbers[0])))
        else:
            assert self._shard is not None, "only hosts are written to"
            self._shard.receive(message, self._mailbox)


class _Shard(ProtocolDriver[Any]):
    """A host's part of the model, (start, end) in each bucket, and its protocol; the mailbox's thread changes it."""

    def __init__(self, machine: shards.Shards, process: int, bounds: list[tuple[int, int]]) -> None:
        super().__init__(machine, process, is_open=True)
        self._bounds = bounds
        self._opening: list[torch.Tensor] = []
        self._parts: list[torch.Tensor] = []
        self._progress: dict[tuple[int, int], tuple[Any, ...]] = {}  # by worker and request, until added or dropped
        self._snapshots = Snapshots()

    def take(self, arrays: list[torch.Tensor]) -> None:
        """Copy this host's part of `arrays`, one per bucket; the model starts from it when the protocol next opens."""
        self._opening = [
            array[start:end].detach().to("cpu", copy=True)
            for array, (start, end) in zip(arrays, self._bounds, strict=True)
        ]

    def receive(self, message: Message, mailbox: Mailbox) -> None:
        generation, number = message.numbers
        if message.kind == "push":
            self._progress[message.source, number] = message.payload
        decoded = MESSAGES[message.kind](generation, number)
        with self.condition:
            actions = self.step(Received(message.source, decoded))
        frames: list[memoryview] | None = None
        for action in actions:
            match action:
                case Note(("opened", _)):
                    self._parts = self._opening
                case Note(("added", int(worker), int(request))):
                    self._add(self._progress.pop((worker, request)))
                    frames = None
                case Note(("dropped", int(worker), int(request))):
                    self._progress.pop((worker, request), None)
                case Send(worker, shards.Answer(request)):
                    frames = frames or self._snapshots.take(self._parts)  # copied, as the next push changes them
                    mailbox.send(worker, "model", (request,), frames)

    def _add(self, frames: tuple[Any, ...]) -> None:
        for part, frame in zip(self._parts, frames, strict=True):
            if part.numel():
                part.add_(tensor_of(frame, part.dtype))
