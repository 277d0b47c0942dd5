"""Connections: what the sockets of a mailbox tell of the processes at their other ends.

When a process dies, its machine closes its connections in milliseconds and refuses new ones. A process that is only
stopped keeps both, and so does one behind a broken link, until a timeout says more; so a connection that broke and
cannot be made again is word of a death, also where no launcher watches.
"""

from __future__ import annotations

import time
from typing import Any

REFUSED_SECONDS = 0.5
"""A connection that has been broken for so long belongs to a process that is gone; zmq tries again every 0.1 s."""


class Connections:
    """The connections of one mailbox to its peers; used by the side thread, except `closed`.

    Args:
        poller: of the side thread; it reports the sockets that `is_one` knows.
    """

    def __init__(self, poller: Any) -> None:  # noqa: ANN401 - pyzmq's
        self._poller = poller
        self._peers: dict[Any, int] = {}
        self._broken: dict[int, float] = {}

    def watch(self, rank: int, peer: Any) -> None:  # noqa: ANN401 - a zmq socket
        """Listen for what happens to the connection of a new socket; before it connects."""
        import zmq

        events = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECTED)
        self._peers[events] = rank
        self._poller.register(events, zmq.POLLIN)

    def is_one(self, ready: Any) -> bool:  # noqa: ANN401 - what a poller reports
        """Whether this is a socket of ours that has something to tell."""
        return ready in self._peers

    def hear(self, events: Any) -> None:  # noqa: ANN401 - a zmq socket
        """Take what a socket has to tell."""
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        while events.poll(0):
            event = recv_monitor_message(events)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self._broken.setdefault(self._peers[events], time.monotonic())
            else:
                self._broken.pop(self._peers[events], None)

    def closed(self) -> frozenset[int]:
        """The workers whose process is gone, as far as their connections tell; from any thread."""
        latest = time.monotonic() - REFUSED_SECONDS
        return frozenset(rank for rank, since in list(self._broken.items()) if since < latest)
