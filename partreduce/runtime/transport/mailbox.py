"""Mailbox: one-sided messages between workers, for strategies in which nobody waits for a common operation.

pyzmq carries them and not gloo: a gloo send blocks until its receive is posted, cannot be polled, and one receive that
times out destroys the group. Every worker binds one inbox and connects to a peer when it first writes to it. A side
thread reads the inbox and hands what arrives to the strategy. A thread that sends gives its message to libzmq itself,
one at a time: to wake another thread for that would take longer than a small message does.

What may be on its way to a worker is bounded (see `credit`): the receiver grants what it has dealt with, so that a slow
or stopped one makes its senders wait, until it continues, is known to be gone, or the timeout has passed. The side
thread itself never waits for room, or two workers could wait for each other: what `deliver` sends is held back, and as
much as the bound again may be, which is a matter of the protocol; more ends the side thread with an error. Nothing is
dropped.

A small message that is urgent takes a connection of its own, or it would wait until all arrays that were sent before it
have traveled. Each of the two connections keeps its order; grants take the urgent one, as totals in any order.

Only workers of the run can connect and write (see `admission`); whatever else arrives is dropped unread. If the side
thread ends for any reason but `close`, every thread that waits or sends is told.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from partreduce.runtime.transport.admission import Admission
from partreduce.runtime.transport.credit import Account, Bound, Tally
from partreduce.runtime.transport.doorbell import Wakeup
from partreduce.runtime.transport.store import Notes, own_host
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import Deadline, PeerGoneError, PeerTimeoutError, SignsOfLife, Wait
from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import UnavailableError
from partreduce.topo.extras import load

POLL_SECONDS = 0.005
LINGER_MILLISECONDS = 1000
MAX_HEADER_BYTES = 4096
MAX_LISTS = 2
"""A header is one list with one list inside it."""
GRANT = ""
"""The kind of a message that only says what was dealt with."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message: what kind, from whom, a few numbers, and arrays as raw bytes."""

    source: int
    kind: str
    numbers: tuple[int, ...] = ()
    payload: tuple[Any, ...] = ()
    urgent: bool = False
    """How it is to be sent; of no meaning in one that came."""

    @property
    def num_bytes(self) -> int:
        return sum(memoryview(frame).nbytes for frame in self.payload)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went between a worker and one peer so far, and what is held up; bytes are those of arrays."""

    sent: Tally
    received: Tally
    on_the_way: Tally
    """Sent, and not granted yet."""
    waiting: Tally
    """Not sent, for want of a grant."""


class Mailbox:
    """The messages of one worker; `deliver` runs in the side thread, everything else may be called from any thread.

    Args:
        store: where workers leave their addresses.
        rank: this worker.
        key: which mailbox of the run, equal on all workers.
        deliver: called with each message; when it returns, the message is dealt with and the sender may send another.
        max_bytes: of the arrays of one message; larger frames close the sender's connection.
        timeout: seconds that anybody waits for a message, or for room to send one.
        bound: what may be on the way to each peer; by default 64 messages and twice `max_bytes`.
        heartbeat: where who waits for room learns that the receiver is gone; without it, only the timeout ends that.

    Raises:
        MissingDependencyError: pyzmq is not installed.
        UnavailableError: this machine's address is not known, or has no free port.
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
        self._zmq = _zmq()
        self._to_oneself: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._addresses: dict[int, str] = {}
        self._peers: dict[tuple[int, bool], Any] = {}
        """By peer, and whether for what is urgent."""
        self._changed = threading.Condition()
        """Its lock is that of the accounts and of the sockets in `_peers`."""
        self._failure: BaseException | None = None
        self._closing = self._has_ended = False
        self._linger_milliseconds = LINGER_MILLISECONDS
        self._context = self._zmq.Context(io_threads=1)
        self._bell = Wakeup()
        try:
            self._admission = Admission(self._notes, self._context)
            self._inbox, self._place, self._port = self._bound(store, max(max_bytes, MAX_HEADER_BYTES))
        except BaseException:
            self._context.destroy(linger=0)
            self._bell.close()
            raise
        self._thread = Background(self._run, name="partreduce-mailbox", stop=self.abandon)

    def _bound(self, store: Store, max_bytes: int) -> tuple[Any, str, int]:
        """The inbox with its place and port."""
        inbox = self._context.socket(self._zmq.PULL)
        inbox.setsockopt(self._zmq.RCVHWM, 0)
        inbox.setsockopt(self._zmq.MAXMSGSIZE, max_bytes)
        self._admission.guard(inbox)
        host, is_v6 = own_host(store)
        inbox.setsockopt(self._zmq.IPV6, is_v6)
        place = f"tcp://[{host}]" if is_v6 else f"tcp://{host}"
        try:
            return inbox, place, inbox.bind_to_random_port(place)
        except self._zmq.ZMQError as error:
            raise UnavailableError(f"mailbox: cannot listen at {place} ({error})") from None

    def start(self) -> None:
        """Leave the address and take messages from now on."""
        self._thread.start()
        self._notes.write(f"address/{self.rank}", f"{self._place}:{self._port}")

    def send(
        self, to: int, kind: str, numbers: Sequence[int] = (), payload: Sequence[Any] = (), *, urgent: bool = False
    ) -> None:
        """Put a message on its way, as soon as there is room for it at the receiver; in `deliver`, never wait for that.

        The payload travels from its own memory, which must not change any more (`arrays.Snapshots` knows when it may).
        To oneself nothing is copied at all. What is `urgent` keeps its order among its like only, and may arrive before
        what was sent earlier.

        Raises:
            UnavailableError: the receiver never left its address, or the side thread has ended; in `deliver`, as many
                messages wait for the receiver as may.
            PeerGoneError: the receiver can no longer make room, or did not within the timeout.
        """
        message = self._addressed(to, kind, numbers, payload, urgent=urgent)
        assert self.bound.holds(message.num_bytes), "max_bytes is that of the largest message"
        if threading.current_thread() is self._thread:
            self._send_or_hold(to, message)
        else:
            self._send_when_room(to, message)

    def shared(self, frame: Any) -> Any:  # noqa: ANN401 - any buffer
        """A frame that messages to several workers carry: libzmq then says once, and not for each, that it has left."""
        return self._zmq.Frame(frame, copy=False)

    def _addressed(
        self, to: int, kind: str, numbers: Sequence[int], payload: Sequence[Any] = (), *, urgent: bool = False
    ) -> Message:
        """A message whose receiver is known and may be written to."""
        assert kind != GRANT, "grants are sent by the side thread"
        if self._failure is not None:
            raise UnavailableError(f"a message could not be delivered ({self._cause})")
        if to != self.rank and to not in self._addresses:
            self._addresses[to] = self._address(to)
        return Message(self.rank, kind, tuple(numbers), tuple(payload), urgent)

    def send_newest(self, to: int, kind: str, numbers: Sequence[int], *, urgent: bool = False) -> None:
        """Send a message without arrays that says all that earlier ones of its kind said: totals, say.

        It never waits. Where there is no room for it, it takes the place of an earlier one that waits for room, so that
        a sender that continues without a receiver that takes nothing can do so for ever.

        Raises:
            UnavailableError: the receiver never left its address, or the side thread has ended.
        """
        message = self._addressed(to, kind, numbers, urgent=urgent)
        with self._changed:
            account = self._account(to)
            if account.has_room(0):
                account.take(0)
                self._go(to, message)
            else:
                account.hold_newest(message, lambda other: other.kind == kind)

    @property
    def _cause(self) -> str:
        """What ended the side thread, in words; some errors have none of their own."""
        return str(self._failure) or type(self._failure).__name__

    @property
    def has_failed(self) -> bool:
        """Whether the side thread ended by an error: no message comes any more."""
        return self._failure is not None

    def check_failure(self) -> None:
        """Say so.

        Raises:
            PeerGoneError: no message comes any more.
        """
        if self._failure is not None:
            raise PeerGoneError(f"a message could not be delivered ({self._cause})")

    def traffic(self) -> dict[int, Traffic]:
        """What went between this worker and each other one so far; itself not counted."""
        with self._changed:
            return {
                peer: Traffic(account.sent.copy(), account.received.copy(), account.on_the_way, account.waiting)
                for peer, account in sorted(self._accounts.items())
                if peer != self.rank
            }

    def traffic_facts(self) -> dict[str, Any]:
        """The same as JSON, by rank: what the recorder writes into traces and reports of failures."""
        return {str(peer): asdict(traffic) for peer, traffic in self.traffic().items()}

    def until(
        self, done: Callable[[], bool], heartbeat: SignsOfLife, members: Sequence[int], round_: int | None
    ) -> None:
        """Wait until messages made `done` true.

        Raises:
            PeerGoneError: a member can no longer answer, the timeout passed, or delivery failed.
        """
        self._wait(done, heartbeat, members, round_)

    def _wait(
        self,
        done: Callable[[], bool],
        heartbeat: SignsOfLife,
        members: Sequence[int],
        round_: int | None,
        purpose: str = "",
    ) -> None:
        """Wait for what the side thread brings about; `done` is asked under the lock."""
        has_come = False

        def is_over() -> bool:
            nonlocal has_come
            has_come = done()
            return has_come or self._failure is not None or (self._closing and bool(purpose))

        with self._changed:
            is_there = is_over()
        try:
            if not is_there:  # what is there already costs no wait
                Wait(heartbeat, members, self.timeout, round_).until(self._changed, is_over)
        except PeerTimeoutError as error:
            raise PeerGoneError(f"{error} (while this worker waited {purpose})" if purpose else str(error)) from None
        self.check_failure()
        if not has_come:
            raise PeerGoneError(f"the run ended while this worker waited {purpose}")

    def _account(self, peer: int) -> Account[Message]:
        """What is owed to and by a peer; under the lock."""
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = Account(self.bound)
        return account

    def _send_when_room(self, to: int, message: Message) -> None:
        """For all threads but the side thread: wait until the receiver has room."""
        num_bytes = message.num_bytes

        def taken() -> bool:
            account = self._account(to)
            if room := account.has_room(num_bytes):
                account.take(num_bytes)
                self._go(to, message)
            return room

        with self._changed:
            if taken():
                return
        self._wait(taken, self._heartbeat, (to,), None, f"for room to send worker {to} {size_text(message.num_bytes)}")

    def _send_or_hold(self, to: int, message: Message) -> None:
        """For the side thread: let a message wait for which there is no room."""
        num_bytes = message.num_bytes
        with self._changed:
            account = self._account(to)
            if self._closing:  # the last messages go out whatever was granted
                self._go(to, message)
            elif account.has_room(num_bytes):
                account.take(num_bytes)
                self._go(to, message)
            elif not account.hold(message, num_bytes):
                waiting = account.waiting
                raise UnavailableError(
                    f"worker {to} takes nothing: {waiting.messages} messages with {size_text(waiting.num_bytes)} wait "
                    f"for it already, and at most {self.bound.messages} with {size_text(self.bound.num_bytes)} may"
                )

    def poke(self) -> None:
        """Let those who wait look again, after a change that no message brought."""
        with self._changed:
            self._changed.notify_all()

    def abandon(self) -> None:
        """End the side thread after a failure: nothing waits for messages to workers that may be gone."""
        self._linger_milliseconds = 0
        self.close()

    def close(self) -> None:
        """Send what is queued and end the side thread."""
        if self._closing:
            return
        self._closing = True
        self._bell.ring()
        if self._thread.ident is None:  # never started
            self._context.destroy(linger=0)
            self._bell.close()
        elif threading.current_thread() is not self._thread:
            self._thread.join(2 * LINGER_MILLISECONDS / 1000)
            if not self._thread.is_alive():
                self._bell.close()

    def _address(self, to: int) -> str:
        deadline = Deadline(self.timeout)
        while (address := self._notes.read(f"address/{to}")) is None:
            if deadline.is_over:
                raise UnavailableError(f"worker {to}: left no address for messages within {self.timeout:g} s")
            time.sleep(POLL_SECONDS)
        return address

    def _run(self) -> None:
        poller = self._zmq.Poller()
        for source in (self._inbox, self._admission.socket, self._bell.fileno()):
            poller.register(source, self._zmq.POLLIN)
        try:
            while not self._closing:
                for ready, _ in poller.poll(1000):
                    if ready is self._inbox:
                        self._receive()
                    elif ready is self._admission.socket:
                        self._admission.answer()
                    else:
                        self._bell.quiet()
                self._read_own()
            with self._changed:  # nobody waits for grants any more
                for to, account in self._accounts.items():
                    for message in account.release():
                        self._go(to, message)
            self._read_own()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it where it waits
            self._failure = error
            self.poke()
        finally:
            with self._changed:
                self._has_ended = True
            self._context.destroy(linger=self._linger_milliseconds)

    def _read_own(self) -> None:
        """Deal with messages to oneself until none is left."""
        while True:
            try:
                message = self._to_oneself.get_nowait()
            except queue.Empty:
                return
            self._hand_over(message)

    def _go(self, to: int, message: Message) -> None:
        """Let a message go for which there is room; under the lock, so that what was counted first goes first.

        Given to libzmq it never blocks, and there is no more of it than what was granted.
        """
        if to == self.rank:
            self._to_oneself.put(message)
            self._bell.ring()
            return
        if self._has_ended:
            return
        try:
            lane = (to, message.urgent)
            if lane not in self._peers:
                self._peers[lane] = self._connected(self._addresses[to])
            header = json.dumps([self.rank, message.kind, message.numbers, *self._account(to).tell()]).encode()
            self._peers[lane].send_multipart([self._admission.sealed(header), *message.payload], copy=False)
        except self._zmq.ZMQError as error:
            raise UnavailableError(f"worker {to}: a message could not be sent ({error})") from None

    def _connected(self, address: str) -> Any:  # noqa: ANN401 - pyzmq's socket
        peer = self._context.socket(self._zmq.PUSH)
        peer.setsockopt(self._zmq.SNDHWM, 0)
        peer.setsockopt(self._zmq.IPV6, address.startswith("tcp://["))
        self._admission.introduce(peer)
        peer.connect(address)
        return peer

    def _receive(self) -> None:
        """Deal with one message: libzmq looks for connections with news when it is polled, not between messages."""
        try:
            frames = self._inbox.recv_multipart(self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return
        message = self._message_in(frames)
        if message is not None and message.kind != GRANT:
            self._hand_over(message)

    def _hand_over(self, message: Message) -> None:
        """Let the strategy deal with a message, and tell the sender in time that it has."""
        self._deliver(message)
        source, num_bytes = message.source, message.num_bytes
        with self._changed:
            account = self._account(source)
            account.received.add(num_bytes)
            if source == self.rank:
                self._granted(source, *account.tell())
            is_due = account.owes()
            self._changed.notify_all()
        if is_due:
            if source not in self._addresses:
                self._addresses[source] = self._address(source)
            with self._changed:
                self._go(source, Message(self.rank, GRANT, urgent=True))

    def _granted(self, peer: int, messages: int, num_bytes: int) -> None:
        """Let go what waited for a grant; under the lock."""
        for message in self._account(peer).grant(messages, num_bytes):
            self._go(peer, message)
        self._changed.notify_all()

    def _message_in(self, frames: Sequence[Any]) -> Message | None:
        """The message that some frames hold, after its grant was taken; None for what no worker of this run wrote."""
        if len(frames[0].buffer) > MAX_HEADER_BYTES:
            return None
        header = self._admission.opened(bytes(frames[0].buffer))
        if header is None or header.count(b"[") > MAX_LISTS or b"{" in header:
            return None
        try:
            source, kind, numbers, messages, num_bytes = json.loads(header)
            payload = tuple(frame.buffer for frame in frames[1:])
            message = Message(int(source), str(kind), tuple(int(number) for number in numbers), payload)
            grant = int(messages), int(num_bytes)
        except (ValueError, TypeError, OverflowError, UnicodeDecodeError):
            return None
        with self._changed:
            self._granted(message.source, *grant)
        return message


def _zmq() -> Any:  # noqa: ANN401 - the module
    return load("zmq", "messages between workers (strategies server and pairwise)")


def size_text(num_bytes: int) -> str:
    """A number of bytes as reports say it."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes} bytes"
