"""Exchange one-sided messages between workers, for strategies without collectives.

Messages are sent by pyzmq, not gloo: a gloo send blocks until its receive is posted, cannot be polled, and a single
receive that times out destroys the group. Every worker has an inbox (see `endpoint`) and connects to a peer when it
first sends to it. A side thread reads the inbox and passes messages to the strategy. A sending thread gives its message
to libzmq itself, since waking another thread would take longer than sending a small message.

Messages in flight from one worker to another are limited in number and bytes, as in HTTP/2 (RFC 9113, section 5.2): a
sender counts what it has sent in total, the receiver reports what it has processed in total (a grant), and the
difference never exceeds a bound that both know. Grants are totals, so a late or duplicate one does no harm; they are
piggybacked on other messages, and sent separately when half the bound is processed. A slow or stopped worker thus makes
its senders wait, until it continues, is known to be gone, or the timeout has passed. The side thread itself never waits
for room, otherwise two workers could wait for each other: messages sent inside `deliver` are queued, up to the bound
again; more end the side thread with an error. Nothing is dropped. (libzmq's own limits count messages, not bytes, and
block or drop all messages, including answers that other workers wait for.)

Small urgent messages use a second connection, so that they do not wait behind large arrays. Each of the two connections
keeps its order; grants use the urgent one, since totals may arrive in any order.

If the side thread ends for any reason but `close`, every thread that waits or sends gets its error.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

from partreduce.runtime.environment import RUN_SECRET
from partreduce.runtime.transport.endpoint import Connection, Endpoint, Received
from partreduce.runtime.transport.store import Notes, own_host
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import PeerGoneError, PeerTimeoutError, PeerWatch, SignsOfLife, Wait
from partreduce.topo.errors import UnavailableError

GRANT = ""  # the kind of a message that only reports what was processed
MESSAGES = 64  # default limit of messages in flight to one worker

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Message:
    """A message between workers: sender, kind, a few integers, arrays as raw bytes, and whether it is urgent."""

    source: int
    kind: str
    numbers: tuple[int, ...] = ()
    payload: tuple[Any, ...] = ()
    urgent: bool = False  # send by the urgent connection; without meaning in a received message

    @property
    def num_bytes(self) -> int:
        return sum(memoryview(frame).nbytes for frame in self.payload)


@dataclass(frozen=True, slots=True)
class Bound:
    """Limit of messages and bytes in flight from one worker to another; as many may wait in the sender's queue."""

    messages: int
    num_bytes: int

    @classmethod
    def of_largest(cls, num_bytes: int) -> Bound:
        """Return a bound of `MESSAGES` messages, and of the fewest bytes that allow a message of `num_bytes`."""
        return cls(MESSAGES, 2 * max(num_bytes, 1))

    def holds(self, num_bytes: int) -> bool:
        """Return whether a message fits into half the bound; the rest may be processed messages not reported yet."""
        return 2 * num_bytes <= self.num_bytes


@dataclass(slots=True)
class Tally:
    """A count of messages and of their payload bytes."""

    messages: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        self.messages += 1
        self.num_bytes += num_bytes

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.messages - other.messages, self.num_bytes - other.num_bytes)


@dataclass(slots=True)
class Account(Generic[Item]):
    """Flow control between one worker and one peer: what was sent, what the peer has processed, and what waits here.

    Messages sent and not yet processed stay within the bound, and so do those in this object's queue, which wait until
    the peer has processed enough. No method blocks. The caller must hold a lock during each call.
    """

    bound: Bound
    sent: Tally = field(default_factory=Tally)
    granted: Tally = field(default_factory=Tally)
    """The part of `sent` that the peer has reported as processed."""
    received: Tally = field(default_factory=Tally)  # messages from the peer that were processed
    reported: Tally = field(default_factory=Tally)  # the part of `received` that was reported to the peer
    _waiting: deque[tuple[Item, int]] = field(default_factory=deque)

    @property
    def on_the_way(self) -> Tally:
        return self.sent - self.granted

    @property
    def waiting(self) -> Tally:
        return Tally(len(self._waiting), sum(size for _, size in self._waiting))

    def has_room(self, num_bytes: int) -> bool:
        """Return whether the bound allows sending `num_bytes` in a message now; False while earlier messages wait."""
        return not self._waiting and self._fits(num_bytes)

    def take(self, num_bytes: int) -> None:
        assert self._fits(num_bytes), "no worker sends more than the bound"
        self.sent.add(num_bytes)

    def hold(self, item: Item, num_bytes: int) -> bool:
        """Put a message that may not be sent yet into the queue; `grant` releases it later.

        Returns False, without queuing it, if the queue has as many messages or bytes as the bound allows.
        """
        waiting = self.waiting
        if waiting.messages >= self.bound.messages or waiting.num_bytes + num_bytes > self.bound.num_bytes:
            return False
        self._waiting.append((item, num_bytes))
        return True

    def hold_newest(self, item: Item, replaces: Callable[[Item], bool]) -> None:
        """Put a message without payload into the queue; it replaces a queued one for which `replaces` is true."""
        for place, (other, num_bytes) in enumerate(self._waiting):
            if not num_bytes and replaces(other):
                self._waiting[place] = (item, 0)
                return
        self._waiting.append((item, 0))

    def grant(self, messages: int, num_bytes: int) -> list[Item]:
        """Record how much the peer has processed in total; unqueue and return the messages that may now be sent."""
        self.granted.messages = max(self.granted.messages, min(messages, self.sent.messages))
        self.granted.num_bytes = max(self.granted.num_bytes, min(num_bytes, self.sent.num_bytes))
        released = []
        while self._waiting and self._fits(self._waiting[0][1]):
            item, size = self._waiting.popleft()
            self.sent.add(size)
            released.append(item)
        return released

    def release(self) -> list[Item]:
        items = [item for item, _ in self._waiting]
        self._waiting.clear()
        return items

    def owes(self) -> bool:
        """Return whether a report is due: half the bound, in messages or bytes, was processed since the last one."""
        new = self.received - self.reported
        return 2 * new.messages >= self.bound.messages or 2 * new.num_bytes >= self.bound.num_bytes

    def report_received(self) -> tuple[int, int]:
        self.reported = replace(self.received)
        return self.reported.messages, self.reported.num_bytes

    def _fits(self, num_bytes: int) -> bool:
        sent, granted, bound = self.sent, self.granted, self.bound
        return (
            sent.messages - granted.messages < bound.messages
            and sent.num_bytes - granted.num_bytes + num_bytes <= bound.num_bytes
        )


class Mailbox:
    """One worker's messages to and from all others, without collectives; thread-safe.

    Args:
        store: store in which workers publish their addresses.
        rank: this worker's rank.
        key: name of the mailbox in the run, equal on all workers.
        deliver: called in the side thread with each received message, which counts as processed when the call ends.
        max_bytes: most bytes of arrays in one message; a larger frame closes the sender's connection.
        timeout: seconds to wait for a message, or for room to send one.
        bound: limit of messages in flight to each peer; by default 64 messages and twice `max_bytes`.
        heartbeat: ends the wait for room if it shows that the receiver is gone; without it only the timeout does.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        key: str,
        deliver: Callable[[Message], None],
        *,
        max_bytes: int,
        timeout: float,
        bound: Bound | None = None,
        heartbeat: SignsOfLife | None = None,
    ) -> None:
        self.rank, self.timeout = rank, timeout
        self.bound = bound or Bound.of_largest(max_bytes)
        self._heartbeat = heartbeat or SignsOfLife()
        self._accounts: dict[int, Account[Message]] = {}
        self._notes = Notes(store, f"mailbox/{key}")
        self._deliver = deliver
        self._to_oneself: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._addresses: dict[int, str] = {}
        self._peers: dict[tuple[int, bool], Connection] = {}  # by peer, and whether for urgent messages
        self._changed = threading.Condition()  # its lock guards the accounts and the sockets in `_peers`
        self.failure: str | None = None  # the error that ended the side thread
        self._closing = self._has_ended = False
        secret = self._notes.propose("secret", secrets.token_hex(32)) + os.environ.get(RUN_SECRET, "")
        # Half from the store and half from the launcher, so that reading the store alone does not reveal the secret.
        self._endpoint = Endpoint("mailbox", secret, rank, max_bytes=max_bytes)
        try:
            host, is_v6 = own_host(store)
            self.address = self._endpoint.listen(f"tcp://[{host}]:*" if is_v6 else f"tcp://{host}:*")
        except BaseException:
            self._endpoint.end()
            raise
        self._thread = self._endpoint.thread(self._run, name="partreduce-mailbox", stop=self.abandon)

    def start(self) -> None:
        """Publish this worker's address and start receiving."""
        self._thread.start()
        self._notes.write(f"address/{self.rank}", self.address)

    def send(
        self, to: int, kind: str, numbers: Sequence[int] = (), payload: Sequence[Any] = (), *, urgent: bool = False
    ) -> None:
        """Send a message, after waiting until the bound allows one more; inside `deliver`, queue it instead of waiting.

        It goes to worker `to`, which may be this one; `kind`, `numbers` (a few integers) and the arrays of `payload`
        are given to that worker's `deliver`. The arrays are sent from their own memory, which must not change (see
        `array_frames.Snapshots`); a message to this worker itself is not copied. `urgent` messages keep their order,
        and may overtake others. Raises PeerGoneError if `to` is gone or has not processed enough messages before the
        timeout, UnavailableError if the mailbox has failed, `to` has published no address, or the queue is full.
        """
        message = self._address(to, kind, numbers, payload, urgent=urgent)
        size = message.num_bytes
        assert self.bound.holds(size), "max_bytes is that of the largest message"
        with self._changed:
            if self._try_send(to, message, size):
                return
            if is_side := threading.current_thread() is self._thread:
                if self._closing:  # the last messages are sent regardless of grants
                    self._go(to, message)
                elif not self._account(to).hold(message, size):
                    waiting = self._account(to).waiting
                    raise UnavailableError(
                        f"worker {to} takes nothing: {waiting.messages} messages with {size_text(waiting.num_bytes)} "
                        f"wait for it already, and at most {self.bound.messages} with "
                        f"{size_text(self.bound.num_bytes)} may"
                    )
        if not is_side:
            purpose = f"for room to send worker {to} {size_text(size)}"
            self.wait_until(lambda: self._try_send(to, message, size), self._heartbeat, (to,), None, purpose)

    def send_newest(self, to: int, kind: str, numbers: Sequence[int], *, urgent: bool = False) -> None:
        """Send a message without arrays at once, or queue it if the bound allows no more; arguments as of `send`.

        In the queue it replaces a message of the same `kind` to the same worker, so that only the newest is sent.
        """
        message = self._address(to, kind, numbers, urgent=urgent)
        with self._changed:
            if not self._try_send(to, message, 0):
                self._account(to).hold_newest(message, lambda other: other.kind == kind)

    def shared(self, frame: Any) -> Any:  # noqa: ANN401 - any buffer
        return self._endpoint.shared(frame)

    def _address(
        self, to: int, kind: str, numbers: Sequence[int], payload: Sequence[Any] = (), *, urgent: bool = False
    ) -> Message:
        """Return a message to worker `to` after finding its address; UnavailableError if it publishes none in time."""
        assert kind != GRANT, "grants are sent by the side thread"
        if self.failure is not None:
            raise UnavailableError(self.failure)
        self._find(to)
        return Message(self.rank, kind, tuple(numbers), tuple(payload), urgent)

    def _try_send(self, to: int, message: Message, size: int) -> bool:
        """Send a message of `size` payload bytes if the bound allows it; return whether it was sent. Needs the lock."""
        account = self._account(to)
        if room := account.has_room(size):
            account.take(size)
            self._go(to, message)
        return room

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    def check_failure(self) -> None:
        """Raise PeerGoneError if an error has ended the side thread."""
        if self.failure is not None:
            raise PeerGoneError(self.failure)

    def traffic(self) -> dict[int, Account[Message]]:
        """Return a copy of the flow-control state (`Account`) for each other worker, by rank."""
        with self._changed:
            return {
                peer: replace(one, sent=replace(one.sent), granted=replace(one.granted), received=replace(one.received))
                for peer, one in sorted(self._accounts.items())
                if peer != self.rank
            }

    def traffic_facts(self) -> dict[str, Any]:
        """Return, by rank as text, counts and bytes of messages to and from other workers, for traces and reports."""
        names = ("sent", "received", "on_the_way", "waiting")
        with self._changed:
            return {
                str(peer): {name: asdict(getattr(account, name)) for name in names}
                for peer, account in self.traffic().items()
            }

    def wait_until(
        self,
        done: Callable[[], bool],
        heartbeat: SignsOfLife,
        members: Sequence[int],
        round_: int | None,
        purpose: str = "",
    ) -> None:
        """Wait until messages have made `done()` true; it is called with the lock held.

        Raises PeerGoneError after the timeout, if `heartbeat` shows that one of `members` is gone in round `round_`, or
        if the mailbox has failed. `purpose` describes the wait in errors; with it, closing also ends the wait.
        """
        has_come = False

        def is_over() -> bool:
            nonlocal has_come
            has_come = done()
            return has_come or self.failure is not None or (self._closing and bool(purpose))

        with self._changed:
            is_there = is_over()
        try:
            if not is_there:  # avoids the cost of a wait
                Wait(heartbeat, members, self.timeout, round_).wait_until(self._changed, is_over)
        except PeerTimeoutError as error:
            raise PeerGoneError(f"{error} (while this worker waited {purpose})" if purpose else str(error)) from None
        self.check_failure()
        if not has_come:
            raise PeerGoneError(f"the run ended while this worker waited {purpose}")

    def _account(self, peer: int) -> Account[Message]:
        account = self._accounts.get(peer)
        return account if account is not None else self._accounts.setdefault(peer, Account(self.bound))

    def poke(self) -> None:
        """Make waiting threads check their condition again, after a change that no message caused."""
        with self._changed:
            self._changed.notify_all()

    def abandon(self) -> None:
        """End the side thread after a failure, without sending queued messages."""
        self._endpoint.linger_milliseconds = 0
        self.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._endpoint.end()

    def _find(self, to: int) -> None:
        if to == self.rank or to in self._addresses:
            return
        lacks, watch = f"worker {to}: left no address for messages", PeerWatch(self._heartbeat, (to,))
        self._addresses[to] = self._notes.wait_for(
            f"address/{to}", self.timeout, lacks=lacks, abort_reason=watch.failure_reason
        )

    def _run(self) -> None:
        try:
            while not self._closing:
                # One message per poll, since libzmq checks for other ready connections only when polled.
                if self._endpoint.is_readable(1.0) and (arrived := self._endpoint.read()) is not None:
                    self._receive(arrived)
                self._read_own()
            with self._changed:  # send all queued messages without waiting for grants
                for to, account in self._accounts.items():
                    for message in account.release():
                        self._go(to, message)
            self._read_own()
        except BaseException as error:  # noqa: BLE001 - raised in threads that wait or send
            self.failure = f"a message could not be delivered ({str(error) or type(error).__name__})"
            self.poke()
        finally:
            with self._changed:
                self._has_ended = True

    def _read_own(self) -> None:
        while True:
            try:
                message = self._to_oneself.get_nowait()
            except queue.Empty:
                return
            self._hand_over(message)

    def _go(self, to: int, message: Message) -> None:
        """Send a message to worker `to` without blocking; the caller has checked the bound and holds the lock."""
        if to == self.rank:
            self._to_oneself.put(message)
            self._endpoint.wake()
            return
        if self._has_ended:
            return
        lane = (to, message.urgent)
        try:
            if lane not in self._peers:
                self._peers[lane] = self._endpoint.connect(self._addresses[to], to)
            numbers = (*self._account(to).report_received(), *message.numbers)
            self._peers[lane].send(self.rank, message.kind, numbers, message.payload)
        except self._endpoint.error as error:
            raise UnavailableError(f"worker {to}: a message could not be sent ({error})") from None

    def _receive(self, arrived: Received) -> None:
        if len(arrived.numbers) < 2:
            return
        messages, num_bytes, *numbers = arrived.numbers
        with self._changed:
            self._take_grant(arrived.source, messages, num_bytes)
        if arrived.kind != GRANT:
            self._hand_over(Message(arrived.source, arrived.kind, tuple(numbers), arrived.payload))

    def _hand_over(self, message: Message) -> None:
        """Pass a message to `deliver`, count it as processed, and send its sender a report (a grant) if one is due."""
        self._deliver(message)
        source, num_bytes = message.source, message.num_bytes
        with self._changed:
            account = self._account(source)
            account.received.add(num_bytes)
            if source == self.rank:
                self._take_grant(source, *account.report_received())
            is_due = account.owes()
            self._changed.notify_all()
        if is_due:
            self._find(source)
            with self._changed:
                self._go(source, Message(self.rank, GRANT, urgent=True))

    def _take_grant(self, peer: int, messages: int, num_bytes: int) -> None:
        """Record how much `peer` has processed in total; send the queued messages that this allows. Needs the lock."""
        for message in self._account(peer).grant(messages, num_bytes):
            self._go(peer, message)
        self._changed.notify_all()


def size_text(num_bytes: int) -> str:
    """Format a number of bytes for error messages, such as "1.5 MB"."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes} bytes"
