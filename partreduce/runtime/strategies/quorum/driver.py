"""Run one worker's side of a partial all-reduce (eager-SGD) between real processes.

Three threads apply events to the protocol: training applies `Call`, `Take` and `End`, the collective thread `Begin` and
`Finish`, and the mailbox's thread received messages. One lock orders them, so a round includes exactly the gradients
that the protocol counts.

A run is divided into *segments*. A segment ends with an operation of all workers (a mean model, a checkpoint, the end
of the run): all have then taken the results up to the same round, and nothing is in flight.

Messages are cumulative (round r may start, and so may all before it): a later one replaces an earlier one that still
waits for room, and no sender waits. In large runs they are forwarded along a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.gradients import put_gradients, sparse_gradient
from partreduce.runtime.strategies.protocol_driver import EventLog, GenerationDriver, Missing
from partreduce.runtime.transport.mailbox import Mailbox, Message
from partreduce.schedulers.protocols import partial as partial_machine
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.partial import Partial


@dataclass(slots=True, eq=False)
class GradientSum:
    """Gradients in host memory, one array per bucket: a worker's contribution to a round, and later the round's sum.

    `scaled` says whether a GradScaler was used.
    """

    arrays: list[torch.Tensor]  # one per bucket, and one of float32 if no bucket's dtype can hold exact counts
    is_empty: bool = True  # whether nothing was added yet; the arrays then have old values
    scaled: bool = False  # whether a GradScaler was used, so that non-finite values must be detected


class GradientSums:
    """A worker's send buffer of gradients, and the sums of rounds that wait to be applied.

    A round's result is the sum of all gradients in it, divided by the number n of workers: after the sum, or before it
    in buckets of float16 and bfloat16 (`divisor`), so that the sum does not overflow. Each round also sums `room`
    further numbers: each worker's number of gradients, a flag, and a tag. Memory: one array of model size each for the
    send buffer, the round in progress, and every result that waits or is being applied.
    """

    def __init__(self, buckets: Sequence[Bucket], room: int, *, num_workers: int) -> None:
        self.buckets, self._room, self._num_workers = tuple(buckets), room, num_workers
        self._carrier = next((index for index, bucket in enumerate(buckets) if bucket.exact), len(buckets))
        """Index of the array that ends with the further numbers."""
        self.made = 0  # number of sums allocated so far; they are reused
        self._spare: list[GradientSum] = []
        self._buffer = self._lend()
        self._kept: dict[int, GradientSum] = {}
        self._in_use: list[GradientSum] = []

    def divisor(self, index: int) -> int:
        """Return the number by which gradients of bucket `index` are divided before they are summed: 1 or n."""
        return 1 if self.buckets[index].exact else self._num_workers

    def _lend(self) -> GradientSum:
        if self._spare:
            lent = self._spare.pop()
            lent.is_empty, lent.scaled = True, False
            return lent
        arrays = []
        for index, bucket in enumerate(self.buckets):
            length = bucket.size + len(bucket.slots) + (self._room if index == self._carrier else 0)
            arrays.append(torch.zeros(length, dtype=bucket.dtype, pin_memory=bucket.device.type == "cuda"))
        if self._carrier == len(self.buckets):
            arrays.append(torch.zeros(self._room))
        self.made += 1
        return GradientSum(arrays)

    def check_sparse(self) -> None:
        for bucket in self.buckets:
            for slot in bucket.slots:
                gradient = slot.parameter.grad
                if gradient is not None and gradient.layout is not torch.strided:
                    raise sparse_gradient(slot.names[0])

    def add(self, *, scaled: bool) -> None:
        """Add the parameters' gradients to the send buffer; `scaled` says whether a GradScaler scaled them."""
        buffer = self._buffer
        with torch.no_grad():
            for index, (bucket, array) in enumerate(zip(self.buckets, buffer.arrays, strict=False)):
                self._add(bucket, array, self.divisor(index), first=buffer.is_empty)
        buffer.is_empty = False
        buffer.scaled |= scaled

    @staticmethod
    def _add(bucket: Bucket, array: torch.Tensor, divisor: int, *, first: bool) -> None:
        present, views, gradients = array[bucket.size : bucket.size + len(bucket.slots)], [], []
        flags = torch.zeros(len(bucket.slots), dtype=array.dtype)
        for place, slot in enumerate(bucket.slots):
            gradient = slot.parameter.grad
            if gradient is None:
                if first:
                    slot.view(array).zero_()
                continue
            flags[place] = 1
            views.append(slot.view(array))
            gradients.append(gradient.to("cpu"))
        if divisor != 1:
            gradients = [gradient / divisor for gradient in gradients]
        if views and first:
            torch._foreach_copy_(views, gradients)
        elif views:
            torch._foreach_add_(views, gradients)
        if first:
            present.copy_(flags)
        else:
            present.copy_(torch.maximum(present, flags))

    # Called by the driver, with its lock held.

    def depart(self) -> GradientSum:
        departed, self._buffer = self._buffer, self._lend()
        return departed

    def keep(self, round_: int, arrived: GradientSum) -> None:
        self._kept[round_] = arrived

    def take(self, rounds: Sequence[int]) -> list[GradientSum]:
        taken = [self._kept[round_] for round_ in rounds]
        self._in_use += taken
        return taken

    def retain(self, rounds: Sequence[int]) -> None:
        """Drop the sums of all rounds except `rounds`."""
        for round_ in [known for known in self._kept if known not in rounds]:
            self._give_back(self._kept.pop(round_))

    def release(self, sums: Sequence[GradientSum]) -> None:
        for one in sums:
            self._in_use = [other for other in self._in_use if other is not one]
            self._give_back(one)

    def _give_back(self, one: GradientSum) -> None:
        if not any(one is other for other in (*self._in_use, *self._kept.values())):
            self._spare.append(one)

    def clear(self) -> None:
        """Empty the send buffer and drop all sums that wait to be applied."""
        self.retain(())
        self._buffer.is_empty, self._buffer.scaled = True, False

    # Called by the collective thread, without the lock.

    def arrays(self, payload: GradientSum) -> list[torch.Tensor]:
        if payload.is_empty:
            for array in payload.arrays:
                array.zero_()
        return payload.arrays

    def room(self, payload: GradientSum) -> torch.Tensor:
        """Return a view of the `room` further numbers at the end of a contribution, summed with its gradients.

        Before a round a worker writes its number of gradients, the GradScaler flag and the operation's tag there; after
        the round it reads their sums.
        """
        return payload.arrays[self._carrier][-self._room :]

    def arrived(self, payload: GradientSum, *, scaled: bool) -> None:
        """Divide a round's sums by n where that was not done before; `scaled`: whether any worker used a GradScaler."""
        payload.scaled = scaled
        with torch.no_grad():
            for index, (bucket, array) in enumerate(zip(self.buckets, payload.arrays, strict=False)):
                if self._num_workers != (already := self.divisor(index)):
                    array[: bucket.size].div_(self._num_workers / already)

    # Called by the training loop.

    def apply(self, one: GradientSum) -> None:
        """Copy a round's mean gradients into the parameters' `grad`, which is None where no worker had a gradient."""
        with torch.no_grad():
            for bucket, array in zip(self.buckets, one.arrays, strict=False):
                presence = array[bucket.size : bucket.size + len(bucket.slots)].tolist()
                missing = [place for place, is_there in enumerate(presence) if not is_there]
                put_gradients(bucket.slots, [slot.view(array) for slot in bucket.slots], missing)


DIRECT = 64  # up to this many workers, messages are sent directly, not along a tree
ROOT = " of "  # in the kind of a message sent along a tree, separates the kind and the root's rank


def children(place: int, size: int) -> tuple[int, ...]:
    """Return the positions to which position `place` of a binomial tree forwards a message; the root is position 0.

    Position p = 2ᵏ·q with q odd (the root: any k) sends to p + 2ʲ for all j < k, so each position is reached once,
    after at most ⌈log₂ size⌉ consecutive messages.
    """
    span = place & -place if place else 1 << max(0, size - 1).bit_length()
    found = []
    while span > 1:
        span >>= 1
        if place + span < size:
            found.append(place + span)
    return tuple(found)


class Spread:
    """Sender of small messages to many workers, along a binomial tree in large runs; also forwards others' messages."""

    def __init__(self, mailbox: Mailbox, num_workers: int) -> None:
        self._mailbox, self._size = mailbox, num_workers
        self._has_tree = num_workers > DIRECT

    def send(self, targets: Iterable[int], kind: str, numbers: tuple[int, ...]) -> None:
        """Send a `Word`'s message to the ranks `targets`, or along a tree if to all workers of a large run."""
        recipients = tuple(targets)
        if self._has_tree and len(recipients) == self._size - 1:
            self._pass_on(self._mailbox.rank, kind, numbers)
            return
        for to in recipients:
            self._mailbox.send_newest(to, kind, numbers, urgent=True)

    def received(self, message: Message) -> tuple[int, str]:
        kind, _, root = message.kind.partition(ROOT)
        if not root:
            return message.source, kind
        self._pass_on(int(root), kind, message.numbers)
        return int(root), kind

    def _pass_on(self, root: int, kind: str, numbers: tuple[int, ...]) -> None:
        """Forward a message to this worker's children in the tree of rank `root`, under a kind that names the root."""
        place = (self._mailbox.rank - root) % self._size
        for child in children(place, self._size):
            self._mailbox.send_newest((root + child) % self._size, f"{kind}{ROOT}{root}", numbers, urgent=True)


AWord = partial_machine.Activate | partial_machine.Arrived | partial_machine.Here | partial_machine.Ended
WORDS: dict[str, type[AWord]] = {word.__name__.lower(): word for word in get_args(AWord)}  # messages sent by mailbox
KINDS = {word: kind for kind, word in WORDS.items()}


class StartedRound(NamedTuple):
    """A round that the collective thread has started: numbers of this worker's gradients (`share`), and their sum."""

    segment: int
    round: int
    share: partial_machine.Share
    payload: GradientSum


class TakenResult(NamedTuple):
    """Sums of gradients for the training loop to apply, one per round, in order; it then advances `by` rounds."""

    sums: tuple[GradientSum, ...]
    by: int  # rounds by which the worker advances


class Word(NamedTuple):
    """A message of the partial all-reduce's protocol to the ranks `to`, such as "round r may start"."""

    kind: str
    numbers: tuple[int, int]  # segment and round
    to: tuple[int, ...]


class QuorumDriver(GenerationDriver[partial_machine.PartialState]):
    """The partial all-reduce's protocol on one worker, with its gradients and the sums of rounds.

    It restarts in each segment, the time between two operations of all workers. A worker without a gradient waits up to
    `grace` seconds for one before it joins a round.
    """

    machine: Partial

    def __init__(self, machine: Partial, rank: int, payload: GradientSums, *, log: EventLog, grace: float) -> None:
        super().__init__(machine, rank, generation=-1)
        self.rank, self.payload, self.log = rank, payload, log
        self.error: BaseException | None = None  # the error that ended the collective thread
        self.spread: Spread | None = None  # sends the messages; set before the first segment
        self._grace = grace
        self.is_closing = False
        self._notes: list[Any] = []  # of the last event

    # The training.

    def open(self) -> None:
        with self.condition:
            if self._state is not None:
                return
            self._generation += 1
            self.payload.clear()
            words = [word for known in self._begin(self.machine.start(self.rank)[0]) for word in known or ()]
        self._post(words)

    def call(self, load: Callable[[], None]) -> None:
        with self.condition:
            load()
            self.log.add("called", self._generation, self.open_state.version, (self.open_state.calls,))
            words = self._step(partial_machine.Call())
        self._post(words)

    def end(self) -> None:
        with self.condition:
            words = self._step(partial_machine.End())
        self._post(words)

    def may_take(self) -> bool:
        return self.offers(partial_machine.Take)

    def take(self) -> TakenResult:
        """Return the sums of gradients to apply now; call it only after `may_take` was true."""
        with self.condition:
            before = self.open_state
            words = self._step(partial_machine.Take())
            after = self.open_state
            rounds = next(note[1] for note in self._notes if note[0] == "taken")
            sums = self.payload.take(rounds)
            self.payload.retain([result.round for result in after.results])
            taken = TakenResult(tuple(sums), after.version - before.version)
        self._post(words)
        return taken

    def release(self, sums: Sequence[GradientSum]) -> None:
        with self.condition:
            self.payload.release(sums)

    @property
    def is_meeting(self) -> bool:
        return self._state is not None and self._state.stage == partial_machine.MEETING

    def has_ended(self) -> bool:
        """Return whether this worker has no more gradients and has taken the last round of all workers."""
        return self._state is not None and self.machine.finished(self.rank, self._state)

    def close_segment(self) -> None:
        with self.condition:
            self._state = None

    def missing(self) -> Missing | None:
        """Return what the training loop waits for; None if nothing, or if a round runs, which has its own deadline."""
        with self.condition:
            state = self.open_state
            ready = self.machine.ready(self.rank, state)
            if state.is_running or partial_machine.Begin() in ready or partial_machine.Take() in ready:
                return None
            if state.stage == partial_machine.MEETING:
                of = tuple(rank for rank, round_ in enumerate(state.here) if round_ < state.version)
                return Missing(f"the models of all in round {state.version}", of)
            of = tuple(rank for rank in self.machine.awaited(self.rank, state) if rank != self.rank)
            return Missing(f"round {state.entered} to be started", of)

    def publish_activity(self, doing: Callable[[str], None]) -> None:
        """Call `doing` with a text on what this worker computes, unless its collective thread is in a round."""
        with self.condition:
            state = self._state
            if state is None or state.is_running or state.stage != partial_machine.COMPUTING or state.resting:
                return
            waiting = len(state.results)
            they = "1 result waits" if waiting == 1 else f"{waiting} results wait"
            doing("computes a gradient" + (f", while {they} for it" if waiting else ""))

    # The collective thread.

    def begin(self) -> StartedRound | None:
        """Wait until the protocol allows the next round, and start it with this worker's share; None once closed."""
        with self.condition:
            self.condition.wait_for(lambda: self.is_closing or self.offers(partial_machine.Begin))
            if self._grace and not self.is_closing and self._is_awaited():
                self.condition.wait_for(lambda: self.is_closing or not self._is_awaited(), self._grace)
            if self.is_closing:
                return None
            before = self.open_state
            share = partial_machine.Share(before.entered, before.buffer, before.oldest, before.resting)
            self._step(partial_machine.Begin())
            self.log.add("begun", self._generation, share.round, share.gradients)
            return StartedRound(self._generation, share.round, share, self.payload.depart())

    def _is_awaited(self) -> bool:
        """Return whether this worker has no gradient for the next round yet but will have one."""
        state = self.open_state
        return not state.buffer and not state.resting

    def finish(self, begun: StartedRound, shares: Sequence[partial_machine.Share]) -> None:
        words: list[Word] = []
        with self.condition:
            for source, share in enumerate(shares):
                if source != self.rank:
                    words += self._step(Received(source, share))
            words += self._step(partial_machine.Finish())
            self.payload.keep(begun.round, begun.payload)
            self.payload.retain([result.round for result in self.open_state.results])
            self.log.add("finished", self._generation, begun.round, tuple(len(share.gradients) for share in shares))
        self._post(words)

    def fail(self, error: BaseException) -> None:
        with self.condition:
            self.error = error
            self.condition.notify_all()

    # The mailbox.

    def deliver(self, message: Message) -> None:
        assert self.spread is not None, "it is set before messages come"
        source, kind = self.spread.received(message)
        self._post(super().deliver(Message(source, kind, message.numbers)) or ())

    def close(self) -> None:
        with self.condition:
            self.is_closing = True
            self.condition.notify_all()

    def _received(self, message: Message) -> list[Word]:
        return self._step(Received(message.source, WORDS[message.kind](message.numbers[1])))

    def _step(self, event: object) -> list[Word]:
        """Apply one event, with the lock held; return the messages for other workers that follow."""
        actions = self.step(event)
        self._notes = [action.what for action in actions if isinstance(action, Note)]
        for note in self._notes:
            match note:
                case ("taken", tuple(rounds), int(version)):
                    self.log.add("taken", self._generation, version, rounds)
                case ("synchronized", int(version)):
                    self.log.add("synchronized", self._generation, version)
        targets: dict[AWord, list[int]] = {}
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, AWord):
                targets.setdefault(action.message, []).append(action.to)
        return [Word(KINDS[type(word)], (self._generation, word.round), tuple(to)) for word, to in targets.items()]

    def _post(self, words: Sequence[Word]) -> None:
        assert self.spread is not None, "it is set before words leave"
        for word in words:
            self.spread.send(word.to, word.kind, word.numbers)
