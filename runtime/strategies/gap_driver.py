"""Gap driver: one worker's side of Hop's protocol between real processes, with the updates' arrays beside it.

Two threads work here: the mailbox's gives messages to the protocol object as they come, the training loop raises the
worker's own events when the object offers them. One lock orders both. What the object decides and the arrays that go
with it change under that lock together, so that an update which the object counts is there, and one that it takes
cannot be replaced by a newer one meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from preduce.schedulers.protocols.base import Note, Received, Send
from preduce.schedulers.protocols.hop import (
    ENTERING,
    REDUCING,
    SENDING,
    Ack,
    Advance,
    SendUpdate,
    Token,
    Update,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from preduce.runtime.strategies.gap_log import GapLog
    from preduce.runtime.strategies.gap_queues import PayloadRings
    from preduce.runtime.transport.mailbox import Message
    from preduce.schedulers.protocols.base import Action
    from preduce.schedulers.protocols.hop import Hop, HopEvent, HopState

    Sending = Callable[[int, str, Sequence[int], Sequence[Any]], None]
    """Receiver, kind, numbers, payload: as `Mailbox.send`."""
    Entering = Callable[[int, int], None]
    """Step and generation: as `Progress.enter`."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that an event makes this worker send."""

    to: int
    kind: str
    numbers: tuple[int, ...]
    payload: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Averaged:
    """What a step averages besides the worker's own: sources ascending, and the arrays of each, one for each bucket."""

    step: int
    used: tuple[tuple[int, int], ...]
    arrays: tuple[list[torch.Tensor], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event asks of whoever raised it: an average, then letters."""

    letters: tuple[Letter, ...] = ()
    averaged: Averaged | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """What a worker lacks to go on: of whom, how many of these must still come, and the words for it."""

    what: str
    of: tuple[int, ...]
    needed: int


@dataclass(slots=True)
class _Part:
    """The state of one generation, as the object and the messages have it."""

    state: HopState
    step: int
    """Counted by the events that were raised; what goes into messages and into the log."""
    frames: tuple[Any, ...] = ()
    """The snapshot of the update that leaves next, where the mailbox's thread may be the one that sends it."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Tokens that ride on the update that leaves next, by receiver."""


class GapDriver:
    """The protocol object, its state and the arrays of one worker.

    A generation lasts until the queues are thrown away (`drop`); messages of a later one wait until this worker opens
    it, those of an earlier one are dropped.

    Args:
        machine: the protocol, fine.
        rank: this worker.
        rings: where the arrays of updates lie, in places of the proved capacity.
        keeps: whether an array may be averaged again in a later step.
        log: what happens here.
        send: how the mailbox's thread sends.
        entered: told of each step that is entered, before its messages leave.
    """

    def __init__(
        self,
        machine: Hop,
        rank: int,
        rings: PayloadRings,
        *,
        keeps: bool,
        log: GapLog,
        send: Sending,
        entered: Entering,
    ) -> None:
        self.machine, self.rank, self.rings, self.log = machine, rank, rings, log
        self.sources, self.targets = machine.graph.sources[rank], machine.graph.targets[rank]
        self.condition = threading.Condition()
        self._keeps, self._send, self._entered = keeps, send, entered
        self._generation = 0
        self._part: _Part | None = None
        self._early: list[Message] = []
        self._marks: dict[int, int] = {}
        self._paused = 0

    @property
    def generation(self) -> int:
        """The number of times that the queues were thrown away."""
        return self._generation

    @property
    def state(self) -> HopState | None:
        """The protocol's state, an immutable value; None before it is opened."""
        part = self._part
        return None if part is None else part.state

    def open(self, step: int, state: HopState | None = None) -> None:
        """Be in a step, with empty queues or as a checkpoint has them (its arrays lie in the rings already)."""
        if state is None:
            state = replace(self.machine.start(self.rank)[0], step=step)
        with self.condition:
            self._part = _Part(state, step)
            self.rings.retire(step - self.machine.setting.staleness)
            self._entered(step, self._generation)
            self.log.add("entered", step)
            early, self._early = self._early, []
            for message in early:
                self._receive(message)

    def drop(self) -> None:
        """Throw the queues away; what still comes of this generation is dropped."""
        with self.condition:
            self._generation += 1
            self._part, self._marks, self._paused = None, {}, 0
            self.rings.clear()

    def deliver(self, message: Message) -> None:
        """Called by the mailbox's thread with each message."""
        with self.condition:
            self._receive(message)
            self.condition.notify_all()

    def ready(self) -> Sequence[HopEvent]:
        """The events that the worker may raise now."""
        return () if self._part is None else self.machine.ready(self.rank, self._part.state)

    def fire(self, event: HopEvent) -> Outcome:
        """Let an event happen that is ready; letters are for the caller to send, with no lock held."""
        with self.condition:
            return self._fire(event)

    def offer(self, frames: Sequence[Any], tokens: Sequence[Letter]) -> tuple[Letter, ...]:
        """Have the update of this step leave as soon as it may: now, or by the mailbox's thread; what leaves now.

        Tokens for who gets the update now ride on it, and the others leave by themselves.
        """
        with self.condition:
            part = self._open_part()
            part.frames = tuple(frames)
            if part.state.stage != SENDING or not self.ready():
                return tuple(tokens)
            part.tokens = {letter.to: letter.numbers[1] for letter in tokens}
            letters = self._fire(SendUpdate()).letters
            alone = [letter for letter in tokens if letter.to in part.tokens]
            part.tokens = {}
            return (*alone, *letters)

    @property
    def has_left(self) -> bool:
        """Whether the update that was offered last is on its way."""
        return self._part is None or not self._part.frames

    def missing(self) -> Missing | None:
        """What this worker waits for; None if it may go on. O(neighbours)."""
        with self.condition:
            part = self._open_part()
            if self.ready():
                return None
            state, step, staleness = part.state, part.step, self.machine.setting.staleness
            if state.stage == SENDING:
                of = tuple(v for v, acked in zip(self.targets, state.acked, strict=True) if not acked)
                return Missing(f"the acknowledgement of its update of step {step - 1}", of, len(of))
            if state.stage == REDUCING:
                have = [queue > 0 if staleness else queue & 1 for queue in state.updates]
                of = tuple(u for u, has in zip(self.sources, have, strict=True) if not has)
                spare = self.machine.setting.backups(self.machine.num_processes)[self.rank]
                later = " or later" if staleness else ""
                return Missing(f"an update of step {max(0, step - staleness)}{later}", of, len(of) - spare)
            assert state.stage == ENTERING
            of = tuple(v for v, count in zip(self.targets, state.tokens, strict=True) if count < 1)
            return Missing(f"a token to enter step {step + 1}", of, len(of))

    def pause(self) -> tuple[Letter, ...]:
        """Marks for all neighbours; what came before the mark of each is everything that it sent until now."""
        with self.condition:
            self._paused += 1
            numbers = (self._generation, self._paused)
            return tuple(Letter(to, "mark", numbers) for to in self.neighbours)

    def unmarked(self) -> tuple[int, ...]:
        """The neighbours whose mark of the present pause has not come."""
        with self.condition:
            return tuple(rank for rank in self.neighbours if self._marks.get(rank, 0) < self._paused)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Everyone to whom or from whom an edge leads."""
        return tuple(sorted({*self.sources, *self.targets}))

    def _open_part(self) -> _Part:
        assert self._part is not None, "a step opens it"
        return self._part

    def _receive(self, message: Message) -> None:
        """Under the lock: what a message changes."""
        generation, *numbers = message.numbers
        if generation < self._generation:
            return
        if generation == self._generation and message.kind == "mark":
            self._marks[message.source] = numbers[0]
            return
        part = self._part
        if generation > self._generation or part is None:
            self._early.append(message)
            return
        source = message.source
        match message.kind, numbers:
            case "update", [step, tokens]:
                if tokens:
                    self._step(part, Received(source, Token(tokens)))
                    self.log.add("tokens", part.step, by=tokens, source=source)
                self._step(part, Received(source, Update(step)))
                self.rings.put(source, step, message.payload)
                self.log.add("update", step, source=source, fill=len(self.rings.steps(source)))
            case "token", [count]:
                self._step(part, Received(source, Token(count)))
                self.log.add("tokens", part.step, by=count, source=source)
            case "ack", []:
                self._step(part, Received(source, Ack()))
                self.log.add("ack", part.step, source=source)
                if part.frames and part.state.stage == SENDING and self.ready():
                    for letter in self._fire(SendUpdate()).letters:
                        self._send(letter.to, letter.kind, letter.numbers, letter.payload)

    def _step(self, part: _Part, event: object) -> tuple[Action, ...]:
        part.state, actions = self.machine.step(self.rank, part.state, event)
        return actions

    def _fire(self, event: HopEvent) -> Outcome:
        part = self._open_part()
        assert event in self.ready(), f"{event} is not ready"
        actions = self._step(part, event)
        averaged = None
        for action in actions:
            match action:
                case Note((("reduced" | "renewed") as kind, int(step), tuple(used))):
                    averaged = self._fetch(step, used)
                    self.log.add(kind, step, used=averaged.used)
        if isinstance(event, Advance):
            part.step += event.by
            self.rings.retire(part.step - self.machine.setting.staleness)
            self._entered(part.step, self._generation)
            self.log.add("entered", part.step, by=event.by)
        elif isinstance(event, SendUpdate):
            self.log.add("sent", part.step)
        letters = tuple(self._letter(part, action) for action in actions if isinstance(action, Send))
        if isinstance(event, SendUpdate):
            part.frames = ()
        return Outcome(letters, averaged)

    def _letter(self, part: _Part, action: Send) -> Letter:
        match action.message:
            case Update():
                riding = part.tokens.pop(action.to, 0)
                return Letter(action.to, "update", (self._generation, part.step, riding), part.frames)
            case Token(count):
                return Letter(action.to, "token", (self._generation, count))
        assert isinstance(action.message, Ack)
        return Letter(action.to, "ack", (self._generation,))

    def _fetch(self, step: int, used: Sequence[tuple[int, int]]) -> Averaged:
        """The arrays of the updates that a step uses; the rings compare the steps."""
        get = self.rings.look if self._keeps else self.rings.take
        arrays = tuple(get(source, of) for source, of in used)
        return Averaged(step, tuple((source, of) for source, of in used), arrays)
