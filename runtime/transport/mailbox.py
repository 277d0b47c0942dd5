"""Mailbox: one-sided messages between workers, for strategies in which nobody waits for a common operation.

pyzmq carries them and not gloo: a gloo send blocks until its receive is posted, cannot be polled, and one receive that
times out destroys the group. Every worker binds one inbox and connects to a peer when it first writes to it. A side
thread owns all sockets; it hands arriving messages to the strategy and sends what the strategy answers.

Messages carry a token of the run, so that strays of another run are dropped; like gloo's own traffic they are neither
encrypted nor authenticated.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preduce.runtime.transport.notes import Notes
from preduce.runtime.transport.waiting import LOOK_SECONDS, GoneError
from preduce.topo.errors import UnavailableError
from preduce.topo.extras import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preduce.runtime.transport.torch_api import Store
    from preduce.runtime.transport.waiting import SignsOfLife

POLL_SECONDS = 0.005
LINGER_MILLISECONDS = 1000
MAX_HEADER_BYTES = 4096


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
    """

    def __init__(
        self, store: Store, rank: int, key: str, deliver: Callable[[Message], None], *, max_bytes: int, timeout: float
    ) -> None:
        self.rank, self.timeout = rank, timeout
        self._notes = Notes(store, f"mailbox/{key}")
        self._deliver = deliver
        self._zmq = _zmq()
        self._context = self._zmq.Context(io_threads=1)
        self._token = self._notes.propose("token", secrets.token_hex(8))
        self._outgoing: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._addresses: dict[int, str] = {}
        self._peers: dict[int, Any] = {}
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._closing = False
        self._wake_end, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        inbox = self._context.socket(self._zmq.PULL)
        inbox.setsockopt(self._zmq.RCVHWM, 0)
        inbox.setsockopt(self._zmq.MAXMSGSIZE, max(max_bytes, MAX_HEADER_BYTES))
        host, is_v6 = own_host()
        inbox.setsockopt(self._zmq.IPV6, is_v6)
        self._place = f"tcp://[{host}]" if is_v6 else f"tcp://{host}"
        self._port = inbox.bind_to_random_port(self._place)
        self._thread = threading.Thread(target=self._run, args=(inbox,), name="preduce-mailbox", daemon=True)

    def start(self) -> None:
        """Leave the address and take messages from now on."""
        self._thread.start()
        self._notes.write(f"address/{self.rank}", f"{self._place}:{self._port}")

    def send(self, to: int, kind: str, numbers: Sequence[int] = (), payload: Sequence[Any] = ()) -> None:
        """Put a message on its way; the payload's memory must not change any more. To oneself costs no copy.

        Raises:
            UnavailableError: the receiver never left its address.
        """
        if to != self.rank and to not in self._addresses:
            self._addresses[to] = self._address(to)
        self._outgoing.put((to, Message(self.rank, kind, tuple(numbers), tuple(payload))))
        self._ring()

    def until(
        self, done: Callable[[], bool], heartbeat: SignsOfLife, members: Sequence[int], round_: int | None
    ) -> None:
        """Wait until messages made `done` true.

        Raises:
            GoneError: a member can no longer answer, the timeout passed, or delivery failed.
        """
        start = time.monotonic()
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: done() or self._failure is not None, LOOK_SECONDS):
                    if self._failure is not None:
                        raise GoneError(f"a message could not be delivered ({self._failure})")
                    return
            if (why := heartbeat.gone(members, round_)) is not None:
                raise GoneError(why)
            if time.monotonic() > start + self.timeout:
                others = [rank for rank in members if rank != self.rank]
                seen = "; ".join(f"worker {rank}, which {heartbeat.last_seen(rank)}" for rank in others[:4])
                raise GoneError(f"waits for {seen}, for more than {self.timeout:g} s")

    def poke(self) -> None:
        """Let those who wait look again, after a change that no message brought."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Send what is queued and end the side thread."""
        if self._closing:
            return
        self._closing = True
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * LINGER_MILLISECONDS / 1000)

    def _ring(self) -> None:
        try:
            os.write(self._wake, b"!")
        except (BlockingIOError, OSError):
            return  # the pipe is full, so the thread is awake anyway; or the mailbox is closed

    def _address(self, to: int) -> str:
        deadline = time.monotonic() + self.timeout
        while (address := self._notes.read(f"address/{to}")) is None:
            if time.monotonic() > deadline:
                raise UnavailableError(f"worker {to}: left no address for messages within {self.timeout:g} s")
            time.sleep(POLL_SECONDS)
        return address

    def _run(self, inbox: Any) -> None:  # noqa: ANN401 - a zmq socket
        poller = self._zmq.Poller()
        poller.register(inbox, self._zmq.POLLIN)
        poller.register(self._wake_end, self._zmq.POLLIN)
        try:
            while not self._closing:
                for ready, _ in poller.poll(1000):
                    if ready == self._wake_end:
                        os.read(self._wake_end, 4096)
                    else:
                        self._receive(inbox)
                self._flush()
            self._flush()
        except Exception as error:  # noqa: BLE001 - the main thread raises it where it waits
            self._failure = error
            self.poke()
        finally:
            self._context.destroy(linger=LINGER_MILLISECONDS)
            os.close(self._wake_end)
            os.close(self._wake)

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
                peer.connect(self._addresses[to])
            header = json.dumps([self._token, self.rank, message.kind, message.numbers]).encode()
            self._peers[to].send_multipart([header, *message.payload], copy=False)

    def _receive(self, inbox: Any) -> None:  # noqa: ANN401 - a zmq socket
        while True:
            try:
                frames = inbox.recv_multipart(self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                return
            message = self._message_in(frames)
            if message is not None:
                self._hand_over(message)

    def _hand_over(self, message: Message) -> None:
        self._deliver(message)
        self.poke()

    def _message_in(self, frames: Sequence[Any]) -> Message | None:
        """The message that some frames hold; None for what does not belong to this run."""
        try:
            token, source, kind, numbers = json.loads(bytes(frames[0].buffer[:MAX_HEADER_BYTES]))
            if token != self._token:
                return None
            payload = tuple(frame.buffer for frame in frames[1:])
            return Message(int(source), str(kind), tuple(int(number) for number in numbers), payload)
        except (ValueError, TypeError, UnicodeDecodeError):
            return None


def own_host() -> tuple[str, bool]:
    """(the address at which other workers reach this one, whether it is IPv6): the one that faces the run's master.

    `GLOO_SOCKET_IFNAME` names another interface, as for gloo. Without a launcher it is this machine only.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return _address_of(interface), False
    master = os.environ.get("MASTER_ADDR", "")
    if not master:
        return "127.0.0.1", False
    try:
        family, _, _, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing: asks the routing table
            return str(probe.getsockname()[0]), family == socket.AF_INET6
    except OSError as error:
        raise UnavailableError(f"MASTER_ADDR {master!r}: cannot be resolved or reached ({error})") from None


def _address_of(interface: str) -> str:
    import fcntl
    import struct

    get_address = 0x8915  # SIOCGIFADDR
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", interface[:15].encode()))
    except OSError as error:
        raise UnavailableError(f"GLOO_SOCKET_IFNAME {interface!r}: has no IPv4 address ({error.strerror})") from None
    return socket.inet_ntoa(answer[20:24])


def _zmq() -> Any:  # noqa: ANN401 - the module
    return load("zmq", "messages between workers (strategies server and pairwise)")
