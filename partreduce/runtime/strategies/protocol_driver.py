"""Drive one process of a protocol's machine between real processes, with its waits and its log.

The training thread raises the worker's own events, other threads deliver received ones. One lock orders both, and an
event's data change under it together with the state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from partreduce.runtime.transport.mailbox import Message
from partreduce.runtime.transport.waiting import GLANCE_SECONDS, PeerGoneError, SignsOfLife, Wait
from partreduce.schedulers.protocols.base import Action, Machine

State = TypeVar("State")
MAX_EVENTS = 200_000


class ProtocolDriver(Generic[State]):
    """A protocol's state machine with the state of one of its processes."""

    def __init__(self, machine: Machine[State], process: int, *, is_open: bool = False) -> None:
        self.machine, self.process = machine, process
        self.condition = threading.Condition()  # its lock orders all events; told of every change
        self._state: State | None = machine.start(process)[0] if is_open else None

    @property
    def state(self) -> State | None:
        return self._state

    @property
    def open_state(self) -> State:
        assert self._state is not None, "it is opened before"
        return self._state

    def ready(self) -> Sequence[Hashable]:
        return () if self._state is None else self.machine.ready(self.process, self._state)

    def offers(self, kind: type) -> bool:
        """Whether an event of this kind is ready; if so it stays ready, maybe as another event of the kind."""
        return any(isinstance(event, kind) for event in self.ready())

    def raised(self, event: Hashable) -> tuple[Action, ...]:
        """Apply an event of the process itself; returns the actions to carry out."""
        with self.condition:
            assert self.offers(type(event)), f"{event} is not ready"
            return self.step(event)

    def step(self, event: object) -> tuple[Action, ...]:
        """Apply an event, with the lock held; returns the actions to carry out."""
        self._state, actions = self.machine.step(self.process, self.open_state, event)
        self.condition.notify_all()
        return actions


class GenerationDriver(ProtocolDriver[State]):
    """A driver whose protocol all workers restart now and then after the same step: a new *generation*.

    Messages of a later generation wait for it; those of an earlier one are dropped.
    """

    def __init__(self, machine: Machine[State], process: int, *, generation: int = 0, is_open: bool = False) -> None:
        super().__init__(machine, process, is_open=is_open)
        self._generation = generation
        self._early: list[Message] = []

    @property
    def generation(self) -> int:
        return self._generation

    def deliver(self, message: Message) -> Any:  # noqa: ANN401 - what a message asks for, where anything does
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
        generation = self._generation_of(message)
        if generation > self._generation or (generation == self._generation and not self._can_take(message)):
            self._early.append(message)
        elif generation == self._generation or not self._is_over(message):
            return self._received(message)
        return None

    def _generation_of(self, message: Message) -> int:
        return message.numbers[0]

    def _can_take(self, message: Message) -> bool:  # noqa: ARG002 - where some are heard before
        """Whether it may be taken in now, if it is of this generation."""
        return self._state is not None

    def _is_over(self, message: Message) -> bool:  # noqa: ARG002 - where some are answered all the same
        """Whether a message of an earlier generation is dropped."""
        return True

    def _received(self, message: Message) -> Any:  # noqa: ANN401 - as above
        raise NotImplementedError


class Missing(NamedTuple):
    """What a worker waits for: a description, the workers that can send it, and how many of them must."""

    what: str
    of: tuple[int, ...]
    needed: int = 1


class PeerWaitError(PeerGoneError):
    """A message that a worker needs cannot come, or did not within the timeout; `missing` describes it."""

    def __init__(self, text: str, missing: Missing) -> None:
        super().__init__(text)
        self.missing = missing


def wait_for_missing(
    done: Callable[[], bool],
    missing: Callable[[], Missing | None],
    condition: threading.Condition,
    heartbeat: SignsOfLife,
    timeout: float,
    *,
    why: Callable[[Missing], str | None],
    check_failure: Callable[[], None],
    told: Callable[[Missing], str],
    place: str = "",
) -> None:
    """Wait until `done()` is true; it is called with the condition's lock held.

    `missing()` returns what is lacking, None if nothing; `why` returns why that cannot come any more, or None;
    `check_failure` raises if no message can come; `told` describes the wait for an error, `place` for the heartbeat.
    `timeout` is in seconds.
    """
    lack: Missing | None = None
    wait = Wait(heartbeat, (), timeout, why=lambda: None if lack is None else why(lack))
    while True:
        with condition:
            if condition.wait_for(done, GLANCE_SECONDS):
                return
        check_failure()
        known, lack = lack, missing()
        if lack is None:
            wait.renew()
            continue
        if lack != known:
            heartbeat.doing(f"waits {place}for {lack.what}", lack.of)
            wait.turn_to(lack.of)
        try:
            wait.look()
        except PeerGoneError as error:
            raise PeerWaitError(f"{error} ({told(lack)})", lack) from None


@dataclass(frozen=True, slots=True)
class GapEvent:
    """One event of a worker under Hop's protocol.

    Kinds: the worker `entered` a step (`by` after its last one), `sent` its update, `reduced` it, or `renewed` its
    parameters before a skip; or an `update`, `tokens` (`by` of them) or an `ack` came from worker `source`. Steps count
    from the first one and from every skip.
    """

    seconds: float  # on the monotonic clock, which all processes of a machine share
    kind: str
    step: int
    by: int = 0
    source: int = -1
    used: tuple[tuple[int, int], ...] = ()  # (source, step) of each update whose arrays were averaged
    fill: int = 0  # of an update that came: how many of its sender's updates are held then


@dataclass(frozen=True, slots=True)
class QuorumEvent:
    """One event of a worker under a quorum.

    Kinds: it `called` (with gradient `numbers[0]`); its thread has `begun` a round with the gradients `numbers`, and
    `finished` it with so many gradients of each worker; its training has `taken` the rounds `numbers` and has completed
    `round` rounds; the models were `synchronized` there. Gradients and rounds count from the last place where all
    workers met, number `segment`.
    """

    seconds: float  # on the monotonic clock
    kind: str
    segment: int
    round: int
    numbers: tuple[int, ...] = ()


class EventLog:
    """The events of a worker under a protocol with their times, taken from its messages and arrays."""

    def __init__(self, event: type[GapEvent | QuorumEvent], *, is_on: bool, **facts: object) -> None:
        self._event, self.is_on, self._facts = event, is_on, facts
        self.events: list[Any] = []
        self.dropped = 0

    def add(self, kind: str, *numbers: Any, **details: Any) -> None:  # noqa: ANN401 - the fields of an event
        if not self.is_on:
            return
        if len(self.events) < MAX_EVENTS:
            self.events.append(self._event(time.monotonic(), kind, *numbers, **details))
        else:
            self.dropped += 1

    def facts(self) -> dict[str, Any]:
        """Return the events as JSON, for traces."""
        return self._facts | {"dropped": self.dropped, "events": [asdict(event) for event in list(self.events)]}
