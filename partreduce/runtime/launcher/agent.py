"""The launcher's part on another host: forks the workers there and does what the launcher says, through ssh.

It reads its standard input and writes to its standard output, which ssh carries. To the launcher go records, each a
JSON text behind the control character RS and before a line feed (RFC 7464), so that a shell's greeting is told apart.
It decides nothing: what a failure means for the run is the launcher's to say (see `supervision`).

It ends, and its workers with it, when the connection or the launcher ends. Where the network is cut, nothing arrives
that says so; so it holds a TCP connection to the run's store, on which the kernel asks whether the other side is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from partreduce.runtime.environment import MASTER_ADDR, SCHEDULE, TORCH_CPP_LOG_LEVEL
from partreduce.runtime.launcher.fresh_start import fill_standard_descriptors
from partreduce.runtime.launcher.interpreter_end import flush_everything
from partreduce.runtime.launcher.launch import Spares, import_once, release_workers, start_worker, worker_env
from partreduce.runtime.launcher.orphans import CleanupProcess, end_groups, orphans_ended
from partreduce.runtime.launcher.signals import Terminated, held, raise_unheard, terminable
from partreduce.runtime.launcher.supervision import Child, Line, complete_lines, end_all
from partreduce.runtime.transport.work import Background
from partreduce.topo.cluster import Cluster

RECORD = "\x1e"
"""Begins a record for the launcher."""
IDLE_SECONDS, ASK_SECONDS, ASKS = 5, 5, 4
"""The kernel asks a silent connection's other side after so long, then every few seconds, and gives up at last."""
CONNECT_SECONDS = 20.0


def main() -> int:
    """Serve one run."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with terminable(), orphans_ended():
            os.environ.setdefault(TORCH_CPP_LOG_LEVEL, "ERROR")  # which torch reads when it is imported
            import_once()
            fill_standard_descriptors()
            # The address from which the launcher came: this host can reach it there.
            _say("hello", os.environ.get("SSH_CONNECTION", "").partition(" ")[0])
            orders = {0: b""}
            if (job := _awaited(orders)) is not None:
                _serve(job, orders)
    except Terminated:
        pass
    except BrokenPipeError:  # the connection ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python flushes at its end
    return 0


def _awaited(orders: dict[int, bytes]) -> Any:  # noqa: ANN401 - a JSON value
    """What the launcher says next, which says nothing else meanwhile; None if it is gone."""
    lines, is_open = complete_lines(orders, 0, last=False)
    while is_open and not lines:
        lines, is_open = complete_lines(orders, 0, last=False)
    return json.loads(lines[0]) if lines else None


def _serve(job: dict[str, Any], orders: dict[int, bytes]) -> None:
    """Run the workers of this host until the launcher closes the connection, or is gone."""
    os.environ.update(job["settings"])
    script = Path(job["script"])
    try:
        os.chdir(job["folder"])
    except OSError as error:
        _refuse(f"folder {job['folder']}: {error.strerror}; the run needs the same folders on every host")
    if not script.is_file():
        _refuse(f"{script}: is not a file there; the run needs the script at the same place on every host")
    address, port = job["environment"][MASTER_ADDR], job["port"]
    nodes = Cluster.irregular(job["nodes"])
    ranks = nodes.workers_of(job["node"])
    workers: list[Child] = []
    with contextlib.ExitStack() as stack:
        try:
            lifeline = stack.enter_context(socket.create_connection((address, port), CONNECT_SECONDS))
        except OSError as error:
            _refuse(
                f"the run's store at {address}:{port}, on the host of `partreduce run`, cannot be reached ({error}); "
                "open its ports to this host, or give an address that all hosts reach by --address"
            )
        environment = dict(job["environment"])
        if job["schedule"] is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="partreduce-run-"))
            copy = Path(folder, "schedule.json")
            copy.write_text(job["schedule"], encoding="utf-8")
            environment[SCHEDULE] = str(copy)
        guardian = CleanupProcess()
        try:
            flush_everything()

            def variables(rank: int) -> dict[str, str]:
                return worker_env(rank, nodes, job["threads"], beside=len(ranks)) | environment

            for rank in [*ranks, *[ranks[0]] * job["restarts"]]:
                start_worker(workers, guardian, script, job["args"], variables(rank))
            _keep_alive(lifeline)
            _say("ready")
            if _awaited(orders) is None:
                return
            first = workers[: len(ranks)]
            spares = Spares(workers[len(ranks) :], variables, port)
            with held():  # signals are for this thread, and the other begins as this one is
                by_rank = {worker.rank: worker for worker in first}
                Background(_obey, by_rank, spares, orders, lifeline, name="orders").start()
            release_workers(first, port)
            _report(workers)
        finally:
            with held():
                end_groups({worker.pid for worker in workers})
                end_all(workers)
                guardian.close()


def _report(workers: Sequence[Child]) -> None:
    """Tell the launcher what the workers write, and who ended with what, until this process is asked to end."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            for descriptor in worker.streams:
                selector.register(descriptor, selectors.EVENT_READ, worker)
        while True:
            raise_unheard()
            for key, _ in selector.select(timeout=0.05):
                lines, is_open = key.data.take(key.fd)
                _pass_on(lines)
                if not is_open:
                    selector.unregister(key.fd)
            for worker in workers:
                if worker.go < 0 and worker.code is None and worker.reap():  # not one that waits to be started
                    for descriptor in worker.streams:
                        _pass_on(worker.take(descriptor, last=True)[0])
                    _say("ended", worker.rank, worker.code)


def _pass_on(lines: Sequence[Line]) -> None:
    for line in lines:
        _say("line", line.worker.rank, line.errors, line.text)


def _obey(workers: dict[int, Child], spares: Spares, orders: dict[int, bytes], lifeline: socket.socket) -> None:
    """A thread's life: send signals and start workers as the launcher says; ask this process to end when it is gone."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(lifeline, selectors.EVENT_READ)
        is_open = True
        while is_open:
            for key, _ in selector.select():
                if key.fileobj is lifeline:
                    is_open = False  # nothing is ever said on it, so this is its end
                    continue
                lines, still = complete_lines(orders, 0, last=False)
                is_open &= still
                for word, rank, number in map(json.loads, lines):
                    if word == "signal":
                        workers[rank].signal(signal.Signals(number))
                    elif (started := spares.started(rank, number)) is not None:
                        workers[rank] = started
    os.kill(os.getpid(), signal.SIGTERM)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASKS)


def _say(*record: object) -> None:
    """One record for the launcher."""
    sys.stdout.write(f"{RECORD}{json.dumps(record)}\n")
    sys.stdout.flush()


def _refuse(reason: str) -> NoReturn:
    """Tell the launcher why this host cannot take part."""
    _say("refused", reason)
    raise Terminated(signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main())
