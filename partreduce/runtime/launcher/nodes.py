"""Launch a run over several nodes: node 0's launcher decides, and each other launcher follows over one connection.

On node 0, `supervision` handles failures, notifies workers and ends the rest; node 0 also hosts the store and the group
service. The other launchers fork their workers, print their output, and execute commands. Records are JSON texts, one
per line. TCP keepalive probes a silent connection, so both sides notice a failed node, a cut link or a killed launcher;
a launcher that is only suspended is not noticed.

Both sides prove that they know the run's ID and its secret, if there is one, without sending a secret: the workers' key
is derived from both and from a random number of node 0. An attacker who can change packets is outside the threat model.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self

from partreduce.runtime import environment as env
from partreduce.runtime.launcher.log_multiplexer import write_line
from partreduce.runtime.launcher.processes import Line, Worker
from partreduce.runtime.launcher.signals import reraise_pending
from partreduce.runtime.launcher.supervision import LOOK_SECONDS
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, PartreduceError, UnavailableError

LOOPBACK = "127.0.0.1"
VERSION = 1
DEFAULT_PORT = 29400  # torchrun's
START_SECONDS = 300.0  # timeout for all nodes to connect and import torch (slow over a network file system)
PATIENCE_SECONDS = 3.0  # after this time a waiting node prints which nodes are missing
END_SECONDS = 10.0  # timeout for the other launchers to end after the run
IDLE_SECONDS, ASK_SECONDS, SILENT_SECONDS = 5, 5, 20
"""TCP keepalive: first probe of a silent connection, interval between probes, and time until it counts as lost."""
LONGEST_RECORD = 2**20
TAKEN = "is taken by another launcher"  # reason for rejecting a node with a rank in use
UNSENT = (env.RUN_SECRET, env.GENERATOR_KEYS, env.SCHEDULE)  # variables that each launcher sets itself


class Endpoint(NamedTuple):
    """Host and port at which all nodes reach node 0."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST`, `HOST:PORT` or `[IPv6]:PORT`, as torchrun does. Raises InputError for any other text."""
        host, sign, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
        name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not _is_host(name) or (sign and not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16)):
            raise InputError(f"--rdzv-endpoint {text!r}: name where all nodes reach node 0, as HOST:PORT")
        return cls(name, int(port or DEFAULT_PORT))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(name: str) -> bool:
    """Return whether a text is well-formed as a host name or an address; it need not exist."""
    try:
        return bool(name.encode("idna")) and not set("[] \t\n/\0") & set(name)
    except UnicodeError:  # an empty or too long label
        return False


def same_on_all(schedule: str, **options: object) -> dict[str, str]:
    """Return the settings that must be equal on all nodes, as texts by option name; `schedule` (a text) is hashed."""
    digest = hashlib.sha256(schedule.encode()).hexdigest()[:12] if schedule else "none"
    return {f"--{name.replace('_', '-')}": str(value) for name, value in options.items()} | {"--schedule": digest}


def key_of(run_id: str) -> bytes:
    """Return the key that all launchers of a run share, derived from the run's ID and PARTREDUCE_RUN_SECRET."""
    return hashlib.sha256(f"{os.environ.get(env.RUN_SECRET, '')}\0{run_id}".encode()).digest()


def derive_key(key: bytes, *parts: object) -> str:
    """Return a keyed hash (HMAC) of `parts`, which only holders of the key can compute."""
    return hmac.new(key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def is_proof(text: str, expected: str) -> bool:
    """Return whether a launcher's proof that it knows the key equals the `expected` one; takes constant time."""
    return hmac.compare_digest(text.encode(errors="replace"), expected.encode())


def listen(address: str, port: int = 0) -> tuple[socket.socket, str]:
    """Listen on the loopback address if `address` is that, else on all addresses; `port` 0 chooses a free one.

    Returns the socket and the loopback address of its family (IPv4 or IPv6).
    """
    here, family = ("::1", socket.AF_INET6) if ":" in address else (LOOPBACK, socket.AF_INET)
    return socket.create_server((here if here == address else "", port), family=family, backlog=4096), here


class Connection:
    """Connection to another launcher, for JSON records; `problem` says why it is closed, empty while it is open."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(ASK_SECONDS)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, IDLE_SECONDS),
            (socket.TCP_KEEPINTVL, ASK_SECONDS),
            (socket.TCP_KEEPCNT, SILENT_SECONDS // ASK_SECONDS),
            (socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000),
        ):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self.socket, self.records, self.problem = connected, deque[list[Any]](), ""
        self.nonce = secrets.token_hex(16)
        self.node: _Node | None = None
        self._rest = b""

    def send(self, *record: object) -> None:
        try:
            self.socket.sendall(json.dumps(record).encode() + b"\n")
        except OSError as error:
            self.problem = self.problem or reason_of(error)

    def read(self) -> None:
        try:
            chunk = self.socket.recv(2**16)
            self.problem = self.problem or ("" if chunk else "the other side has ended it")
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self.records += [record for record in map(json.loads, lines) if record and isinstance(record, list)]
            if len(self._rest) > LONGEST_RECORD:
                raise ValueError
        except OSError as error:
            if error.errno is not None:  # otherwise a timeout
                self.problem = self.problem or reason_of(error)
        except (ValueError, RecursionError):
            self.problem = "the other side is no launcher of partreduce"

    def next(self, until: float = float("inf")) -> list[Any] | None:
        """Return the next record; None once the connection is closed or the time `until` has passed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while not self.records and not self.problem and time.monotonic() < until:
                reraise_pending()
                if selector.select(LOOK_SECONDS):
                    self.read()
        return self.records.popleft() if self.records else None

    def close(self) -> None:
        self.socket.close()


def reason_of(error: OSError) -> str:
    """Return a short description of an OSError."""
    return error.strerror or str(error) or type(error).__name__


@dataclass(slots=True)
class RemoteWorker(Worker):
    """A worker on another node, whose launcher forwards signals and has `reported` the exit code of restart `start`."""

    node: _Node
    start: int = 0  # 0 for the first process of this rank, else the number of the restart
    reported: int | None = None  # exit code reported by that node's launcher

    def reap(self) -> bool:
        self.code = self.reported
        if self.reported is None and self.node.is_gone:
            self.code = UnavailableError.exit_code
            self.lost = f"was lost with node {self.node.rank} (its connection ended: {self.node.problem})"
        return self.code is not None

    def signal(self, number: signal.Signals) -> None:
        self.node.connection.send("signal", self.rank, self.start, int(number))

    def give_up(self) -> None:
        if not self.node.is_gone:
            self.node.was_evicted = True
            self.node.connection.send("given up")
            end = "what runs there ends by itself when it does again"
            write_line(f"node {self.node.rank} does not answer; {end}")


@dataclass(slots=True, eq=False)
class _Node:
    """Node 0's record of another node: connection, workers, the attempt for which it is `ready`, and its `refusal`."""

    rank: int
    num_workers: int
    connection: Connection
    workers: dict[int, RemoteWorker] = field(default_factory=dict)  # workers of the current attempt
    ready: int = 0  # the attempt for which its processes are prepared
    refusal: str = ""
    was_evicted: bool = False  # its connection stands, so that its launcher hears that when it runs again

    @property
    def problem(self) -> str:
        """Why the node takes no part any more, such as a closed connection; empty if it takes part."""
        return "it did not answer" if self.was_evicted else self.connection.problem

    @property
    def is_gone(self) -> bool:
        return bool(self.problem)

    def read_records(self, attempt: int) -> None:
        """Process records of the node's launcher; ignore reports of exits that are not from attempt `attempt`."""
        while self.connection.records:
            match self.connection.records.popleft():
                case ["ready", int(number)]:
                    self.ready = number
                case ["ended", int(number), int(rank), int(start), int(code), complained] if number == attempt:
                    if (worker := self.workers[rank]).start == start:
                        worker.reported, worker.has_complained = code, bool(complained)
                case ["refused", str(reason)]:
                    self.refusal = reason


class Nodes:
    """The other nodes, as node 0's launcher manages them; it accepts their launchers' connections during the run.

    `facts` are the settings of `same_on_all`. `placement` says which workers run on which node, by default consecutive
    ranks; `num_workers` is the expected total, if known, on all `num_nodes` nodes, node 0 included.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        facts: Mapping[str, str],
        run_id: str,
        *,
        num_nodes: int,
        placement: Cluster | None,
        num_workers: int | None,
    ) -> None:
        self.address, self.secret, self.generator_key = endpoint.host, "", ""
        self._endpoint, self._facts, self._key, self._num_nodes = endpoint, dict(facts), key_of(run_id), num_nodes
        self._placement, self._num_workers, self._attempt = placement, num_workers, 0
        self._nodes = dict[int, _Node]()
        self._mismatch, self._has_ended = "", False
        try:
            self._listening, _ = listen(*endpoint)
        except OSError as error:
            raise UnavailableError(
                f"--rdzv-endpoint {endpoint}: node 0 cannot listen there: {reason_of(error)}"
            ) from None
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self.streams = {self._selector.fileno(): b""}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        interrupted = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 70
        code = 0 if error is None else getattr(error, "exit_code", interrupted)
        self.end(code, str(error) if isinstance(error, PartreduceError) else "")
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # a socket
        self._selector.close()

    def take(self, _: int, *, last: bool = False) -> tuple[list[Line], bool]:
        """Read the other launchers' records; return no lines, which they print, and whether more records may follow."""
        self._look(0)
        return [], not last

    def gathered(self, num_workers: int, spares: int) -> Cluster:
        """Wait for all nodes, and have each prepare its workers and `spares` further processes for the next attempt.

        `num_workers` is node 0's. Returns which ranks run on which node. Raises InputError for an unexpected total.
        """
        self._attempt += 1
        self._mismatch = ""  # a node rejected during the last attempt does not affect this one
        for node in self._nodes.values():
            if node.was_evicted:
                with contextlib.suppress(OSError):  # it has been closed
                    node.connection.socket.shutdown(socket.SHUT_RDWR)  # so that the node connects again
        self._nodes = {rank: node for rank, node in self._nodes.items() if not node.is_gone}
        self._wait("to connect", lambda rank: rank in self._nodes)
        sizes = [num_workers, *(self._nodes[rank].num_workers for rank in range(1, self._num_nodes))]
        if self._num_workers not in (None, sum(sizes)):
            raise InputError(
                f"--nproc-per-node: the nodes have {' + '.join(map(str, sizes))} workers; the schedule is for "
                f"{self._num_workers}"
            )
        ends = [0, *accumulate(sizes)]
        cluster = self._placement or Cluster.irregular([list(range(*part)) for part in pairwise(ends)])
        nonce = secrets.token_hex(32)
        self.secret, self.generator_key = (derive_key(self._key, name, nonce) for name in ("run", "generator"))
        ranks = [list(cluster.workers_of(node)) for node in range(self._num_nodes)]
        for node in self._nodes.values():
            node.workers = {rank: RemoteWorker(rank, node) for rank in ranks[node.rank]}
            node.connection.send("prepare", self._attempt, ranks, spares, nonce)
        return cluster

    def prepared(self) -> list[RemoteWorker]:
        """Wait until all other nodes can start their workers, and return these workers."""
        self._wait("to start its workers", lambda rank: self._nodes[rank].ready == self._attempt)
        return [worker for node in self._nodes.values() for worker in node.workers.values()]

    def release(self, variables: Mapping[str, str]) -> None:
        """Start the workers of all other nodes, with these environment variables in addition to their own."""
        kept = {name: value for name, value in variables.items() if name not in UNSENT}
        for node in self._nodes.values():
            node.connection.send("go", kept)

    def started(self, rank: int, number: int) -> RemoteWorker | None:
        """Start the replacement of worker `rank` on its node, number `number` of the run; None if that node is gone."""
        node = next((node for node in self._nodes.values() if rank in node.workers), None)
        if node is None or node.is_gone:  # None if the node reconnected, to wait for the next attempt
            return None
        node.workers[rank] = RemoteWorker(rank, node, number)
        node.connection.send("start", rank, number)
        return node.workers[rank]

    def end_attempt(self) -> None:
        for node in self._nodes.values():
            node.connection.send("over")

    def end(self, code: int, reason: str = "") -> None:
        """End the run on all other nodes with this exit code and `reason`; wait until their launchers have ended."""
        if self._has_ended:
            return
        self._has_ended = True
        for node in self._nodes.values():
            node.connection.send("end", code, reason)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline and any(not node.is_gone for node in self._nodes.values()):
            self._look(LOOK_SECONDS)

    def _wait(self, what: str, has_done: Callable[[int], bool]) -> None:
        start, has_spoken = time.monotonic(), False
        while missing := [rank for rank in range(1, self._num_nodes) if not has_done(rank)]:
            reraise_pending()
            self._look(LOOK_SECONDS)
            if self._mismatch:
                raise InputError(self._mismatch)
            for node in self._nodes.values():
                if node.refusal:
                    raise InputError(f"node {node.rank}: {node.refusal}")
                if node.is_gone and what != "to connect":
                    raise UnavailableError(f"node {node.rank}: was lost before its workers started ({node.problem})")
            names = " and ".join(f"node {rank}" for rank in missing)
            if time.monotonic() > start + START_SECONDS:
                raise UnavailableError(f"{names}: node 0 waited {START_SECONDS:g} s at {self._endpoint} for it {what}")
            if not has_spoken and time.monotonic() > start + PATIENCE_SECONDS:
                has_spoken = True
                write_line(f"node 0 waits at {self._endpoint} for {names} {what}")

    def _look(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                with contextlib.suppress(OSError):
                    connection = Connection(self._listening.accept()[0])
                    self._selector.register(connection.socket, selectors.EVENT_READ, connection)
                    connection.send("partreduce", VERSION, connection.nonce)
                continue
            connection = key.data
            connection.read()
            if connection.node is None and connection.records:
                self._answer(connection, connection.records.popleft())
            if connection.node is not None:
                connection.node.read_records(self._attempt)
            if connection.problem:
                self._selector.unregister(connection.socket)
                connection.close()

    def _answer(self, connection: Connection, record: list[Any]) -> None:
        match record:
            case ["join", int(rank), int(size), dict(facts), str(nonce), str(proof)]:
                reason = self._rejection_reason(rank, size, facts)
                if not is_proof(proof, derive_key(self._key, "join", connection.nonce, *record[1:5])):
                    reason = "its --rdzv-id or PARTREDUCE_RUN_SECRET is not that of node 0"
                elif reason:
                    self._mismatch = self._mismatch or ("" if TAKEN in reason else f"node {rank}: {reason}")
            case _:
                reason = "it is no launcher of this version of partreduce"
        if reason:
            connection.send("refused", reason)
            connection.problem = "it was refused"
            return
        connection.node = self._nodes[rank] = _Node(rank, size, connection)
        connection.send("joined", derive_key(self._key, "joined", nonce))

    def _rejection_reason(self, rank: int, size: int, facts: Mapping[str, str]) -> str:
        for name, value in self._facts.items():
            if (other := facts.get(name)) != value:
                differs = (
                    f"{name} {other}, and node 0 has {value}" if name != "--schedule" else f"another {name} than node 0"
                )
                return f"it has {differs}; give every node the same command"
        if not 0 < rank < self._num_nodes or (rank in self._nodes and not self._nodes[rank].is_gone):
            return f"--node-rank {rank} {TAKEN}; give each node its own"
        if self._placement is not None and size != (expected := len(self._placement.workers_of(rank))):
            return f"it has {size} workers; its node of the schedule has {expected}"
        return ""
