"""Provide one process's authenticated ZeroMQ sockets, for mailboxes, servers and the group service.

All participants share a secret. From it two values are derived that are sent: a password, without which libzmq closes a
connection before it accepts a message (so a stranger cannot make a process allocate memory), and a MAC over the header
of each message, so that reading the password on the wire is not enough to write messages. A MAC is for one receiver and
includes a counter, so that a replayed or redirected message is dropped. Payloads are sent as by gloo, neither encrypted
nor authenticated; CURVE would do both, at a sixth of the speed.

A message is a header, the JSON list [source, kind, numbers], and arrays. An inbox that answers is a ROUTER; an inbox
that does not, and every connection, is a DEALER. One thread polls and reads; only one thread at a time writes to a
connection. Sources: ZeroMQ's RFC 24 (PLAIN), RFC 27 (ZAP), RFC 28 (ROUTER and DEALER).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import UnavailableError
from partreduce.topo.extras import load

ACCESS = "inproc://zeromq.zap.01"
USER = b"worker"
TAG_BYTES = NONCE_BYTES = 16
COUNT_BYTES = 8
MAX_HEADER_BYTES = 4096
LINGER_MILLISECONDS, END_SECONDS = 1000, 2.0  # at the end: time for queued messages to leave, and for the thread to end
PURPOSES = {
    "mailbox": "messages between workers (strategies server and pairwise)",
    "group generator": "the group generator",
}
MAX_LISTS = 2  # a header is a list that contains one list


class Received(NamedTuple):
    """A received message: the sender's rank, kind, integers and arrays; `reply` needs `route` to answer the sender."""

    route: bytes
    source: int
    kind: str
    numbers: list[int]
    payload: tuple[Any, ...]


class Seal:
    """Signer of headers to worker `receiver` on a connection; a call returns MAC, nonce, counter and header joined."""

    def __init__(self, secret: str, receiver: int) -> None:
        self._keyed_hash, self._nonce, self._count = _keyed_hash(secret, receiver), os.urandom(NONCE_BYTES), 0

    def __call__(self, header: bytes) -> bytes:
        self._count += 1
        sealed = self._nonce + self._count.to_bytes(COUNT_BYTES, "big") + header
        return _tag(self._keyed_hash, sealed) + sealed


class SealCheck:
    """Verifier of headers that a `Seal` with the same secret signed for rank `receiver`; accepts each only once."""

    def __init__(self, secret: str, receiver: int) -> None:
        self._keyed_hash = _keyed_hash(secret, receiver)
        self._counts: dict[bytes, int] = {}

    def __call__(self, frame: bytes) -> bytes | None:
        """Return the header in a frame; None if the MAC is wrong or this header was received before."""
        sealed = frame[TAG_BYTES:]
        if not hmac.compare_digest(frame[:TAG_BYTES], _tag(self._keyed_hash, sealed)):
            return None
        nonce, place = sealed[:NONCE_BYTES], NONCE_BYTES + COUNT_BYTES
        count = int.from_bytes(sealed[NONCE_BYTES:place], "big")
        if count <= self._counts.get(nonce, 0):
            return None
        self._counts[nonce] = count
        return sealed[place:]


def _tag(keyed: Any, sealed: bytes) -> bytes:  # noqa: ANN401 - hashlib does not name its type
    tag = keyed.copy()
    tag.update(sealed)
    digest: bytes = tag.digest()
    return digest


def _keyed_hash(secret: str, receiver: int) -> Any:  # noqa: ANN401 - as above
    return blake2b(digest_size=TAG_BYTES, key=_derive_key(secret, f"to {receiver}"))


def _derive_key(secret: str, purpose: str) -> bytes:
    return blake2b(secret.encode(), digest_size=32, person=purpose.encode()).digest()


class Connection:
    """A socket that sends messages to another endpoint's inbox, or answers back to a sender."""

    def __init__(self, socket: Any, seal: Seal) -> None:  # noqa: ANN401 - pyzmq's
        self.socket, self.seal = socket, seal

    def send(
        self, source: int, kind: str, numbers: Sequence[int] = (), payload: Sequence[Any] = (), *, route: bytes = b""
    ) -> None:
        """Queue a message in libzmq without blocking; the payload must not change until it was sent.

        `source` is the sender's rank, `kind` a word that says what the message is, `numbers` integers and `payload`
        arrays for the receiver. An answer needs the `route` of the message (`Received`) that it answers.
        """
        header = self.seal(json.dumps((source, kind, numbers)).encode())
        frames = (route, header, *payload) if route else (header, *payload)
        self.socket.send_multipart(frames, 1, copy=not payload)  # 1 is NOBLOCK


class Endpoint:
    """One process's ZeroMQ sockets: an inbox, and connections to other endpoints.

    Args:
        owner: the purpose, "mailbox" or "group generator", for error messages.
        secret: the secret that all endpoints of the run share.
        rank: this process's rank; −1 for the group service.
        max_header: largest header in bytes.
        max_bytes: largest frame in bytes; a larger one closes the connection before memory is allocated.
        queue: how many messages libzmq queues per connection; 0 (no limit) if `mailbox.Account` limits them.
    """

    def __init__(
        self,
        owner: str,
        secret: str,
        rank: int,
        *,
        max_header: int = MAX_HEADER_BYTES,
        max_bytes: int = 0,
        queue: int = 0,
    ) -> None:
        self._zmq = load("zmq", PURPOSES[owner])
        self.error = self._zmq.ZMQError  # raised by `connect` and `Connection.send` if libzmq fails
        self._owner, self._secret, self.rank = owner, secret, rank
        self._max_bytes, self._max_header, self._queue = max(max_bytes, max_header), max_header, queue
        self._password = _derive_key(secret, "password").hex().encode()
        self._opened = SealCheck(secret, rank)
        self._replies: dict[int, Connection] = {}
        self._context = self._zmq.Context(io_threads=1)
        self._poller = self._zmq.Poller()
        self._inbox: Any = None
        self._has_routes = False
        self._access: Any = None
        self.linger_milliseconds = LINGER_MILLISECONDS
        self._thread: Background | None = None
        self._bell = Wakeup()
        self._poller.register(self._bell.fileno(), self._zmq.POLLIN)

    def listen(self, address: str, *, answers: bool = False) -> str:
        """Open the inbox at `address`, such as `tcp://10.0.0.1:*`; return that address with the actual port.

        Only peers that know the secret can connect. With `answers`, received messages have a route for `reply`. Raises
        UnavailableError if it cannot listen there.
        """
        zmq = self._zmq
        self._access = self._context.socket(zmq.REP)
        self._access.bind(ACCESS)  # before the inbox, otherwise libzmq would accept any peer
        inbox = self._socket(zmq.ROUTER if answers else zmq.DEALER, address)
        inbox.plain_server, inbox.zap_domain = True, b"partreduce"
        inbox.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        try:
            inbox.bind(address)
        except zmq.ZMQError as error:
            raise UnavailableError(f"{self._owner}: cannot listen at {address}: {error}") from None
        self._inbox, self._has_routes = inbox, answers
        for source in (self._access, inbox):
            self._poller.register(source, zmq.POLLIN)
        return f"{address.rpartition(':')[0]}:{inbox.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(':')[2]}"

    def connect(self, address: str, receiver: int, *, reads: bool = False) -> Connection:
        """Connect to the inbox of worker `receiver` (−1: the group service); with `reads`, `read` returns answers."""
        zmq = self._zmq
        dealer = self._socket(zmq.DEALER, address)
        dealer.plain_username, dealer.plain_password = USER, self._password
        dealer.setsockopt(zmq.RECONNECT_IVL, 20)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        if reads:
            self._inbox = dealer
            self._poller.register(dealer, zmq.POLLIN)
        else:
            dealer.setsockopt(zmq.RCVHWM, 1)
            dealer.setsockopt(zmq.MAXMSGSIZE, MAX_HEADER_BYTES)
        dealer.connect(address)
        return Connection(dealer, Seal(self._secret, receiver))

    def _socket(self, kind: int, address: str) -> Any:  # noqa: ANN401 - pyzmq's
        made = self._context.socket(kind)
        made.setsockopt(self._zmq.IPV6, address.startswith("tcp://["))
        made.setsockopt(self._zmq.MAXMSGSIZE, self._max_bytes)
        made.set_hwm(self._queue)
        return made

    def shared(self, frame: Any) -> Any:  # noqa: ANN401 - any buffer
        """Wrap a buffer that several messages contain, so that libzmq releases it after it has sent the last one."""
        return self._zmq.Frame(frame, copy=False)

    def is_readable(self, seconds: float) -> bool:
        """Wait up to `seconds` for a message or a call of `wake`; return whether a message may have arrived."""
        readable = False
        for source, _ in self._poller.poll(1000 * seconds):
            if source is self._inbox:
                readable = True
            elif source is self._access:
                self._check_passwords()
            else:
                self._bell.quiet()
        return readable

    def read(self) -> Received | None:
        """Return the next message; None if there is none or it was rejected."""
        try:
            frames = self._inbox.recv_multipart(self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return None
        route = frames.pop(0).bytes if self._has_routes else b""
        if not frames or len(frames[0]) > self._max_header:
            return None
        header = self._opened(frames[0].bytes)
        if header is None or header.count(b"[") > MAX_LISTS or b"{" in header:
            return None
        try:
            source, kind, numbers = json.loads(header.decode())
        except (ValueError, TypeError):
            return None
        if type(source) is not int or type(kind) is not str or type(numbers) is not list:
            return None
        if not set(map(type, numbers)) <= {int}:
            return None
        return Received(route, source, kind, numbers, tuple(frame.buffer for frame in frames[1:]))

    def reply(self, route: bytes, to: int, kind: str, numbers: Sequence[int]) -> None:
        """Answer worker `to` on the `route` of its message (see `Connection.send`); dropped if it has disconnected."""
        if to not in self._replies:
            self._replies[to] = Connection(self._inbox, Seal(self._secret, to))
        with contextlib.suppress(self._zmq.ZMQError):
            self._replies[to].send(self.rank, kind, numbers, route=route)

    def _check_passwords(self) -> None:
        while True:
            try:
                version, number, *rest = self._access.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            given = rest[5] if len(rest) > 5 and rest[3:5] == [b"PLAIN", USER] else b""
            right = hmac.compare_digest(given, self._password)
            code, text = (b"200", b"OK") if right else (b"400", b"not one of this job")
            self._access.send_multipart([version, number, code, text, b"", b""])

    def wake(self) -> None:
        self._bell.ring()

    def thread(self, read: Callable[[], None], *, name: str, stop: Callable[[], None] | None = None) -> Background:
        """Return a thread, not yet started, that runs `read` and then closes the sockets; `stop` makes `read` end."""

        def run() -> None:
            try:
                read()
            finally:
                self._context.destroy(linger=self.linger_milliseconds)

        self._thread = Background(run, name=name, stop=stop)
        return self._thread

    def end(self) -> None:
        """Wake the thread, wait briefly for it, and close all sockets; queued messages have a second to be sent."""
        self.wake()
        thread = self._thread
        if thread is None or thread.ident is None:
            self._context.destroy(linger=0 if thread else self.linger_milliseconds)
            self._bell.close()
        elif threading.current_thread() is not thread:
            thread.join(END_SECONDS)
            if not thread.is_alive():
                self._bell.close()


class Wakeup:
    """Signal that wakes a thread from a poll; its creator closes it after that thread has ended.

    It uses sockets and a lock instead of a bare file descriptor: after a close, that number could belong to another
    file, into which a wakeup would write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._outside.setblocking(False)

    def fileno(self) -> int:
        return self._inside.fileno()

    def ring(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # if full, the thread is awake anyway; or it is closed
            self._outside.send(b"!")

    def quiet(self) -> None:
        with contextlib.suppress(OSError):
            self._inside.recv(4096)

    def close(self) -> None:
        with self._lock:
            self._outside.close()
            self._inside.close()

    def __del__(self) -> None:
        self.close()
