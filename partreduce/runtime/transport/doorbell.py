"""Wakeup: wakes a thread that waits in a poll; owned by its maker, which closes it when that thread has ended.

A bare descriptor that the thread closes is a number that the next file of the process gets: who rings afterwards writes
into that file. Sockets know that they are closed, and the lock keeps a ring from meeting the closing half-way.
"""

from __future__ import annotations

import contextlib
import socket
import threading


class Wakeup:
    """`ring` from any thread; the waiting thread polls `fileno()` and calls `quiet` when it is readable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._outside.setblocking(False)

    def fileno(self) -> int:
        """What the waiting thread polls."""
        return self._inside.fileno()

    def ring(self) -> None:
        """Wake the waiting thread; does nothing after `close`."""
        with self._lock, contextlib.suppress(OSError):  # full: the thread is awake anyway; or closed
            self._outside.send(b"!")

    def quiet(self) -> None:
        with contextlib.suppress(OSError):
            self._inside.recv(4096)

    def close(self) -> None:
        """Give the descriptors back; the thread that polled them must have ended."""
        with self._lock:
            self._outside.close()
            self._inside.close()

    def __del__(self) -> None:
        """Whose owner was forgotten with its thread is nobody's any more."""
        self.close()
