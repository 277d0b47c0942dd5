"""Run a protocol's state machine in real processes, with waits and a log of events.

The training thread applies the worker's own events, other threads apply received messages. One lock orders all events
and guards the state and the arrays that belong to it.
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
    """A protocol's state machine for one worker: holds its state and applies events under a lock (`condition`)."""

    def __init__(self, machine: Machine[State], process: int, *, is_open: bool = False) -> None:
        self.machine, self.process = machine, process
        self.condition = threading.Condition()  # its lock orders all events; notified of every change
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
        """Return whether the protocol allows an event of class `kind` now, and then until the next event is applied."""
        return any(isinstance(event, kind) for event in self.ready())

    def raised(self, event: Hashable) -> tuple[Action, ...]:
        """Apply an event that this worker itself causes; return the actions that follow, such as messages to send."""
        with self.condition:
            assert self.offers(type(event)), f"{event} is not ready"
            return self.step(event)

    def step(self, event: object) -> tuple[Action, ...]:
        """Apply an event, with the lock held; return the actions that follow, such as messages to send."""
        self._state, actions = self.machine.step(self.process, self.open_state, event)
        self.condition.notify_all()
        return actions


class GenerationDriver(ProtocolDriver[State]):
    """Driver of a protocol that all workers restart from time to time after the same step; each run is a *generation*.

    Messages of a later generation are kept until it starts; those of an earlier one are dropped.
    """

    def __init__(self, machine: Machine[State], process: int, *, generation: int = 0, is_open: bool = False) -> None:
        super().__init__(machine, process, is_open=is_open)
        self._generation = generation
        self._early: list[Message] = []

    @property
    def generation(self) -> int:
        return self._generation

    def deliver(self, message: Message) -> Any:  # noqa: ANN401 - depends on the subclass
        with self.condition:
            kept = self._sorted(message)
            self.condition.notify_all()
        return kept

    def _begin(self, state: State) -> list[Any]:
        """Set the state of a new generation and process messages that arrived before it; called with the lock held."""
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

    def _can_take(self, message: Message) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether this message of the current generation can be processed now."""
        return self._state is not None

    def _is_over(self, message: Message) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether to drop this message, which is of an earlier generation."""
        return True

    def _received(self, message: Message) -> Any:  # noqa: ANN401 - as above
        raise NotImplementedError


class Missing(NamedTuple):
    """Messages that a worker waits for: a description (`what`), the ranks that can send them, how many are `needed`."""

    what: str
    of: tuple[int, ...]
    needed: int = 1


class PeerWaitError(PeerGoneError):
    """Error for a message, described by `missing`, that cannot arrive any more or did not within the timeout."""

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
    describe: Callable[[Missing], str],
    place: str = "",
) -> None:
    """Wait until `done()` is true, or raise PeerWaitError. `done` is called with the lock of `condition` held.

    `missing()` returns what this worker waits for, None if nothing; `why` returns why it cannot arrive any more, or
    None; `check_failure` raises if no message can arrive. `describe` describes the wait in an error, `place` in the
    heartbeat. `timeout`, in seconds, counts from the last change of what is missing.
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
            wait.restart(lack.of)
        try:
            wait.check()
        except PeerGoneError as error:
            raise PeerWaitError(f"{error} ({describe(lack)})", lack) from None


@dataclass(frozen=True, slots=True)
class GapEvent:
    """One event of a worker under Hop's protocol, for traces.

    Values of `kind`: the worker `entered` a step (`by` steps after its last one), `sent` its update, `reduced` the
    updates `used`, (source, step) each, or `renewed` its parameters before a skip; or an `update`, `tokens` (`by` of
    them) or an `ack` arrived from worker `source`, of which `fill` updates are queued. Steps include skipped ones.
    """

    seconds: float  # on the monotonic clock, which all processes of a machine share
    kind: str
    step: int
    by: int = 0
    source: int = -1
    used: tuple[tuple[int, int], ...] = ()  # (source, step) of each update whose arrays were averaged
    fill: int = 0  # for `update`: how many updates of its sender are queued then


@dataclass(frozen=True, slots=True)
class QuorumEvent:
    """One event of a worker under a quorum (partial all-reduce), for traces.

    Values of `kind`: the worker `called` with gradient `numbers[0]`; its collective thread has `begun` round `round`
    with the gradients `numbers`, and `finished` it with `numbers[r]` gradients of each worker r; the training loop has
    `taken` the results of rounds `numbers`, and has completed `round` rounds; after `round` rounds models were
    `synchronized`. Gradients and rounds count from the last operation of all workers, number `segment`.
    """

    seconds: float  # on the monotonic clock
    kind: str
    segment: int
    round: int
    numbers: tuple[int, ...] = ()


class EventLog:
    """Log of a worker's protocol events with their times, for traces; `facts` are added to its JSON."""

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
        """Return the events as JSON values, and how many were dropped because the log was full."""
        return self._facts | {"dropped": self.dropped, "events": [asdict(event) for event in list(self.events)]}
