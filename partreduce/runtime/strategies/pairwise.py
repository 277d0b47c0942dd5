"""Run strategy `pairwise`, AD-PSGD (Lian et al., ICML 2018): two workers at a time average their models."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import torch

from partreduce.runtime.averaging.bucket import copy_to
from partreduce.runtime.recorder import Operation
from partreduce.runtime.strategies.base import DIFFERENT, ON_TIME, AveragedGradients, OneSided, Run, StepResult
from partreduce.runtime.strategies.protocol_driver import GenerationDriver
from partreduce.runtime.transport.array_frames import Snapshots, frame_of, tensor_of
from partreduce.runtime.transport.mailbox import Mailbox, Message
from partreduce.schedulers.protocols.adpsgd import Answer, Ask, Choose, Pairing, PairState, pairing_of
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.topo.strategies.pairwise import Pairwise


class PairMeans(OneSided):
    """Runner for AD-PSGD: after each round an active worker averages with a random passive neighbor.

    Passive workers never wait. A worker's model x is separate from the optimizer's parameters and guarded by a lock:
    the training loop adds each round's progress (the change of the parameters) to x and continues from the result,
    while a side thread averages x with other workers. With a delay the exchange runs during the next round. Memory: two
    more copies of the parameters, three on active workers. Buffers are averaged in the mean model only.
    """

    def __init__(self, strategy: Pairwise, run: Run) -> None:
        pairing = pairing_of(strategy, run.schedule.num_workers)
        self.pair = _Pair(run.rank, pairing)
        super().__init__(strategy, run, "a pair", self.pair.receive)
        self.strategy, self.rank = strategy, run.rank
        self.is_active = run.rank in strategy.active
        self.neighbors = pairing.graph.targets[run.rank]
        self._near = tuple(sorted((run.rank, *self.neighbors)))
        self._random = random.Random(f"{strategy.seed} {run.rank}")
        self._generation = 0
        self._pauses = 0
        self._number = 0
        self._pending: Operation | None = None
        self.pair.mailbox = self._mailbox
        self._mailbox.start()

    def before_step(self, step: int) -> AveragedGradients:  # noqa: ARG002 - the signature of all
        self._open()
        return ON_TIME

    def end_round(self, step: int, round_: int) -> StepResult:
        """Add the round's change of the parameters to this worker's model x; if active, average with a neighbor."""
        self.run.reducer.check_if_gone(self._peer_watch, step, round_)
        self._open()
        self.pair.add([part.mul_(self._factor).to("cpu") for part in self._progress()])
        if self.is_active and self.neighbors:
            if self.strategy.is_delayed:
                self._wait()
                self._choose(step, round_)
            else:
                self._choose(step, round_)
                self._wait()
        self._adopt(())
        return DIFFERENT

    def settle(self, *, ends: bool = False) -> None:  # noqa: ARG002 - the signature of all
        """Wait until no neighbor exchanges with this worker, and copy its averaged model to the parameters."""
        if not self._starts:
            return
        self._wait()
        self._pauses += 1
        if self.is_active:
            for neighbor in self.neighbors:
                self._mailbox.send(neighbor, "pause", (self._generation, self._pauses))
        else:
            self.wait_until(lambda: all(self.pair.pauses.get(v, 0) >= self._pauses for v in self.neighbors), self._near)
        self._adopt(self._progress())

    def drain(self) -> str:
        """Wait for the exchange in flight; the next step starts again from the parameters. Returns "", no warning."""
        self._wait()
        self._starts = []
        self._generation += 1
        self._pauses = 0
        return ""

    @property
    def is_measured(self) -> bool:
        """Whether the averaged model exists: any change of the parameters, even by loading, is then added to it."""
        return bool(self._starts)

    def _open(self) -> None:
        if self._starts:
            return
        self._starts = copy_to([], self.run.flat.buckets)
        model = [start.to("cpu", copy=True) for start in self._starts]
        self.pair.opening = (self._generation, model)
        self._mailbox.send(self.rank, "open")
        generation = self._generation
        self.wait_until(lambda: self.pair.generation == generation, self._near)

    def _adopt(self, keep: Sequence[torch.Tensor]) -> None:
        """Set the parameters to this worker's averaged model plus `keep`, per bucket the change in this round."""
        with torch.no_grad(), self.pair.lock:
            for bucket, start, model in zip(self.run.flat.buckets, self._starts, self.pair.model, strict=True):
                start.copy_(model)
                bucket.flat.copy_(start)
            for bucket, part in zip(self.run.flat.buckets, keep, strict=False):
                bucket.flat.add_(part)

    def _choose(self, step: int, round_: int) -> None:
        partner = self._random.choice(self.neighbors)
        reducer, self._number = self.run.reducer, self._number + 1
        num_bytes = sum(bucket.num_bytes for bucket in self.run.flat.buckets)
        members = tuple(sorted((self.rank, partner)))
        self._pending = reducer.recorder.begin("pair average", step, round_, members, num_bytes)
        reducer.heartbeat.doing(self._pending.entered, () if self.strategy.is_delayed else (partner,))
        self._mailbox.send(self.rank, "choose", (self._generation, self._number, partner))

    def _wait(self) -> None:
        operation, self._pending = self._pending, None
        if operation is not None:
            number = self._number
            self.wait_until(lambda: self.pair.answered >= number, operation.members, operation)


class _Pair(GenerationDriver[PairState]):
    """One worker's averaged model x, one array per bucket, and its protocol, which the mailbox's thread runs."""

    def __init__(self, rank: int, machine: Pairing) -> None:
        super().__init__(machine, rank, generation=-1, is_open=True)
        self.lock = threading.Lock()
        self.mailbox: Mailbox
        self.opening: tuple[int, list[torch.Tensor]] | None = None
        self.model: list[torch.Tensor] = []
        self.answered = 0
        self.averaged: list[int] = []  # ranks that this worker averaged with, in order
        self.pauses: dict[int, int] = {}
        self._snapshots = Snapshots()
        self._sent: list[memoryview] = []
        self._requested = 0
        self._untouched = False
        self._last: dict[int, int] = {}

    def add(self, progress: Sequence[torch.Tensor]) -> None:
        with self.lock:
            self._untouched = False
            for model, part in zip(self.model, progress, strict=True):
                model.add_(part)

    def receive(self, message: Message) -> None:
        if message.kind != "open":
            self.deliver(message)
            return
        assert self.opening is not None, "the training loop left it"
        with self.condition:
            self._generation, self.model = self.opening
            self.pauses, self._last = {}, {}
            self._begin(self.open_state)

    def _is_over(self, message: Message) -> bool:
        """Return whether to drop `message`, which is from before the last restart: only pauses are dropped."""
        return message.kind == "pause"

    def _received(self, message: Message) -> None:
        """Apply a message to the protocol, with the lock held; a request or answer that arrives twice counts once."""
        number = message.numbers[1]
        if message.kind == "pause":
            self.pauses[message.source] = number
        elif message.kind == "choose":
            self._requested = number
            self._react(Choose(message.numbers[2]), message)
        elif message.kind == "ask" and number > self._last.get(message.source, 0):
            self._last[message.source] = number
            self._react(Received(message.source, Ask()), message)
        elif message.kind == "answer" and number == self._requested > self.answered:
            self._react(Received(message.source, Answer()), message)

    def _react(self, event: object, message: Message) -> None:
        for action in self.step(event):
            match action:
                case Send(to, Ask()):
                    with self.lock:
                        self._untouched = True
                        self._sent = self._snapshots.take(self.model)
                    self.mailbox.send(to, "ask", message.numbers[:2], self._sent)
                case Send(to, Answer()):
                    self.mailbox.send(to, "answer", message.numbers[:2], self._meet(message))
                case Note(("averaged", int(partner))):
                    self.averaged.append(partner)
                    if isinstance(event, Received) and isinstance(event.message, Answer):
                        self._take(message)
                        self.answered = message.numbers[1]

    def _meet(self, message: Message) -> list[Any]:
        """Average this worker's model with that in a request; return the mean, in the memory of the request."""
        if message.numbers[0] != self.generation:
            return list(message.payload)  # the requester restarts too, and drops the answer
        means = [tensor_of(frame, model.dtype) for frame, model in zip(message.payload, self.model, strict=True)]
        with self.lock:
            for model, mean in zip(self.model, means, strict=True):
                model.copy_(mean.add_(model).mul_(0.5))
        return [frame_of(mean) for mean in means]

    def _take(self, message: Message) -> None:
        """Set this worker's model to the mean in an answer, plus what the training loop has added since the request."""
        if message.numbers[0] != self.generation:
            return
        with self.lock:
            for model, sent, frame in zip(self.model, self._sent, message.payload, strict=True):
                mean = tensor_of(frame, model.dtype)
                if self._untouched:
                    model.copy_(mean)
                else:
                    model.add_(mean.sub_(tensor_of(sent, model.dtype)))
        self._sent = []
