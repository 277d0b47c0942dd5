"""Launch this machine's workers by forking after torch was imported, in seconds instead of tens of seconds.

Workers see the environment variables that torchrun sets, so an ordinary torch script works too. The launcher hosts the
store, which thus outlives every worker, and notices failures at once. However the launcher ends, none of its child
processes remains (see `process_cleanup`).

torch's elastic agent (torch 2.13) starts each worker in its own interpreter, which imports torch: 8 workers take 14 to
17 s on 2 cores, not 3 to 4 s.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from partreduce.runtime import environment as env
from partreduce.runtime.launcher.log_multiplexer import LogMultiplexer, write_line
from partreduce.runtime.launcher.nodes import LOOPBACK, Nodes, listen
from partreduce.runtime.launcher.process_cleanup import orphans_ended
from partreduce.runtime.launcher.processes import Child, Target, Worker, fork_workers, import_once
from partreduce.runtime.launcher.signals import Terminated, end_requested, raise_on_sigterm
from partreduce.runtime.launcher.supervision import GRACE_SECONDS, Source, supervise
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import EvictedError, FileError, InputError, MissingDependencyError, PartreduceError

if TYPE_CHECKING:
    from partreduce.runtime.elastic.coordinator import FailureRule, Generator
    from partreduce.runtime.transport.torch_api import Store

FINAL = frozenset(error.exit_code for error in (InputError, FileError, MissingDependencyError, EvictedError))
"""Exit codes after which no attempt follows: mistakes that would recur, and success without an evicted worker."""
LONGEST_PAUSE = 60.0  # longest pause in seconds between two attempts, while nodes recover
THREAD_SECONDS = 10.0  # timeout for the threads of an ended attempt


def launch(
    target: Target,
    args: Sequence[str] = (),
    *,
    num_workers: int,
    num_nodes: int = 1,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    grace: float = GRACE_SECONDS,
    patient: bool = False,
    max_failures: int = 0,
    max_restarts: int = 0,
    restarted: Callable[[], object] = lambda: None,
    output: TextIO | None = None,
    nodes: Nodes | None = None,
    generator: Callable[[str, str | None], AbstractContextManager[Generator]] | None = None,
) -> int:
    """Run a script or function in `num_workers` processes; return the exit code of the first that failed, or 0.

    A worker that fails only because another one is missing (exit code 69) is ignored in favor of that other worker's
    exit code. SIGTERM and SIGHUP are passed on to the workers as SIGTERM, and the exit code is 128 plus the signal.

    Args:
        target: the script or function that each worker runs (see `Target`).
        args: the script's arguments.
        num_workers: number of processes on this machine.
        num_nodes: number of nodes to emulate by LOCAL_RANK and LOCAL_WORLD_SIZE; must divide `num_workers`.
        threads: torch threads per worker; by default the cores are divided, at least 1 each.
        environment: further environment variables for the workers.
        grace: seconds between the first failure, or a signal, and the end of the other workers.
        patient: whether the others may continue beyond `grace` after a signal has killed a worker.
        max_failures: how many workers may be killed or become silent while the others continue; without a `generator`
            only after all have connected (see `elastic.member`). A worker's own exception still ends the run.
        max_restarts: how many failed workers the run may replace in all; a replacement joins the others.
        restarted: called after each replacement.
        output: stream for the workers' lines, prefixed with their ranks; standard output and error by default.
        nodes: connections to the launchers of the other nodes; this launcher is node 0's.
        generator: function that returns a context manager, which runs a group service; called with the address to
            listen on, and with the key if the nodes have one.
    """
    if num_workers < 1 or num_nodes < 1 or num_workers % num_nodes:
        raise InputError(f"num_nodes: expected a divisor of {num_workers} workers, got {num_nodes}")
    check_script(target)
    try:
        with raise_on_sigterm(), contextlib.ExitStack() as stack:
            cluster, ranks = Cluster.regular(num_nodes, num_workers // num_nodes), tuple(range(num_workers))
            if nodes is not None:
                cluster = nodes.gathered(num_workers, max_restarts)
                ranks = cluster.workers_of(0)
                stack.callback(nodes.end_attempt)
            check_failure_limits(cluster.num_workers, max_failures, max_restarts)
            shared = {**(environment or {}), **({} if generator else failure_environment(max_failures, max_restarts))}
            prepared = _prepare(
                stack, target, args, cluster, ranks,
                threads=threads, environment=shared, num_spares=max_restarts, nodes=nodes, generator=generator,
            )  # fmt: skip
            outlet = LogMultiplexer(output)
            rule = _failure_rule(
                prepared, outlet, patient=patient, max_failures=max_failures, max_restarts=max_restarts,
                restarted=restarted,
            )  # fmt: skip
            sources: list[Source] = [*prepared.mine, *([] if nodes is None else [nodes])]
            return supervise(
                prepared.workers, sources, prepared.store, grace, outlet, rule=rule, release=prepared.release
            )
    except Terminated as ended:
        return ended.exit_code


class _WorkersOfRun(NamedTuple):
    """A prepared run: forked workers on all nodes, which `release` starts; `mine` are those on this machine."""

    workers: list[Worker]
    mine: list[Child]
    store: Store
    generator: Generator | None
    release: Callable[[], None]
    start: Callable[[int, int], Worker | None]
    """Starts the replacement of a failed rank, given the restart's number; returns None if none can be started."""


def _prepare(
    stack: contextlib.ExitStack,
    target: Target,
    args: Sequence[str],
    cluster: Cluster,
    ranks: tuple[int, ...],
    *,
    threads: int | None,
    environment: Mapping[str, str],
    num_spares: int,
    nodes: Nodes | None,
    generator: Callable[[str, str | None], AbstractContextManager[Generator]] | None,
) -> _WorkersOfRun:
    """Fork the workers and start store and group service; closing `stack` ends all of them.

    `ranks` are those of this machine; `num_spares` processes wait to replace failed ones. The rest is as in `launch`.
    """
    address, secret = (LOOPBACK, secrets.token_hex(32)) if nodes is None else (nodes.address, nodes.secret)
    shared = {env.MASTER_ADDR: address, env.RUN_SECRET: secret, **environment}
    variables = worker_variables(cluster, ranks, threads, shared)
    waiting = [variables(rank) for rank in [*ranks, *ranks[:1] * num_spares]]
    processes = stack.enter_context(fork_workers(target, args, waiting))
    # The store's server starts a thread, so it must start after the last fork; the workers wait for its port.
    store, port = serve_store(address)
    further = {env.MASTER_PORT: str(port), env.RUN_ID: f"partreduce-{os.getpid()}"}
    process = None
    if generator is not None:
        process = stack.enter_context(generator(address, None if nodes is None else nodes.generator_key))
        further |= process.environment
    mine, spares = processes[: len(ranks)], Spares(processes[len(ranks) :], variables, further)
    others = [] if nodes is None else nodes.prepared()

    def release() -> None:
        if nodes is not None:
            nodes.release(shared | further)
        for worker in mine:
            worker.release(further)

    def start(rank: int, number: int) -> Worker | None:
        return spares.started(rank, number) if nodes is None or rank in ranks else nodes.started(rank, number)

    workers = sorted([*mine, *others], key=lambda worker: worker.rank)
    return _WorkersOfRun(workers, mine, store, process, release, start)


def check_script(target: Target) -> None:
    """Raise InputError unless the target is a function or an existing script, and not a schedule file."""
    if callable(target):
        return
    if not Path(target).is_file():
        raise InputError(f"{target}: is not a file; name a Python script")
    if Path(target).suffix in (".json", ".yaml", ".yml"):
        raise InputError(
            f"{target}: is no Python script; a schedule goes before the script: --schedule {target} SCRIPT"
        )


def _failure_rule(
    prepared: _WorkersOfRun,
    outlet: LogMultiplexer,
    *,
    patient: bool,
    max_failures: int,
    max_restarts: int,
    restarted: Callable[[], object],
) -> FailureRule[Worker]:
    from partreduce.runtime.elastic import coordinator  # loads torch, as every worker does

    workers = prepared.workers
    if prepared.generator is not None:
        return coordinator.OnRequest(workers, prepared.generator, max_failures, outlet)
    if not max_failures:
        return coordinator.FailureRule(workers, outlet, patient=patient)
    return coordinator.Coordinator(
        workers, prepared.store, max_failures, outlet,
        start=prepared.start, max_restarts=max_restarts, restarted=restarted,
    )  # fmt: skip


def failure_environment(max_failures: int, max_restarts: int) -> dict[str, str]:
    """Return the environment variables that tell workers how many failures and restarts the run allows."""
    limits = {env.MAX_FAILED: max_failures, env.MAX_RESTARTS: max_restarts}
    return {name: str(number) for name, number in limits.items() if number}


def check_failure_limits(num_workers: int, max_failures: int, max_restarts: int) -> None:
    """Raise InputError unless at least one worker may remain, and restarts are asked for only with `max_failures`."""
    if not 0 <= max_failures < num_workers:
        raise InputError(
            f"--tolerate-failures: expected 0 to {num_workers - 1} for {num_workers} workers, got {max_failures}"
        )
    if max_restarts < 0 or (max_restarts and not max_failures):
        raise InputError(
            f"--max-restarts {max_restarts}: a worker that failed joins others that continue without it; "
            "let them continue by --tolerate-failures K"
        )


class Spares:
    """Processes, forked at the start, that wait to replace failed workers: a later fork would copy locks of threads.

    `variables` returns the environment variables of a rank; `further` are those that all ranks share.
    """

    def __init__(
        self, waiting: Sequence[Child], variables: Callable[[int], dict[str, str]], further: Mapping[str, str]
    ) -> None:
        self._waiting, self._variables, self._further = list(waiting), variables, further

    def started(self, rank: int, number: int) -> Child | None:
        """Let a waiting process run as worker `rank`, as replacement `number` of the run; None if none is waiting."""
        if not self._waiting:
            return None
        child = self._waiting.pop(0)
        child.rank = rank
        child.release({**self._variables(rank), **self._further, env.RESTARTED: str(number)})
        return child


@dataclass
class Restarts:
    """Counter of the restarts that are `left`; each restart of one worker, and each of the whole run, uses one."""

    left: int

    def spend(self) -> None:
        self.left -= 1


def run_attempts(attempt: Callable[[Mapping[str, str], Restarts], int], most: int, *, pause: float = 0.0) -> int:
    """Run an attempt, and repeat it while it fails and restarts are left; return the last attempt's exit code.

    This works for every schedule, also after more failures than the survivors can handle. An attempt continues from the
    checkpoint that the script saved. Workers see torchrun's environment variables of a restart. SIGINT, SIGTERM and
    SIGHUP are passed on to the running attempt, and no further attempt follows.

    Args:
        attempt: runs all workers once and returns the exit code; called with environment variables for the workers and
            the restarts left, from which it subtracts those of single workers.
        most: number of restarts in all; each further attempt uses one.
        pause: seconds before the second attempt; doubled before each later one.
    """
    import_once()
    restarts = Restarts(most)
    with raise_on_sigterm():
        before = threads_of_process()
        for number in itertools.count():
            with orphans_ended():
                code = _code_of(attempt, {env.RESTART_COUNT: str(number), env.AGENT_MAX_RESTARTS: str(most)}, restarts)
            if not code or end_requested() or code in FINAL or not restarts.left:
                return code
            restarts.spend()
            write_line(
                f"attempt {number + 1} ended with exit code {code}; all workers begin again from their "
                f"last checkpoint (restarts left: {restarts.left})"
            )
            time.sleep(min(LONGEST_PAUSE, pause * 2.0 ** min(number, 10)))
            check_threads_ended(before)
    raise AssertionError("the last attempt returns")


def _code_of(
    attempt: Callable[[Mapping[str, str], Restarts], int], variables: Mapping[str, str], restarts: Restarts
) -> int:
    try:
        return attempt(variables, restarts)
    except PartreduceError as error:
        if error.exit_code in FINAL or not restarts.left:
            raise
        write_line(f"{error}")
        return error.exit_code


def threads_of_process() -> set[str]:
    """Return the IDs of all threads of this process, torch's C++ threads included."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


def check_threads_ended(before: set[str]) -> None:
    """Wait until all threads but `before` have ended, as a fork would copy their locks; RuntimeError if they do not."""
    gc.collect()  # a lingering exception would keep the store and its server thread alive
    deadline = time.monotonic() + THREAD_SECONDS
    while left := threads_of_process() - before:
        if time.monotonic() > deadline:
            names = []
            for thread in sorted(left):
                with contextlib.suppress(OSError):
                    names.append(Path("/proc/self/task", thread, "comm").read_text().strip())
            raise RuntimeError(f"launcher: threads of an attempt that has ended still run: {', '.join(names)}")
        time.sleep(0.002)


def worker_variables(
    cluster: Cluster, ranks: Sequence[int], threads: int | None, shared: dict[str, str]
) -> Callable[[int], dict[str, str]]:
    """Return a function from a rank, one of `ranks` on this machine, to its environment variables, with `shared`."""
    return lambda rank: worker_env(rank, cluster, threads, num_here=len(ranks)) | shared


def worker_env(rank: int, nodes: Cluster, threads: int | None, *, num_here: int | None = None) -> dict[str, str]:
    """Return the environment variables of worker `rank`, one of `num_here` (by default all) workers on this machine.

    `nodes` has each node's ranks; `threads` are torch threads per worker (None: the cores are divided).
    """
    node, local = int(nodes.node_of()[rank]), int(nodes.local_rank_of()[rank])
    cores = len(os.sched_getaffinity(0))
    # OpenMP accepts a list with a number for each level of nesting and ignores invalid values, and so does this.
    stated = re.match(r"\s*([0-9]{1,6})\s*(,|$)", os.environ.get(env.OMP_NUM_THREADS, ""), re.ASCII)
    count = threads or int(stated[1] if stated else 0) or max(1, cores // (num_here or nodes.num_workers))
    return {
        env.RANK: str(rank),
        env.WORLD_SIZE: str(nodes.num_workers),
        env.LOCAL_RANK: str(local),
        env.LOCAL_WORLD_SIZE: str(len(nodes.workers_of(node))),
        env.GROUP_RANK: str(node),
        env.GROUP_WORLD_SIZE: str(nodes.num_nodes),
        env.ROLE_RANK: str(rank),
        env.ROLE_WORLD_SIZE: str(nodes.num_workers),
        env.ROLE_NAME: "default",
        env.MASTER_ADDR: LOOPBACK,
        env.AGENT_STORE: "True",
        env.RESTART_COUNT: "0",
        env.AGENT_MAX_RESTARTS: "0",
        env.RUN_ID: f"partreduce-{os.getpid()}",
        env.TORCH_CPP_LOG_LEVEL: os.environ.get(env.TORCH_CPP_LOG_LEVEL, "ERROR"),
        env.OMP_NUM_THREADS: str(count),
    }


def serve_store(address: str = LOOPBACK) -> tuple[Store, int]:
    """Start the run's store on a free port; return the store and the port.

    With the loopback address only this machine reaches it, otherwise it listens on all addresses.
    """
    from partreduce.runtime.transport.torch_api import store_on

    listening, here = listen(address)
    port = listening.getsockname()[1]
    return store_on(listening, here), port
