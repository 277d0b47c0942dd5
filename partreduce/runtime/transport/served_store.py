"""Served store: what a worker does that serves the store of its run itself, so that its death is seen at once.

The kernel closes the sockets of a dead process when nobody else holds them. A fork does, such as a data loader's worker
or a pool's, and may outlive its parent by seconds or for ever: until then the others' questions to the store would stay
without an answer. torch tells nobody its sockets' descriptors, so they are found by the port.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

DESCRIPTORS = "/dev/fd"

_listeners: set[int] = set()
"""Inodes of the sockets at which this process serves a store; a port may be somebody else's by the time of a fork."""


def let_forks_go_without(port: int) -> None:
    """From now on children that this process forks hold no socket of the store that it serves at this port."""
    _listeners.update(
        os.fstat(held.fileno()).st_ino
        for held in _tcp_sockets()
        if held.getsockname()[1] == port and held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    )


def _let_go() -> None:
    """Put something else into the place of each socket, which the store's own objects may close at any time."""
    if not _listeners:
        return
    places = [(held.fileno(), held.getsockname()[1]) for held in _tcp_sockets()]
    ports = {port for descriptor, port in places if os.fstat(descriptor).st_ino in _listeners}
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, port in places:
        if port in ports:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _listeners.clear()


def _tcp_sockets() -> Iterator[socket.socket]:
    """This process's TCP sockets, each to be looked at while it is the iterator's present one."""
    for entry in os.listdir(DESCRIPTORS):  # noqa: PTH208 - names are numbers here
        with contextlib.suppress(OSError):  # no socket, or what the listing itself was read from
            held = socket.socket(fileno=int(entry))
            try:
                if held.family in (socket.AF_INET, socket.AF_INET6) and held.type == socket.SOCK_STREAM:
                    yield held
            finally:
                held.detach()


os.register_at_fork(after_in_child=_let_go)
