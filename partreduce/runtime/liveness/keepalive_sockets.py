"""Detect the death of a worker by idle connections, which the dead worker's machine closes.

When a process dies, however it dies, its machine closes its connections in milliseconds and refuses new ones. Each
worker keeps a listening socket for as long as it takes part in the run, and a connection to each of the next two
workers. If one of those is closed and refused again, the worker notes it in the store: so a death is known within a
second, also without a launcher and for every strategy. A process that is only stopped, or behind a broken link, keeps
its connections; heartbeats and the timeout detect these.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
import weakref

from partreduce.runtime.transport.store import CHANGES, Deaths, Notes, own_host, root_store
from partreduce.runtime.transport.torch_api import Store, TCPStore
from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import StoreLostError, UnavailableError

WATCHED = 2  # of how many workers one holds a connection; with two, neighbors may die together
BACKLOG = 64
"""Connections wait here for ever, since none is accepted: of those that watch, and of those that watched and died."""
LAST_WORD_SECONDS = 0.2  # the dead worker's own note, or its launcher's, says more: it gets this long to be read
LOOK_SECONDS = 0.1
CONNECT_SECONDS = 1.0
REACH_SECONDS = 10.0  # a worker that cannot be reached for so long at the start lies behind a wall, and is not watched
LAST_WORDS = ("finished", "left", "failed")  # a heartbeat's notes of its worker's end; then nothing is added here

_open: weakref.WeakSet[KeepaliveSockets] = weakref.WeakSet()


class KeepaliveSockets:
    """One worker's listening socket and its connections to the next two workers, watched by a thread.

    Nothing is accepted, read or written: a connection is enough, and the kernel makes it. `key` is the optimizer's;
    `place` is this worker's address from `own_host`.
    """

    def __init__(self, store: Store, rank: int, size: int, key: str, place: tuple[str, bool]) -> None:
        self.rank, self.size = rank, size
        self._notes, self._closed = Notes(store, f"lifeline/{key}"), closed_notes(store, key)
        self._last_words, self._deaths = Notes(store, f"heartbeat/{key}"), Deaths(store)
        host, is_v6 = place
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if is_v6 else socket.AF_INET, backlog=BACKLOG
        )
        self._host = (host, socket.gethostname())
        self._connections: dict[int, socket.socket] = {}
        self._stop = threading.Event()
        self._notes.write(f"address/{rank}", json.dumps([*self._host, self._listener.getsockname()[1]]))
        _open.add(self)

    def start(self) -> None:
        """Connect to the next workers, whose addresses are in the store, and watch the connections from then on."""
        behind = [(self.rank + step) % self.size for step in range(1, self.size)]
        watched, others = behind[:WATCHED], behind[WATCHED:]
        with contextlib.suppress(RuntimeError, StoreLostError):
            watched = [rank for rank in watched if not self._is_refused(rank)]
        Background(self._run, watched, others, name="partreduce-lifelines", stop=self.close).start()

    def close(self) -> None:
        """End the thread and close the sockets; a watching worker reports a death if the store has no last note."""
        self._stop.set()
        self.forget()

    def forget(self) -> None:
        """Close the sockets, also in a forked child: an open copy would hide this process's death."""
        for held in [self._listener, *list(self._connections.values())]:
            with contextlib.suppress(OSError):
                held.close()

    def _run(self, watched: list[int], others: list[int]) -> None:
        """Wait for an end, try again, note it; the first of the others is then watched in place of the dead one."""
        known, deadline = set(self._connections), time.monotonic() + REACH_SECONDS
        """To whom there was a connection; before that a refusal tells nothing."""
        with contextlib.suppress(RuntimeError, StoreLostError, OSError, ValueError):  # closed, or without a store
            while not self._stop.is_set():
                for rank in [rank for rank in watched if rank not in self._connections]:
                    is_refused = self._is_refused(rank)
                    known |= self._connections.keys()
                    if is_refused or (rank not in known and time.monotonic() > deadline):
                        watched.remove(rank)
                    if is_refused and rank in known:
                        self._note(rank)
                        watched += others[:1]
                        others = others[1:]
                self._wait(all(rank in self._connections for rank in watched))

    def _wait(self, are_all_connected: bool) -> None:
        """Wait until a connection ends, or for a moment while there are more to make."""
        poller = select.poll()
        ranks = {held.fileno(): rank for rank, held in self._connections.items()}
        for descriptor in ranks:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(1000 * (1.0 if are_all_connected else LOOK_SECONDS)):
            self._connections.pop(ranks[descriptor]).close()

    def _is_refused(self, rank: int) -> bool:
        """Try to connect, where the worker has said its address; only a refusal tells that no worker listens there."""
        noted = self._notes.read(f"address/{rank}")
        if noted is None:
            return False
        host, machine, port = json.loads(noted)
        if host.startswith(("127.", "::1")) and (host, machine) != self._host:
            return True  # another machine's own loopback: what listens there on this machine is another process
        try:
            connection = socket.create_connection((host, port), CONNECT_SECONDS)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        if connection.getsockname() == connection.getpeername():
            connection.close()  # from a port at which nothing listens to itself, which the kernel joins
            return True
        self._connections[rank] = connection
        return False

    def _note(self, rank: int) -> None:
        """Leave word of a worker that is gone without one."""
        end = time.monotonic() + LAST_WORD_SECONDS
        while time.monotonic() < end:
            said = any(self._last_words.read(f"{kind}/{rank}") is not None for kind in LAST_WORDS)
            if said or self._deaths.of(rank) is not None:
                return
            time.sleep(LAST_WORD_SECONDS / 4)
        self._closed.propose(
            str(rank), "ended without a word (its connections closed, and its machine refuses new ones)"
        )
        self._deaths.count(CHANGES, 1)


def lifelines_of(store: Store, rank: int, size: int, key: str) -> KeepaliveSockets | None:
    """Create this worker's KeepaliveSockets; None if store or machine have no address for them."""
    if not isinstance(root_store(store), TCPStore):
        return None
    try:
        return KeepaliveSockets(store, rank, size, key, own_host(store))
    except (UnavailableError, OSError):
        return None


def closed_notes(store: Store, key: str) -> Notes:
    """Return the notes in which workers record, by rank, that another worker's process is gone."""
    return Notes(store, f"closed/{key}")


def _forget_all() -> None:
    for lifelines in list(_open):
        lifelines.forget()


os.register_at_fork(after_in_child=_forget_all)
