"""Detect the death of a worker by idle TCP connections, which the dead worker's kernel closes.

When a process dies for any reason, its kernel closes its connections within milliseconds and refuses new ones. Each
worker keeps a listening socket while it takes part in the run, and a connection to each of the next two workers. If a
connection closes and a new one is refused, the worker records the death in the store, so that it is known within a
second, with or without a launcher and for every strategy. A process that is only stopped, or behind a broken link,
keeps its connections; heartbeats and the timeout detect these.
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

WATCHED = 2  # connections per worker; with two, adjacent workers may die together
BACKLOG = 64
"""Room for connections, of which none is accepted: those of watching workers, and of watchers that have died."""
LAST_WORD_SECONDS = 0.5  # how long to wait for the more precise note of the dead worker or its launcher
LOOK_SECONDS = 0.1
CONNECT_SECONDS = 1.0
REACH_SECONDS = 10.0  # a worker that cannot be reached within this time is not watched (firewall)
LAST_WORDS = ("finished", "left", "failed")  # a worker's own notes about its end, after which no death is recorded

_open: weakref.WeakSet[KeepaliveSockets] = weakref.WeakSet()


class KeepaliveSockets:
    """One worker's listening socket and its connections to the next two of `size` workers, which show their deaths.

    A thread watches the connections. None is accepted, read or written; the kernel keeps them open. `key` names the
    optimizer; `place` is this worker's address from `own_host`.
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
        """Connect to the next two workers, whose addresses are in the store, and start to watch the connections."""
        behind = [(self.rank + step) % self.size for step in range(1, self.size)]
        watched, others = behind[:WATCHED], behind[WATCHED:]
        with contextlib.suppress(RuntimeError, StoreLostError):
            watched = [rank for rank in watched if not self._is_refused(rank)]
        Background(self._run, watched, others, name="partreduce-lifelines", stop=self.close).start()

    def close(self) -> None:
        """End the thread and close the sockets; unless this worker has noted its end, others then record its death."""
        self._stop.set()
        self.forget()

    def forget(self) -> None:
        """Close the sockets; a forked child calls it too, since its open copies would hide this process's death."""
        for held in [self._listener, *list(self._connections.values())]:
            with contextlib.suppress(OSError):
                held.close()

    def _run(self, watched: list[int], others: list[int]) -> None:
        """Watch connections to the ranks `watched`; record a death, and watch the next of `others` in its place."""
        known, deadline = set(self._connections), time.monotonic() + REACH_SECONDS
        """Ranks that were connected at some time; before the first connection a refusal means nothing."""
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
        """Wait until a connection ends, at most 1 s, or 0.1 s if some watched workers are not connected yet."""
        poller = select.poll()
        ranks = {held.fileno(): rank for rank, held in self._connections.items()}
        for descriptor in ranks:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(1000 * (1.0 if are_all_connected else LOOK_SECONDS)):
            self._connections.pop(ranks[descriptor]).close()

    def _is_refused(self, rank: int) -> bool:
        """Try to connect to a worker, if its address is known; return whether the connection was refused."""
        noted = self._notes.read(f"address/{rank}")
        if noted is None:
            return False
        host, machine, port = json.loads(noted)
        if host.startswith(("127.", "::1")) and (host, machine) != self._host:
            return True  # another machine's loopback address, which reaches a different process here
        try:
            connection = socket.create_connection((host, port), CONNECT_SECONDS)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        if connection.getsockname() == connection.getpeername():
            connection.close()  # a TCP self-connection: no process listens at this port
            return True
        self._connections[rank] = connection
        return False

    def _note(self, rank: int) -> None:
        """Record that a worker's process is gone, unless that worker or the launcher records its end within 0.5 s."""
        end = time.monotonic() + LAST_WORD_SECONDS
        while time.monotonic() < end:
            has_word = any(self._last_words.read(f"{kind}/{rank}") is not None for kind in LAST_WORDS)
            if has_word or self._deaths.of(rank) is not None:
                return
            time.sleep(LAST_WORD_SECONDS / 4)
        self._closed.propose(
            str(rank), "ended without a word (its connections closed, and its machine refuses new ones)"
        )
        self._deaths.count(CHANGES, 1)


def lifelines_of(store: Store, rank: int, size: int, key: str) -> KeepaliveSockets | None:
    """Return new KeepaliveSockets of worker `rank` of `size`; None without a TCPStore, a known address or a socket."""
    if not isinstance(root_store(store), TCPStore):
        return None
    try:
        return KeepaliveSockets(store, rank, size, key, own_host(store))
    except (UnavailableError, OSError):
        return None


def closed_notes(store: Store, key: str) -> Notes:
    """Return the notes in the store in which workers of optimizer `key` record, by rank, which processes are gone."""
    return Notes(store, f"closed/{key}")


def _forget_all() -> None:
    for lifelines in list(_open):
        lifelines.forget()


os.register_at_fork(after_in_child=_forget_all)
