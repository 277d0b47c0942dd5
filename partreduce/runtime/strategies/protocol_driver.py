"""Protocol driver: one process of a protocol's machine between real ones.

The training raises the worker's own events, other threads bring what it is sent. One lock orders both, and whatever
goes with an event (arrays, numbers, a line of a log) changes under it together with the state, so that what the machine
counts is there.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

from partreduce.runtime.transport.mailbox import Message
from partreduce.schedulers.protocols.base import Action, Machine

State = TypeVar("State")


class ProtocolDriver(Generic[State]):
    """The machine and the state of one process.

    Args:
        machine: the protocol.
        process: which of its processes this is.
    """

    def __init__(self, machine: Machine[State], process: int) -> None:
        self.machine, self.process = machine, process
        self.condition = threading.Condition()
        """Its lock orders all events; told of every change."""
        self._state: State | None = None

    @property
    def state(self) -> State | None:
        """The protocol's state, an immutable value; None where nothing is open."""
        return self._state

    @property
    def open_state(self) -> State:
        assert self._state is not None, "it is opened before"
        return self._state

    def ready(self) -> Sequence[Hashable]:
        """The events that the process may raise now."""
        return () if self._state is None else self.machine.ready(self.process, self._state)

    def offers(self, kind: type) -> bool:
        """Whether an event of this kind may be raised now; if so, then also later, though perhaps another one."""
        return any(isinstance(event, kind) for event in self.ready())

    def step(self, event: object) -> tuple[Action, ...]:
        """Under the lock: one event, and what it asks for."""
        self._state, actions = self.machine.step(self.process, self.open_state, event)
        self.condition.notify_all()
        return actions


class GenerationDriver(ProtocolDriver[State]):
    """A process that all workers begin afresh from time to time, after the same step or round: a new *generation*.

    What is sent to one that this worker has not begun waits for it, what was sent to an earlier one is dropped.
    """

    def __init__(self, machine: Machine[State], process: int, *, generation: int = 0) -> None:
        super().__init__(machine, process)
        self._generation = generation
        self._early: list[Message] = []

    @property
    def generation(self) -> int:
        return self._generation

    def deliver(self, message: Message) -> Any:  # noqa: ANN401 - what a message asks for, where anything does
        """Called by the mailbox's thread with each message."""
        with self.condition:
            asked = self._sorted(message)
            self.condition.notify_all()
        return asked

    def _begin(self, state: State) -> list[Any]:
        """Under the lock: be in this state, and hear what came too early."""
        self._state = state
        early, self._early = self._early, []
        return [self._sorted(message) for message in early]

    def _sorted(self, message: Message) -> Any:  # noqa: ANN401 - as above
        """Under the lock: take a message in, now, later or never."""
        generation = self._generation_of(message)
        if generation > self._generation or (generation == self._generation and not self._hears(message)):
            self._early.append(message)
        elif generation == self._generation or not self._is_over(message):
            return self._received(message)
        return None

    def _generation_of(self, message: Message) -> int:
        return message.numbers[0]

    def _hears(self, message: Message) -> bool:  # noqa: ARG002 - where some are heard before
        """Whether it may be taken in now, if it is of this generation."""
        return self._state is not None

    def _is_over(self, message: Message) -> bool:  # noqa: ARG002 - where some are answered all the same
        """Whether a message of an earlier generation is dropped."""
        return True

    def _received(self, message: Message) -> Any:  # noqa: ANN401 - as above
        """Under the lock: what a message of this generation changes."""
        raise NotImplementedError
