"""Launch the workers of a node other than node 0: fork them, print their output, and execute node 0's commands."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from partreduce.runtime import environment as env
from partreduce.runtime.launcher.launch import (
    Spares,
    check_script,
    check_threads_ended,
    threads_of_process,
    worker_variables,
)
from partreduce.runtime.launcher.log_multiplexer import LogMultiplexer, write_line
from partreduce.runtime.launcher.nodes import (
    ASK_SECONDS,
    PATIENCE_SECONDS,
    START_SECONDS,
    TAKEN,
    VERSION,
    Connection,
    Endpoint,
    derive_key,
    is_proof,
    key_of,
    reason_of,
)
from partreduce.runtime.launcher.process_cleanup import orphans_ended
from partreduce.runtime.launcher.processes import Child, Line, Worker, fork_workers, import_once
from partreduce.runtime.launcher.signals import raise_on_sigterm, reraise_pending
from partreduce.runtime.launcher.supervision import LOOK_SECONDS, Shutdown, ask_children_to_end, end_children, watch
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import EvictedError, InputError, UnavailableError


class _LostError(Exception):
    """Error that ends an attempt: the connection to node 0's launcher has ended."""


class _Orders:
    """Executes node 0's commands during one attempt (a run of all workers); `workers` are those that it has started.

    `first` are forked processes, one per worker of this node, `spares` further ones to replace failed workers; all wait
    to be started. `variables` returns the environment variables of a rank.
    """

    def __init__(
        self,
        connection: Connection,
        attempt: int,
        *,
        first: Sequence[Child],
        spares: Sequence[Child],
        variables: Callable[[int], dict[str, str]],
        generator_key: str,
    ) -> None:
        self.workers: list[Worker] = []
        self.streams = {connection.socket.fileno(): b""}
        self._connection, self._attempt, self._variables = connection, attempt, variables
        self._first, self._spares, self._generator_key = first, spares, generator_key
        self._starter: Spares | None = None
        self._started = dict[tuple[int, int], Worker]()
        """Workers by rank and number of the restart, which identify a process to node 0."""
        self._is_over = False

    def take(self, _: int, *, last: bool = False) -> tuple[list[Line], bool]:
        if not last:
            self._connection.read()
        return [], not self._connection.problem

    def collect(self, shutdown: Shutdown) -> bool:
        while self._connection.records and not self._is_over:
            self._obey()
        if self._connection.problem and not self._is_over:
            raise _LostError(self._connection.problem)
        for (rank, start), worker in self._started.items():
            if worker.code is None and worker.reap():
                complained = worker.has_complained or worker.has_unread_errors()
                self._connection.send("ended", self._attempt, rank, start, worker.code, complained)
                if worker.code:
                    ask_children_to_end(worker)
        end_children(self.workers)
        shutdown.escalate(self.workers)
        has_ended = shutdown.request and all(worker.code is not None for worker in self.workers)
        return not (self._is_over or has_ended)

    def _obey(self) -> None:
        match self._connection.records[0]:
            case ["end" | "given up", *_]:
                self._is_over = True
                return  # left in the queue for `_follow_orders`
            case ["over"]:
                self._is_over = True
            case ["go", dict(further)]:
                if env.GENERATOR in further:
                    further[env.GENERATOR_KEYS] = self._generator_key
                for worker in self._first:
                    worker.release(further)
                self.workers += self._first
                self._started |= {(worker.rank, 0): worker for worker in self._first}
                self._starter = Spares(self._spares, self._variables, further)
            case ["signal", int(rank), int(start), int(number)]:
                if (rank, start) in self._started:
                    self._started[rank, start].signal(signal.Signals(number))
            case ["start", int(rank), int(number)]:
                if self._starter is not None and (child := self._starter.started(rank, number)) is not None:
                    self.workers.append(child)
                    self._started[rank, number] = child
        self._connection.records.popleft()


@dataclass(frozen=True)
class Follower:
    """Launcher of a node other than node 0: runs `script` in `num_workers` processes, as node 0 at `endpoint` commands.

    `rank` is this node's number; `facts` are the settings that must equal node 0's (`same_on_all`). `may_restart`: if
    the connection to node 0 ends, it waits for the next attempt.
    """

    endpoint: Endpoint
    rank: int
    num_workers: int
    facts: Mapping[str, str]
    run_id: str
    script: Path
    args: Sequence[str]
    threads: int | None
    environment: Mapping[str, str]
    may_restart: bool

    def run(self) -> int:
        """Follow node 0's commands until the run ends; return its exit code.

        Raises:
            EvictedError: this launcher was suspended for so long that node 0 continued the run without its node.
            UnavailableError: node 0 is gone, or cannot be reached.
            InputError: node 0 has other settings, or the script is not valid.
        """
        with raise_on_sigterm():
            import_once()
            before, problem = threads_of_process(), ""
            while True:
                connection = self._connect(problem)
                try:
                    return self._follow_orders(connection, before)
                except _LostError as lost:
                    problem = f"the connection to node 0 at {self.endpoint} ended: {lost}"
                    if not self.may_restart:
                        raise UnavailableError(f"node {self.rank}: {problem}; its workers were ended") from None
                    write_line(f"node {self.rank}: {problem}; its workers were ended")
                finally:
                    connection.close()

    def _connect(self, problem: str) -> Connection:
        start, has_spoken, comes_back = time.monotonic(), False, bool(problem)
        while time.monotonic() < start + START_SECONDS:
            reraise_pending()
            if not has_spoken and time.monotonic() > start + PATIENCE_SECONDS:
                has_spoken = True
                write_line(f"node {self.rank} waits for node 0 at {self.endpoint} ({problem})")
            try:
                connection = Connection(socket.create_connection(self.endpoint, ASK_SECONDS))
            except OSError as error:
                problem = reason_of(error)
                time.sleep(LOOK_SECONDS * 4)
                continue
            with contextlib.ExitStack() as stack:
                stack.callback(connection.close)
                if self._is_accepted(connection, start + START_SECONDS, comes_back=comes_back):
                    stack.pop_all()
                    return connection
            problem = connection.problem or "it does not answer"
            time.sleep(LOOK_SECONDS * 4)
        raise UnavailableError(
            f"node {self.rank}: node 0 cannot be reached at {self.endpoint} within {START_SECONDS:g} s ({problem}); "
            "start the same command there, and name an address and a port that this node reaches"
        )

    def _is_accepted(self, connection: Connection, until: float, *, comes_back: bool) -> bool:
        """Join node 0's run before the time `until`; return False if that failed and may be tried again.

        With `comes_back` it may be tried again while node 0 still holds this node's earlier connection. Raises
        InputError if node 0 rejects this node for another reason, or is no launcher of this version.
        """
        key = key_of(self.run_id)
        match connection.next(until):
            case ["partreduce", int(version), str(nonce)] if version == VERSION:
                fields = [self.rank, self.num_workers, dict(self.facts), connection.nonce]
                connection.send("join", *fields, derive_key(key, "join", nonce, *fields))
            case None if "no launcher" not in connection.problem:
                return False
            case _:
                raise InputError(f"--rdzv-endpoint {self.endpoint}: what answers there is not node 0 of this version")
        match connection.next(until):
            case ["joined", str(proof)] if is_proof(proof, derive_key(key, "joined", connection.nonce)):
                return True
            case ["joined", *_]:
                raise InputError(f"node 0 at {self.endpoint}: has another --rdzv-id or PARTREDUCE_RUN_SECRET")
            case ["refused", str(reason)] if comes_back and TAKEN in reason:
                connection.problem = reason
            case ["refused", str(reason)]:
                raise InputError(f"node {self.rank}: node 0 at {self.endpoint} turned it away: {reason}")
        return False

    def _follow_orders(self, connection: Connection, before: set[str]) -> int:
        try:
            check_script(self.script)
        except InputError as error:
            connection.send("refused", str(error))
            raise
        while (record := connection.next()) is not None:
            match record:
                case ["prepare", int(attempt), list(nodes), int(spares), str(nonce)]:
                    check_threads_ended(before)
                    with orphans_ended():
                        code = self._attempt(connection, attempt, Cluster.irregular(nodes), spares, nonce)
                    if code:
                        return code
                case ["end", int(code), str(reason)]:
                    if reason:
                        write_line(f"node {self.rank}: node 0 ended the run: {reason}")
                    return code
                case ["given up"]:
                    eviction = f"node {self.rank}: did not answer node 0 at {self.endpoint} and was evicted"
                    eviction += "; its workers were ended"
                    if not self.may_restart:
                        raise EvictedError(eviction)  # even if the run has ended since
                    write_line(eviction)  # and wait for the next attempt
        raise _LostError(connection.problem)

    def _attempt(self, connection: Connection, attempt: int, cluster: Cluster, spares: int, nonce: str) -> int:
        """Run this node's workers for one attempt; return an exit code if this launcher was asked to end, else 0.

        `cluster` says which ranks run here, `spares` how many further processes are forked to replace failed workers;
        `nonce`, node 0's random number, makes the attempt's keys unique.
        """
        key, ranks = key_of(self.run_id), cluster.workers_of(self.rank)
        shared = {env.RUN_SECRET: derive_key(key, "run", nonce), **self.environment}
        variables = worker_variables(cluster, ranks, self.threads, shared)
        waiting = [variables(rank) for rank in [*ranks, *ranks[:1] * spares]]
        with fork_workers(self.script, self.args, waiting) as children:
            orders = _Orders(
                connection,
                attempt,
                first=children[: len(ranks)],
                spares=children[len(ranks) :],
                variables=variables,
                generator_key=derive_key(key, "generator", nonce),
            )
            connection.send("ready", attempt)
            shutdown, outlet = Shutdown(), LogMultiplexer()

            def collect() -> bool:
                return orders.collect(shutdown)

            total, here = cluster.num_workers, len(ranks)
            watch(orders.workers, [orders], shutdown, outlet, collect, num_workers=total, num_here=here)
        return shutdown.code
