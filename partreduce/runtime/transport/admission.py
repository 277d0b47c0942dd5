"""Admission: who may write to the mailboxes of a run, decided before a byte of a message is looked at.

All workers of a run know one secret. What travels is derived from it: a password, without which libzmq closes a
connection before it takes a message (so a stranger cannot make a worker hold memory either), and a tag over the header
of each message, so that reading the password off the wire is not enough to invent one. Payloads travel as gloo's do:
neither encrypted nor authenticated. CURVE would do both, at a sixth of the speed.

The secret comes half from the run's store, where the first worker proposes it, and half from the launcher's
environment, which `partreduce run` fills, so that who can read the store alone does not have it.

Source for the access check: ZeroMQ's RFC 27 (ZAP), RFC 24 (PLAIN).
"""

from __future__ import annotations

import hmac
import os
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from partreduce.runtime.environment import RUN_SECRET

if TYPE_CHECKING:
    from partreduce.runtime.transport.store import Notes

ZAP_PLACE = "inproc://zeromq.zap.01"
TAG_BYTES = 16
NAME = b"worker"


class Admission:
    """One mailbox's access check.

    Args:
        notes: where the workers agree on the secret.
        context: of pyzmq, that of the inbox.
    """

    def __init__(self, notes: Notes, context: Any) -> None:  # noqa: ANN401 - pyzmq's
        import zmq

        self._zmq = zmq
        shared = notes.propose("secret", secrets.token_hex(32)) + os.environ.get(RUN_SECRET, "")
        self._password = _derived(shared, b"password").hex().encode()
        self._key = _derived(shared, b"header")
        self.socket = context.socket(zmq.REP)
        """Where libzmq asks about each new connection; the thread that polls it calls `answer`."""
        self.socket.bind(ZAP_PLACE)

    def guard(self, inbox: Any) -> None:  # noqa: ANN401 - a zmq socket
        """Let only workers of this run connect to a socket that is not bound yet."""
        inbox.plain_server, inbox.zap_domain = True, b"partreduce"
        inbox.setsockopt(self._zmq.HANDSHAKE_IVL, 5000)

    def introduce(self, outbox: Any) -> None:  # noqa: ANN401 - as above
        """Show the password on a socket that is not connected yet."""
        outbox.plain_username, outbox.plain_password = NAME, self._password

    def answer(self) -> None:
        """Decide about the connections that libzmq asks about."""
        while True:
            try:
                version, number, *rest = self.socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            given = rest[5] if len(rest) > 5 and rest[3:5] == [b"PLAIN", NAME] else b""
            right = hmac.compare_digest(given, self._password)
            code, text = (b"200", b"OK") if right else (b"400", b"not a worker of this run")
            self.socket.send_multipart([version, number, code, text, b"", b""])

    def sealed(self, header: bytes) -> bytes:
        return self._tag(header) + header

    def opened(self, frame: bytes) -> bytes | None:
        """The header of a frame; None if no worker of this run wrote it."""
        tag, header = frame[:TAG_BYTES], frame[TAG_BYTES:]
        return header if hmac.compare_digest(tag, self._tag(header)) else None

    def _tag(self, header: bytes) -> bytes:
        return blake2b(header, digest_size=TAG_BYTES, key=self._key).digest()


def _derived(secret: str, purpose: bytes) -> bytes:
    return blake2b(secret.encode(), digest_size=32, person=purpose).digest()
