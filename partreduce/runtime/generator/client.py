"""Connect a worker to the group service, by a thread that requests groups ahead, resends, and sends heartbeats.

The thread runs the state machine `GroupWorker`, which the model checker explores; training starts and ends rounds.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from partreduce.runtime.generator import messages
from partreduce.runtime.transport.endpoint import Endpoint, Received
from partreduce.runtime.transport.waiting import GLANCE_SECONDS, Deadline, own_time
from partreduce.schedulers.protocols.base import Send
from partreduce.schedulers.protocols.group_generator import worker as protocol
from partreduce.schedulers.protocols.group_generator.service import Ask
from partreduce.topo.errors import EvictedError, InputError, UnavailableError

RETRY_SECONDS = 0.5
COST_ROUNDS = 4
POLL_SECONDS = 0.05
MAX_QUEUED = 1000

SendMessage = Callable[[messages.FromWorker], None]


class GeneratorClient:
    """One worker's connection to the group service.

    Call `begin()` at the start of a round and `group()` at its end. If it returns a group, average with it; then call
    `begin()` again, which reports the group as done, or `broke()` if the average failed. Call `leave()` at the end of
    the run or before a pause of all workers; it may return one more group to average with. All of them raise an error
    after an eviction, a rejection, or no answer within the timeout.

    `failed` holds the workers known to have failed, `executed` this worker's groups so far, in order.

    Args:
        address: address of the service.
        key: key of the job.
        rank: this worker's rank.
        timeout: seconds without an answer after which the service counts as lost.
        lease: longest silence in seconds before the service evicts this worker; the service may answer with a shorter
            one. Heartbeats are sent four times per lease, and every `retry` seconds until the first answer.
        retry: seconds after which an unanswered request is sent again.
        transport: wraps the function that sends messages, for tests.
    """

    def __init__(
        self,
        address: str,
        key: str,
        rank: int,
        *,
        timeout: float = 60.0,
        lease: float = 10.0,
        retry: float = RETRY_SECONDS,
        transport: Callable[[SendMessage], SendMessage] = lambda send: send,
    ) -> None:
        self.address, self.rank, self.timeout = address, rank, timeout
        self.executed: list[tuple[int, tuple[int, ...]]] = []
        self.failed: frozenset[int] = frozenset()
        self._costs: deque[float] = deque(maxlen=COST_ROUNDS)
        self._begun: float | None = None
        self._retry, self._lease = retry, min(lease, messages.LEASE_SHARE * timeout)
        self._beat = min(retry, self._lease / 4)
        self._session = secrets.randbelow(messages.MAX_NUMBER)
        self._worker = protocol.GroupWorker(-1, collective=False)
        self._state: protocol.WorkerState | None = None
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._closing = False
        self._taken = True
        self._transport = transport
        self._outbox: list[messages.FromWorker] = []
        self._heard = own_time()
        self._endpoint = Endpoint("group generator", key, rank, max_header=messages.MAX_REPLY_BYTES, queue=MAX_QUEUED)
        self._thread = self._endpoint.thread(self._run, name=f"partreduce-generator-{rank}")
        self._thread.start()

    def begin(self) -> None:
        """Report the last group as done and request the next round's group; does not wait for it."""
        with self._changed:
            self._raise()
            if not self._taken:
                return
            self._taken = False
            self._heard, self._begun = own_time(), time.monotonic()
            if self._state is None:
                self._state, actions = self._worker.start(0, None)
                self._send(actions)
            elif (granted := self._granted) is not None:
                self.executed.append(granted)
                self._step(protocol.Enter())
            else:
                if self._state.stage == protocol.ENDED:
                    self._worker.rounds = None
                self._step(protocol.NextRound())

    def group(self) -> tuple[int, tuple[int, ...]] | None:
        """Wait for this round's group; return (sequence number, ranks), or None if this worker has no group."""
        with self._changed:
            self._note_cost()
            deadline = Deadline(self.timeout)
            while self._stage in (protocol.ASKED, protocol.LATER) and self._error is None:
                if self._stage == protocol.LATER:
                    self._step(protocol.Computed())
                news = self._changed.wait(min(GLANCE_SECONDS, self._retry))
                if not news and deadline.is_over and own_time() - self._heard > self.timeout:
                    self._error = UnavailableError(
                        f"group generator at {self.address}: gave worker {self.rank} no answer for {self.timeout:g} s"
                    )
            self._raise()
            self._taken = True
            return self._granted

    def _note_cost(self) -> None:
        """Record how long this round's computation took; requests contain the minimum over the last rounds."""
        leaving = self._worker.rounds is not None  # rounds while leaving compute nothing
        if self._begun is not None and self._state is not None and not leaving:
            self._costs.append(time.monotonic() - self._begun)
            self._begun = None
            self._state = replace(self._state, cost=max(1, round(1e6 * min(self._costs))))

    def broke(self) -> None:
        """Report that averaging in the last group failed, and request the next round's group."""
        with self._changed:
            self._raise()
            if self._granted is not None:  # else it was declared void meanwhile
                self._taken = False
                self._heard = own_time()
                self._step(protocol.Broke())

    def is_void(self, seq: int) -> bool:
        with self._changed:
            return self._granted is None or self._granted[0] != seq

    def leave(self) -> tuple[int, tuple[int, ...]] | None:
        """Stop requesting groups; return a group in which others wait for this worker, or None if none is left.

        A group is (sequence number, ranks). Average with it, then call `leave` again.
        """
        while True:
            with self._changed:
                self._raise()
                if self._stage in (None, protocol.ENDED):
                    self._taken = True
                    return None
                if self._taken:
                    self._worker.rounds = 0  # every later request says that it is the last
            self.begin()
            group = self.group()
            if group is not None:
                return group

    def close(self) -> None:
        """End thread and connection. Without `leave` before, the service evicts this worker once its lease is over."""
        if not self._closing:
            self._closing = True
            self._endpoint.end()

    @property
    def _stage(self) -> str | None:
        return None if self._state is None else self._state.stage

    @property
    def _granted(self) -> tuple[int, tuple[int, ...]] | None:
        state = self._state
        return None if state is None or state.stage != protocol.GRANTED else (state.seq, state.members)

    def _step(self, event: object) -> None:
        assert self._state is not None, "it has begun"
        self._state, actions = self._worker.step(self.rank, self._state, event)
        self._send(actions)

    def _send(self, actions: tuple[Any, ...]) -> None:
        asks = [action.message for action in actions if isinstance(action, Send)]
        self._outbox += [self._message(ask) for ask in asks if isinstance(ask, Ask)]
        self._endpoint.wake()

    def _message(self, ask: Ask | None, *, goodbye: bool = False) -> messages.FromWorker:
        return messages.FromWorker(self.rank, self._session, ask, goodbye, math.ceil(1000 * self.timeout))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            service = self._endpoint.connect(self.address, messages.SERVICE, reads=True)

            def send(message: messages.FromWorker) -> None:
                with contextlib.suppress(self._endpoint.error):  # it is sent again after the retry interval
                    service.send(self.rank, *message.packed())

            self._loop(self._transport(send))
            if self._stage == protocol.ENDED:
                send(self._message(None, goodbye=True))
        except Exception as error:  # noqa: BLE001 - the training loop must learn of whatever ended its thread
            with self._changed:
                self._error = self._error or UnavailableError(f"group generator at {self.address}: {error}")
                self._changed.notify_all()

    def _loop(self, send: SendMessage) -> None:
        requested = beat_at = time.monotonic()
        while not self._closing:
            self._endpoint.is_readable(min(POLL_SECONDS, self._retry / 2))
            with self._changed:
                outgoing, self._outbox = self._outbox, []
                state = self._state
            now = time.monotonic()
            if outgoing:
                requested = now
            elif (
                state is not None
                and state.stage in (protocol.ASKED, protocol.GRANTED)
                and now - requested > self._retry
            ):
                outgoing, requested = [self._message(state.ask)], now  # also while granted: a `Void` may be lost
            elif now - beat_at > self._beat:
                outgoing = [self._message(None)]
            if outgoing:
                beat_at = now
            for message in outgoing:
                send(message)
            while (arrived := self._endpoint.read()) is not None:
                self._take(arrived)

    def _take(self, arrived: Received) -> None:
        try:
            reply = messages.unpack_reply(arrived.kind, arrived.numbers)
        except InputError:
            return  # not from a generator of this version; the request is repeated
        with self._changed:
            self._heard = own_time()
            if isinstance(reply, messages.Rejection):
                self._error = InputError(f"group generator at {self.address}: refuses worker {self.rank}: {reply.why}")
            elif isinstance(reply, messages.Lease):
                self.failed = frozenset(reply.failed)
                self._beat = min(self._lease, reply.lease / 1000) / 4
            elif self._state is not None:
                self._state, _ = self._worker.received(self.rank, self._state, -1, reply)
                if self._stage == protocol.EVICTED:
                    self._error = EvictedError(
                        f"group generator: gave worker {self.rank} up, because it gave no sign of life for longer than "
                        "its lease; the others continued without it, and this process no longer belongs to the job"
                    )
            self._changed.notify_all()
