"""Mailbox: one-sided messages between workers, for strategies in which nobody waits for a common operation.

pyzmq carries them and not gloo: a gloo send blocks until its receive is posted, cannot be polled, and one receive that
times out destroys the group. Every worker binds one inbox and connects to a peer when it first writes to it. A side
thread owns all sockets; it hands arriving messages to the strategy and sends what the strategy answers.

Only workers of the run can connect and write (see `admission`); whatever else arrives is dropped unread. If the side
thread ends for any reason but `close`, whoever waits or sends is told.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preduce.runtime.transport.admission import Admission
from preduce.runtime.transport.doorbell import Doorbell
from preduce.runtime.transport.notes import Notes
from preduce.runtime.transport.own_host import own_host
from preduce.runtime.transport.waiting import GLANCE_SECONDS, GoneError, Lookout
from preduce.topo.errors import UnavailableError
from preduce.topo.extras import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preduce.runtime.transport.torch_api import Store
    from preduce.runtime.transport.waiting import SignsOfLife

POLL_SECONDS = 0.005
LINGER_MILLISECONDS = 1000
MAX_HEADER_BYTES = 4096
MAX_LISTS = 2
"""A header is one list with one list inside it."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message: what kind, from whom, a few numbers, and arrays as raw bytes."""

    source: int
    kind: str
    numbers: tuple[int, ...] = ()
    payload: tuple[Any, ...] = ()


class Mailbox:
    """The messages of one worker; `deliver` runs in the side thread, everything else may be called from any thread.

    Args:
        store: where workers leave their addresses.
        rank: this worker.
        key: which mailbox of the run, equal on all workers.
        deliver: called with each message.
        max_bytes: larger frames close the sender's connection.

    Raises:
        MissingFeatureError: pyzmq is not installed.
        UnavailableError: this machine's address is not known, or has no free port.
    """

    def __init__(
        self, store: Store, rank: int, key: str, deliver: Callable[[Message], None], *, max_bytes: int, timeout: float
    ) -> None:
        self.rank, self.timeout = rank, timeout
        self._notes = Notes(store, f"mailbox/{key}")
        self._deliver = deliver
        self._zmq = _zmq()
        self._outgoing: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._addresses: dict[int, str] = {}
        self._peers: dict[int, Any] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closing = False
        self._linger_milliseconds = LINGER_MILLISECONDS
        self._context = self._zmq.Context(io_threads=1)
        self._bell = Doorbell()
        try:
            self._admission = Admission(self._notes, self._context)
            self._inbox, self._place, self._port = self._bound(store, max(max_bytes, MAX_HEADER_BYTES))
        except BaseException:
            self._context.destroy(linger=0)
            self._bell.close()
            raise
        self._thread = threading.Thread(target=self._run, name="preduce-mailbox", daemon=True)

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

    def send(self, to: int, kind: str, numbers: Sequence[int] = (), payload: Sequence[Any] = ()) -> None:
        """Put a message on its way; the payload's memory must not change any more. To oneself costs no copy.

        Raises:
            UnavailableError: the receiver never left its address, or the side thread has ended.
        """
        if self._failure is not None:
            raise UnavailableError(f"a message could not be delivered ({self._failure})")
        if to != self.rank and to not in self._addresses:
            self._addresses[to] = self._address(to)
        self._outgoing.put((to, Message(self.rank, kind, tuple(numbers), tuple(payload))))
        self._bell.ring()

    def until(
        self, done: Callable[[], bool], heartbeat: SignsOfLife, members: Sequence[int], round_: int | None
    ) -> None:
        """Wait until messages made `done` true.

        Raises:
            GoneError: a member can no longer answer, the timeout passed, or delivery failed.
        """
        start = time.monotonic()
        lookout = Lookout(heartbeat, members, round_)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: done() or self._failure is not None, GLANCE_SECONDS):
                    if self._failure is not None:
                        raise GoneError(f"a message could not be delivered ({self._failure})")
                    return
            if (why := lookout.gone()) is not None:
                raise GoneError(why)
            if time.monotonic() > start + self.timeout:
                raise GoneError(heartbeat.waits_for(members, self.timeout))

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
        deadline = time.monotonic() + self.timeout
        while (address := self._notes.read(f"address/{to}")) is None:
            if time.monotonic() > deadline:
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
                self._flush()
            self._flush()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it where it waits
            self._failure = error
            self.poke()
        finally:
            self._context.destroy(linger=self._linger_milliseconds)

    def _flush(self) -> None:
        """Carry out what is queued, messages to oneself included, until nothing is left."""
        while True:
            try:
                to, message = self._outgoing.get_nowait()
            except queue.Empty:
                return
            if to == self.rank:
                self._hand_over(message)
                continue
            if to not in self._peers:
                peer = self._peers[to] = self._context.socket(self._zmq.PUSH)
                peer.setsockopt(self._zmq.SNDHWM, 0)
                peer.setsockopt(self._zmq.IPV6, self._addresses[to].startswith("tcp://["))
                self._admission.introduce(peer)
                peer.connect(self._addresses[to])
            header = json.dumps([self.rank, message.kind, message.numbers]).encode()
            self._peers[to].send_multipart([self._admission.sealed(header), *message.payload], copy=False)

    def _receive(self) -> None:
        while True:
            try:
                frames = self._inbox.recv_multipart(self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                return
            message = self._message_in(frames)
            if message is not None:
                self._hand_over(message)

    def _hand_over(self, message: Message) -> None:
        self._deliver(message)
        self.poke()

    def _message_in(self, frames: Sequence[Any]) -> Message | None:
        """The message that some frames hold; None for what no worker of this run wrote."""
        if len(frames[0].buffer) > MAX_HEADER_BYTES:
            return None
        header = self._admission.opened(bytes(frames[0].buffer))
        if header is None or header.count(b"[") > MAX_LISTS or b"{" in header:
            return None
        try:
            source, kind, numbers = json.loads(header)
            payload = tuple(frame.buffer for frame in frames[1:])
            return Message(int(source), str(kind), tuple(int(number) for number in numbers), payload)
        except (ValueError, TypeError, UnicodeDecodeError):
            return None


def _zmq() -> Any:  # noqa: ANN401 - the module
    return load("zmq", "messages between workers (strategies server and pairwise)")
