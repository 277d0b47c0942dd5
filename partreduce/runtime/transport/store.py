"""Access the run's key-value store, for short texts (notes) that workers leave for each other, and find addresses.

Calls through this module have a deadline, and raise StoreLostError if the store is gone. Only `rendezvous`, and torch
when groups connect, use the store directly.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from partreduce.runtime.environment import GLOO_SOCKET_IFNAME, MASTER_ADDR
from partreduce.runtime.transport.torch_api import PrefixStore, Store, TCPStore
from partreduce.runtime.transport.waiting import GLANCE_SECONDS, Deadline, PeerWatch, SignsOfLife
from partreduce.runtime.transport.work import Background
from partreduce.topo.errors import StoreLostError, UnavailableError

Answer = TypeVar("Answer")

DEATHS = "partreduce/dead"  # prefix in the root store under which the launcher records how a worker ended, by rank
STAGES = "partreduce/stage"  # prefix under which each worker records its stage, for the launcher's message if it dies
NOT_STARTED = "has not started a round"
"""Text of a worker's first heartbeat; before the next one it may run many rounds."""
LAST_WORDS_SECONDS = 0.2  # how late a worker's last note may arrive after its death
CHANGES = "changes"  # counter of failure notes, under DEATHS; waiting workers read the notes when it has grown
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.002, 0.02
SHARE = 8  # a note is read late by at most this fraction of the wait (see `Pauses`)


class StoreLine:
    """A separate connection to torch's key-value store; queries end after `timeout` seconds with StoreLostError.

    torch's client has no deadline for most calls, and a call that blocks delays all others on that client. So a thread
    with its own client, made by `connect`, sends the queries. After an error or timeout the connection is not used
    again, since a restarted store would be empty. `place` is the store's address, for messages.
    """

    def __init__(self, place: str, connect: Callable[[], Store], timeout: float) -> None:
        self.place, self.timeout = place, timeout
        self.problem: str | None = None  # why the store is lost; None while it answers
        self._connect = connect
        self._questions: queue.SimpleQueue[tuple[Callable[[Store], Any], list[Any]] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        Background(self._run, name="partreduce-store", stop=self.close).start()

    def ask(self, action: Callable[[Store], Answer]) -> Answer:
        answers: list[Answer] = []
        self._questions.put((action, answers))
        deadline = Deadline(self.timeout)
        with self._changed:
            while not answers and self.problem is None:
                self._changed.wait(min(GLANCE_SECONDS, max(0.0, deadline.left)))
                if not answers and deadline.is_over:
                    self._lose(f"it gave no answer for {self.timeout:g} s")
        if answers:
            return answers[0]
        raise self.error()

    def error(self) -> StoreLostError:
        return StoreLostError(
            f"the store at {self.place} is gone ({self.problem}): the launcher or rank 0 hosts it, and without it "
            "workers cannot agree on anything; start the run again from its last checkpoint"
        )

    def close(self) -> None:
        self._lose("this process ends")
        self._questions.put(None)

    def _lose(self, problem: str) -> None:
        with self._changed:
            self.problem = self.problem or problem
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            store = self._connect()
            while self.problem is None and (question := self._questions.get()) is not None:
                action, answers = question
                answer = action(store)
                with self._changed:
                    answers.append(answer)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - else the caller of `ask` would wait until the timeout
            self._lose((str(error).strip().splitlines() or ["the connection broke"])[0][:120])


class NamedPrefixStore(PrefixStore):  # type: ignore[misc]  # torch's stubs do not export it
    """A PrefixStore over `below` whose prefix can be read (torch's cannot), so that a StoreLine can use the same keys.

    If workers are sharded replicas, `processes` maps each worker to the launcher's ranks of its processes; the first
    one connects to other replicas through this store.
    """

    def __init__(self, prefix: str, below: Store, processes: dict[int, list[int]] | None = None) -> None:
        super().__init__(prefix, below)
        self.prefix, self.below = prefix, below
        self.processes = processes or {}


_lines: dict[tuple[str, int] | int, tuple[StoreLine, Store]] = {}
"""Connections by address, or by the store's identity if torch hides its prefix; each with a reference to the store."""
_making = threading.Lock()
os.register_at_fork(after_in_child=_lines.clear)  # a child has neither the thread nor its own connection


def line_to(store: Store) -> tuple[StoreLine, str] | None:
    """Return this process's separate connection to a store, and the store's key prefix; None if it allows none."""
    root: Any = root_store(store)
    if not isinstance(root, TCPStore):
        return None
    base: Any = store
    prefix = ""
    while isinstance(base, NamedPrefixStore):  # these prefixes become part of the keys
        base, prefix = base.below, f"{base.prefix}/{prefix}"
    if base is not root and not hasattr(base, "clone"):
        return None  # older releases of torch cannot reconnect under a hidden prefix
    name: tuple[str, int] | int = (root.host, root.port) if base is root else id(base)
    with _making:
        if name not in _lines:
            timeout = root.timeout

            def connect() -> Store:  # keeps a reference, since a forked child must not destroy the store
                bare = partial(TCPStore, root.host, root.port, None, False, timeout, wait_for_workers=False)
                other: Store = bare() if base is root else base.clone()
                return other

            _lines[name] = StoreLine(f"{root.host}:{root.port}", connect, timeout.total_seconds()), base
        return _lines[name][0], prefix


def fresh_line(store: Store, timeout: float) -> None:
    """Set the timeout, in seconds, of the separate connection to this store; discard connections to lost stores."""
    with _making:
        for name in [name for name, (line, _) in _lines.items() if line.problem is not None]:
            del _lines[name]
    if (known := line_to(store)) is not None:
        known[0].timeout = timeout


def root_store(store: Store) -> Store:
    """Return the store below all prefixes, in which the launcher records failed workers."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def processes_of(store: Store, worker: int) -> list[int]:
    """Return the launcher's ranks of a worker's processes: one, or several for a sharded replica."""
    while isinstance(store, NamedPrefixStore):
        if worker in store.processes:
            return store.processes[worker]
        store = store.below
    return [worker]


class Pauses:
    """Pauses between a waiting worker's queries to the store; they grow with the wait, since workers share cores."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def sleep(self) -> None:
        waited = time.monotonic() - self._start
        time.sleep(min(LONGEST_POLL_SECONDS, max(POLL_SECONDS, waited / SHARE)))


class Notes:
    """Texts in the store (notes), by which workers inform each other; each key is `prefix`, "/" and a method's `key`.

    Queries use the process's StoreLine, with a deadline; with `own_server` (this process hosts the store) `store`
    itself.
    """

    def __init__(self, store: Store, prefix: str, *, own_server: bool = False) -> None:
        self._store, self._prefix = store, prefix
        known = None if own_server else line_to(store)
        # The separate connection has no prefix, so the prefixes of the given store are part of its keys.
        self.line = None if known is None else known[0]
        self._keys_begin = prefix if known is None else known[1] + prefix

    def write(self, key: str, text: str) -> None:
        self._at(lambda store, at: store.set(at[0], text), key)

    def read(self, key: str) -> str | None:
        return self._at(lambda store, at: store.get(at[0]).decode() if store.check(at) else None, key)

    def read_all(self, keys: Sequence[str]) -> list[str] | None:
        """Return the notes `keys` if all exist, else None; takes two queries."""

        def read(store: Store, places: list[str]) -> list[str] | None:
            bare: Any = store  # torch's stubs lack both
            if not store.check(places):
                return None
            found = bare.multi_get(places) if bare.has_extended_api() else [store.get(place) for place in places]
            return [text.decode() for text in found]

        return self._at(read, *keys)

    def wait_for(
        self,
        key: str,
        limit: float | None = None,
        *,
        lacks: str = "",
        abort_reason: Callable[[], str | None] = lambda: None,
    ) -> str:
        """Return a note, waiting up to `limit` seconds for it, by default the store's timeout.

        Raises UnavailableError if it does not exist by then, or if `abort_reason`, called repeatedly, returns why to
        stop waiting; `lacks` describes in the message what is missing.
        """
        bare: Any = self._store  # torch's stubs lack its timeout
        limit = limit or (bare.timeout.total_seconds() if self.line is None else self.line.timeout)
        deadline, pauses = Deadline(limit), Pauses()
        while (text := self.read(key)) is None:
            if (why := abort_reason()) is not None or deadline.is_over:
                lacks = lacks or f"store: no worker left the note {self.place(key)!r}"
                raise UnavailableError(f"{lacks} within {limit:g} s" if why is None else f"{lacks}: {why}")
            pauses.sleep()
        return text

    def has(self, *keys: str) -> bool:
        """Return whether all these notes exist; takes one query."""
        return self._at(lambda store, at: store.check(at), *keys)

    def remove(self, key: str) -> None:
        self._at(lambda store, at: store.delete_key(at[0]), key)

    def count(self, key: str, increase: int = 0) -> int:
        """Add `increase` to a counter in the store that all workers share; return its new value."""
        return self._at(lambda store, at: store.add(at[0], increase), key)

    def propose(self, key: str, text: str) -> str:
        """Write a note unless it exists; return the text of the worker that wrote it first."""
        return self._at(lambda store, at: store.compare_set(at[0], "", text).decode(), key)

    @property
    def problem(self) -> str | None:
        """Why the store is gone, as a sentence; None if it is not known to be gone."""
        line = self.line
        return None if line is None or line.problem is None else str(line.error())

    def place(self, key: str) -> str:
        """Return a note's full key in the store, with all prefixes that can be read."""
        return f"{self._keys_begin}/{key}"

    def _at(self, action: Callable[[Store, list[str]], Answer], *keys: str) -> Answer:
        """Return `action(store, full keys)` for the notes `keys`, run by the separate connection if there is one."""
        places = [self.place(key) for key in keys]
        return self._ask(lambda store: action(store, places))

    def _ask(self, action: Callable[[Store], Answer]) -> Answer:
        return action(self._store) if self.line is None else self.line.ask(action)


class Deaths(Notes):
    """The launcher's records of dead workers in the store."""

    def __init__(self, store: Store) -> None:
        super().__init__(root_store(store), DEATHS)
        self._workers = store

    def of(self, worker: int) -> str | None:
        """Return how a worker (or a process of a sharded replica) died, such as "was killed by signal 9", or None."""
        processes = processes_of(self._workers, worker)
        deaths = ((rank, self.read(str(rank))) for rank in processes)
        named = (death if processes == [worker] else f"(its rank {rank}) {death}" for rank, death in deaths if death)
        return next(named, None)


def deaths_of(store: Store, members: Iterable[int]) -> str | None:
    """Return how one of `members` died, as a clause; None if the launcher recorded no death among them."""
    notes = Deaths(store)
    return next((f"worker {rank} {death}" for rank in members if (death := notes.of(rank)) is not None), None)


def watch_for_deaths(store: Store, members: Sequence[int]) -> Callable[[], str | None]:
    """Return a function to call repeatedly during a wait for `members`; it returns how one of them died, or None."""
    watch = PeerWatch(SignsOfLife(), members)
    return lambda: deaths_of(store, members) if watch.is_due() else None


def publish_stage(store: Store, rank: int, stage: str, beat: str = "") -> None:
    """Write to the store how far this worker has come (its stage), for the launcher's message if the worker dies.

    `stage` is a predicate such as "connected its groups", `beat` the full key of the worker's heartbeat in the store. A
    query confirms the write, since torch's store does not answer a `set`.
    """
    notes, process = Notes(root_store(store), STAGES), str(processes_of(store, rank)[0])
    notes.write(process, json.dumps([stage, beat]))
    notes.has(process)


def read_stage(store: Store, rank: int) -> str:
    """Return the last stage of a dead worker (see `publish_stage`), as the end of a sentence; for the launcher."""
    notes, deadline = Notes(store, STAGES, own_server=True), time.monotonic() + LAST_WORDS_SECONDS
    while (noted := notes.read(str(rank))) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # torch's store does not confirm a `set`, so a dead worker's note may still arrive
    if noted is None:
        return "before it reached the store of the run (in imports, or before its optimizer was wrapped)"
    stage, place = json.loads(noted)
    sign = json.loads(store.get(place))[1] if place and store.check([place]) else NOT_STARTED
    return f"while it {stage}" + ("" if sign == NOT_STARTED else f"; its last sign: {sign}")


def own_host(store: Store) -> tuple[str, bool]:
    """Return this machine's address for other workers, on the interface towards the store, and whether it is IPv6.

    `GLOO_SOCKET_IFNAME` selects another interface, as for gloo. If the store's host is unknown, it is the loopback
    address. Raises UnavailableError if the interface has no IPv4 address, or the store's host cannot be resolved.
    """
    if interface := chosen_interface():
        return _address_of(interface), False
    if not (master := host_of(store)):
        return "127.0.0.1", False
    try:
        family, _, _, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing: asks the routing table
            return str(probe.getsockname()[0]), family == socket.AF_INET6
    except OSError as error:
        raise UnavailableError(
            f"host {master!r} of the run's store (MASTER_ADDR): cannot be resolved or reached ({error})"
        ) from None


def chosen_interface() -> str:
    """Return the first network interface in `GLOO_SOCKET_IFNAME`; empty if unset."""
    return os.environ.get(GLOO_SOCKET_IFNAME, "").split(",")[0]


def host_of(store: Store) -> str:
    """Return the name or address of the host of the run's store; empty if unknown."""
    root: Any = root_store(store)
    return root.host if isinstance(root, TCPStore) else os.environ.get(MASTER_ADDR, "")


def _address_of(interface: str) -> str:
    get_address = 0x8915  # SIOCGIFADDR
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", interface[:15].encode()))
    except OSError as error:
        raise UnavailableError(f"GLOO_SOCKET_IFNAME {interface!r}: has no IPv4 address ({error.strerror})") from None
    return socket.inet_ntoa(answer[20:24])
