"""Drive one worker's side of a partial collective between real processes, with the arrays.

Three threads work here: the training raises `Call`, `Take` and `End`, the collective thread `Begin` and `Finish`, and
the mailbox's thread passes messages to the protocol object as they arrive. One lock orders them. The object and the
arrays change together under that lock: a round includes exactly the gradients that the object counts.

The run is cut into *segments*: where all workers synchronize (a mean model, a checkpoint, the end), each ends like a
worker without data, all take the results up to the same last round, and nothing is in flight. The next segment starts
from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from partreduce.runtime.strategies.protocol_driver import GenerationDriver, Missing, QuorumLog
from partreduce.runtime.strategies.quorum.broadcast_tree import Spread
from partreduce.runtime.strategies.quorum.gradient_buffers import GradientSum, GradientSums
from partreduce.runtime.transport.mailbox import Message
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.partial import (
    COMPUTING,
    MEETING,
    Activate,
    Arrived,
    Begin,
    Call,
    End,
    Ended,
    Finish,
    Here,
    Partial,
    PartialState,
    Share,
    Take,
)

AWord = Activate | Arrived | Here | Ended
WORDS: dict[str, type[AWord]] = {"activate": Activate, "arrived": Arrived, "here": Here, "ended": Ended}
"""The messages that travel by mailbox; shares travel in the sums."""
KINDS = {word: kind for kind, word in WORDS.items()}


@dataclass(frozen=True, slots=True)
class StartedRound:
    """A round that the collective thread is in, with what this worker brings."""

    segment: int
    round: int
    share: Share
    payload: GradientSum


@dataclass(frozen=True, slots=True)
class TakenResult:
    """Results that the training is to apply, by round ascending."""

    sums: tuple[GradientSum, ...]
    by: int
    """Rounds by which the worker is further."""


@dataclass(frozen=True, slots=True)
class Word:
    """A message without arrays, to each of some workers."""

    kind: str
    numbers: tuple[int, int]
    """Segment and round."""
    to: tuple[int, ...]


class QuorumDriver(GenerationDriver[PartialState]):
    """The protocol object, its state and the gradients of one worker; a segment is a generation.

    Args:
        machine: the protocol, with shares that meet in collectives.
        rank: this worker.
        payload: the send buffer, and the sums that wait.
        log: what happens here.
        grace: seconds that a round which may begin waits for this worker's own gradient.
    """

    machine: Partial

    def __init__(self, machine: Partial, rank: int, payload: GradientSums, *, log: QuorumLog, grace: float) -> None:
        super().__init__(machine, rank, generation=-1)
        self.rank, self.payload, self.log = rank, payload, log
        self.error: BaseException | None = None
        """What ended the collective thread."""
        self.spread: Spread | None = None
        """By which words leave; set before the first segment."""
        self._grace = grace
        self._closing = False
        self._notes: list[Any] = []
        """Of the last event."""

    # The training.

    def open(self) -> None:
        """Begin a segment, if none is open."""
        with self.condition:
            if self._state is not None:
                return
            self._generation += 1
            self.payload.clear()
            words = [word for known in self._begin(self.machine.start(self.rank)[0]) for word in known or ()]
        self._post(words)

    def call(self, load: Callable[[], None]) -> None:
        """A gradient is computed: `load` adds it to the send buffer."""
        with self.condition:
            load()
            self.log.add("called", self._generation, self.open_state.version, (self.open_state.calls,))
            words = self._step(Call())
        self._post(words)

    def end(self) -> None:
        """The worker has no more gradients in this segment."""
        with self.condition:
            words = self._step(End())
        self._post(words)

    def may_take(self) -> bool:
        return self.offers(Take)

    def take(self) -> TakenResult:
        """The results that are there; `may_take` was true before."""
        with self.condition:
            before = self.open_state
            words = self._step(Take())
            after = self.open_state
            rounds = next(note[1] for note in self._notes if note[0] == "taken")
            sums = self.payload.take(rounds)
            self.payload.retain([result.round for result in after.results])
            taken = TakenResult(tuple(sums), after.version - before.version)
        self._post(words)
        return taken

    def release(self, sums: Sequence[GradientSum]) -> None:
        """The training has applied these."""
        with self.condition:
            self.payload.release(sums)

    @property
    def is_meeting(self) -> bool:
        """Whether the training waits for the models of all before it continues."""
        return self._state is not None and self._state.stage == MEETING

    def has_ended(self) -> bool:
        """Whether the last round of all is taken, where this worker has no more gradients."""
        return self._state is not None and self.machine.finished(self.rank, self._state)

    def close_segment(self) -> None:
        """Nothing is on its way any more."""
        with self.condition:
            self._state = None

    def missing(self) -> Missing | None:
        """What the training waits for; None while that is the sum of a round which has its own limit, or is there."""
        with self.condition:
            state = self.open_state
            ready = self.machine.ready(self.rank, state)
            if state.is_running or Begin() in ready or Take() in ready:
                return None
            if state.stage == MEETING:
                of = tuple(rank for rank, round_ in enumerate(state.here) if round_ < state.version)
                return Missing(f"the models of all in round {state.version}", of)
            of = tuple(rank for rank in self.machine.awaited(self.rank, state) if rank != self.rank)
            return Missing(f"round {state.entered} to be started", of)

    def publish_activity(self, doing: Callable[[str], None]) -> None:
        """Tell the others what this worker does, unless its thread is in a round, of which that tells."""
        with self.condition:
            state = self._state
            if state is None or state.is_running or state.stage != COMPUTING or state.resting:
                return
            waiting = len(state.results)
            they = "1 result waits" if waiting == 1 else f"{waiting} results wait"
            doing("computes a gradient" + (f", while {they} for it" if waiting else ""))

    # The collective thread.

    def begin(self) -> StartedRound | None:
        """Enter the next round as soon as the protocol lets it; None once the driver is closed."""
        with self.condition:
            self.condition.wait_for(lambda: self._closing or self.offers(Begin))
            if self._grace and not self._closing and self._is_awaited():
                self.condition.wait_for(lambda: self._closing or not self._is_awaited(), self._grace)
            if self._closing:
                return None
            before = self.open_state
            share = Share(before.entered, before.buffer, before.oldest, before.resting)
            self._step(Begin())
            self.log.add("begun", self._generation, share.round, share.gradients)
            return StartedRound(self._generation, share.round, share, self.payload.depart())

    def _is_awaited(self) -> bool:
        """Whether the round that may begin would have no gradient of this worker, and another one will come."""
        state = self.open_state
        return not state.buffer and not state.resting

    def finish(self, begun: StartedRound, shares: Sequence[Share]) -> None:
        """The sum of a round is there, and with it what each worker has brought."""
        words: list[Word] = []
        with self.condition:
            for source, share in enumerate(shares):
                if source != self.rank:
                    words += self._step(Received(source, share))
            words += self._step(Finish())
            self.payload.keep(begun.round, begun.payload)
            self.payload.retain([result.round for result in self.open_state.results])
            self.log.add("finished", self._generation, begun.round, tuple(len(share.gradients) for share in shares))
        self._post(words)

    def fail(self, error: BaseException) -> None:
        """The collective thread can continue no more; the training raises this where it waits or calls next."""
        with self.condition:
            self.error = error
            self.condition.notify_all()

    # The mailbox.

    def deliver(self, message: Message) -> None:
        """Called by the mailbox's thread with each message."""
        assert self.spread is not None, "it is set before messages come"
        source, kind = self.spread.received(message)
        self._post(super().deliver(Message(source, kind, message.numbers)) or ())

    def close(self) -> None:
        with self.condition:
            self._closing = True
            self.condition.notify_all()

    @property
    def is_closing(self) -> bool:
        return self._closing

    def _received(self, message: Message) -> list[Word]:
        return self._step(Received(message.source, WORDS[message.kind](message.numbers[1])))

    def _step(self, event: object) -> list[Word]:
        """Under the lock: one event; what is to be told then. Shares travel in the sums."""
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
