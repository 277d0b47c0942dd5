"""Launcher: N worker processes on this machine, forked after torch was imported (seconds instead of tens of seconds).

The workers see the environment variables that torchrun sets, so an ordinary torch script works too. The store lives
here, in the launcher: it outlives every worker, it is told at once when one dies, and only this machine reaches it.
However the launcher ends, nothing that it started is left (see `orphans`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import re
import secrets
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from partreduce.runtime import environment as env
from partreduce.runtime.launcher.fresh_start import draw_anew, fill_standard_descriptors, own_standard_streams
from partreduce.runtime.launcher.interpreter_end import end_as_python_does, flush_everything, leave_clean_up_to_parent
from partreduce.runtime.launcher.last_line import explained, tell
from partreduce.runtime.launcher.orphans import CleanupProcess, die_with_parent
from partreduce.runtime.launcher.outlet import LogMultiplexer
from partreduce.runtime.launcher.signals import (
    Terminated,
    as_in_a_fresh_process,
    end_by_signal,
    held,
    raise_unheard,
    terminable,
)
from partreduce.runtime.launcher.supervision import Child, end_all, supervise
from partreduce.runtime.launcher.workers import Worker
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, PartreduceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from partreduce.runtime.elastic.coordinator import FailureRule, Generator
    from partreduce.runtime.transport.torch_api import Store

LOOPBACK = "127.0.0.1"
MESSAGE_BYTES = 4096
"""What a pipe passes on in one piece."""
GRACE_SECONDS = 5.0
"""How long the others may take to report a failure by themselves before they are ended."""


def launch(
    target: str | Path | Callable[[], object],
    args: Sequence[str] = (),
    *,
    num_workers: int,
    num_nodes: int = 1,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    grace: float = GRACE_SECONDS,
    patient: bool = False,
    generator: Generator | None = None,
    max_failures: int = 0,
    max_restarts: int = 0,
    restarted: Callable[[], object] = lambda: None,
    output: TextIO | None = None,
) -> int:
    """Run a script (or a function) in `num_workers` processes and return the exit code of the first that failed, or 0.

    That some fail because others are missing (exit code 69) is a consequence of why these are, whoever ends first.
    SIGTERM and SIGHUP are passed on to the workers as SIGTERM; they have `grace` seconds to end, and the exit code is
    the signal's.

    Args:
        target: the path of a Python script, run as `__main__`, or a function without parameters. A script draws random
            numbers of its own in each worker, as under torchrun; a function goes on with those of the program that
            forks it. That must not have computed in several threads of torch: its copies would wait for them for ever.
        args: the script's arguments.
        num_workers: processes in all.
        num_nodes: pretend this many machines: sets LOCAL_RANK and LOCAL_WORLD_SIZE; must divide `num_workers`.
        threads: torch threads per worker; by default the cores are shared out, at least 1 each.
        environment: further variables for the workers.
        grace: seconds between the first failure and the end of the others.
        patient: where a signal ends a worker, the others may go on for as long as they can, and not for `grace` seconds
            only; the exit code is that of the signal nevertheless.
        generator: hands out the groups of this run, and hears who has failed.
        max_failures: so many may fail by a signal or by silence, and the others continue, without a `generator` once
            all are connected, by the membership of their optimizer (see `elastic.generations`). A worker's own
            error still ends the run.
        max_restarts: so often in all a failed worker is started again, and joins the others.
        restarted: called each time that one is.
        output: where the workers' lines go, each prefixed with its rank; standard output and error by default.

    Raises:
        InputError: no such script, or counts that do not fit.
    """
    if num_workers < 1 or num_nodes < 1 or num_workers % num_nodes:
        raise InputError(f"{num_workers} workers on {num_nodes} nodes: every node runs the same number, at least 1")
    check_failure_limits(num_workers, max_failures, max_restarts)
    if not callable(target) and not Path(target).is_file():
        raise InputError(f"{target}: is not a file; name a Python script")
    if not callable(target) and Path(target).suffix in (".json", ".yaml", ".yml"):
        raise InputError(
            f"{target}: is no Python script; a schedule goes before the script: --schedule {target} SCRIPT"
        )
    shared = {env.RUN_SECRET: secrets.token_hex(32), **(environment or {})}
    if generator is None:
        shared |= failure_environment(max_failures, max_restarts)
    processes: list[Child] = []
    try:
        with terminable():
            import_once()
            raise_unheard()
            flush_everything()
            fill_standard_descriptors()
            guardian = CleanupProcess()
            try:
                nodes = Cluster.regular(num_nodes, num_workers // num_nodes)
                for rank in [*range(num_workers), *[0] * max_restarts]:
                    start_worker(processes, guardian, target, args, worker_env(rank, nodes, threads) | shared)
                # The store's server starts a thread, so it comes after the last fork; the workers wait for its port.
                store, port = serve_store()
                spares = Spares(processes[num_workers:], lambda rank: worker_env(rank, nodes, threads), port)
                release_workers(processes[:num_workers], port)
                workers: list[Worker] = [*processes[:num_workers]]
                outlet, starts = LogMultiplexer(output), itertools.count(1)
                rule = failure_rule(
                    workers, store, outlet, patient=patient, generator=generator, max_failures=max_failures,
                    start=lambda rank: spares.started(rank, next(starts)), restarted=restarted,
                )  # fmt: skip
                return supervise(workers, processes[:num_workers], store, grace, outlet, rule=rule)
            finally:
                with held():
                    end_all(processes)
                    guardian.close()
    except Terminated as ended:
        return ended.exit_code


def failure_rule(
    workers: Sequence[Worker],
    store: Store,
    outlet: LogMultiplexer,
    *,
    patient: bool,
    generator: Generator | None,
    max_failures: int,
    start: Callable[[int], Worker | None],
    restarted: Callable[[], object],
) -> FailureRule[Worker]:
    """Whether the others of a run continue after a failure, and which workers join; parameters as of `launch`."""
    from partreduce.runtime.elastic import coordinator  # loads torch, as every worker does

    if generator is not None:
        return coordinator.OnRequest(workers, generator, max_failures, outlet)
    if not max_failures:
        return coordinator.FailureRule(workers, outlet, patient=patient)
    return coordinator.Coordinator(workers, store, max_failures, outlet, start=start, restarted=restarted)


def failure_environment(max_failures: int, max_restarts: int) -> dict[str, str]:
    """The variables that tell workers how their run continues after failures."""
    told = {env.MAX_FAILED: max_failures, env.MAX_RESTARTS: max_restarts}
    return {name: str(number) for name, number in told.items() if number}


def check_failure_limits(num_workers: int, max_failures: int, max_restarts: int) -> None:
    """Check that one worker remains, and that failed workers start again only where the others continue."""
    if not 0 <= max_failures < num_workers:
        raise InputError(
            f"--tolerate-failures {max_failures}: of {num_workers} workers 0 to {num_workers - 1} may fail"
        )
    if max_restarts < 0 or (max_restarts and not max_failures):
        raise InputError(
            f"--max-restarts {max_restarts}: a worker that failed joins others that continue without it; "
            "let them continue by --tolerate-failures K"
        )


class Spares:
    """Processes that wait to be started in the place of lost workers; they were forked together with these.

    A fork in the middle of a run would copy the locks of the store's thread, and not the thread.
    """

    def __init__(self, waiting: Sequence[Child], variables: Callable[[int], dict[str, str]], port: int) -> None:
        self._waiting, self._variables, self._port = list(waiting), variables, port

    def started(self, rank: int, number: int) -> Child | None:
        """A worker that has just been started with this rank, the run's so manieth; None where none is left."""
        if not self._waiting:
            return None
        child = self._waiting.pop(0)
        child.rank = rank
        release_workers([child], self._port, self._variables(rank) | {env.RESTARTED: str(number)})
        return child


IMPORTED_ONCE = (
    "torch",
    "torch._dynamo",  # torch.optim imports it when the first optimizer is made, which costs seconds
    "partreduce.runtime.optimizer",
    "partreduce.topo.document.canonical",
    "partreduce.topo.document.schedule",
)


def import_once() -> None:
    """Import here what every worker would import for itself after the fork."""
    for name in IMPORTED_ONCE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def worker_env(rank: int, nodes: Cluster, threads: int | None, *, beside: int | None = None) -> dict[str, str]:
    """What a worker finds in its environment.

    Args:
        rank: the worker.
        nodes: which worker runs where.
        threads: of torch; by default the cores of this machine shared out.
        beside: how many workers there are on this machine; all by default.
    """
    node, local = int(nodes.node_of()[rank]), int(nodes.local_rank_of()[rank])
    cores = len(os.sched_getaffinity(0))
    # OpenMP takes a list with a number for each level of nesting; what it does not understand it ignores, and so do we.
    stated = re.match(r"\s*([0-9]{1,6})\s*(,|$)", os.environ.get(env.OMP_NUM_THREADS, ""), re.ASCII)
    count = threads or int(stated[1] if stated else 0) or max(1, cores // (beside or nodes.num_workers))
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


def start_worker(
    workers: list[Child],
    guardian: CleanupProcess,
    target: str | Path | Callable[[], object],
    args: Sequence[str],
    variables: Mapping[str, str],
) -> None:
    """Fork a worker and note it among those that run here; it waits for `release_workers`."""
    with held():
        settle = _settling(workers, guardian)
        workers.append(_fork(int(variables[env.RANK]), target, args, variables, settle))
        guardian.watch(workers[-1].pid)


def _settling(earlier: Sequence[Child], guardian: CleanupProcess) -> Callable[[], None]:
    """What a forked worker does first: it closes the pipes of the workers before it and of the guardian."""

    def settle() -> None:
        for descriptor in [d for worker in earlier for d in (worker.go, *worker.streams)]:
            os.close(descriptor)
        guardian.forget_in_child()

    return settle


def _fork(
    rank: int,
    target: str | Path | Callable[[], object],
    args: Sequence[str],
    variables: Mapping[str, str],
    settle: Callable[[], None],
) -> Child:
    """Start one worker; signals are held. It calls `settle` to close what is not its own."""
    go_read, go_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in (go_read, out_write, err_write):
            os.close(descriptor)
        with contextlib.suppress(OSError):  # the child does so, too; whoever comes first
            os.setpgid(pid, pid)
        return Child(rank, pid, go_write, {out_read: b"", err_read: b""})
    code = 70
    try:
        try:
            for descriptor in (go_write, out_read, err_read):
                os.close(descriptor)
            settle()
            os.setpgid(0, 0)
            if not die_with_parent(parent):
                os._exit(70)
            leave_clean_up_to_parent()
            own_standard_streams(out_write, err_write)
            told = os.read(go_read, MESSAGE_BYTES)
            if not told:
                os._exit(70)
            os.close(go_read)
            code = _become_worker(target, args, {**variables, **json.loads(told)})
        except BaseException:  # noqa: BLE001 - a forked child must end here, whatever happened
            traceback.print_exc()
        with contextlib.suppress(BaseException):
            flush_everything()
    finally:  # alone, so that Ctrl-C in the lines before does not let a second launcher out
        if code < 0:
            end_by_signal(-code)
        os._exit(code & 0xFF)


_left: list[object] = []
"""The names of the script that ended, or the exception that ended it, whose frames have them.

Nothing of it is destroyed while Python runs, as in a program of its own: the destructor of a gloo group keeps the
interpreter's lock while it waits for a thread, which may need it to let go of the last sum (torch 2.13).
"""


def _keep_destroyed_groups() -> None:
    """Keep also what the script takes down by `torch.distributed.destroy_process_group`, for the same reason.

    The last to let go of such a group is often a DistributedDataParallel, when the function that made it returns.
    """
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def keep_and_destroy(group: dist.ProcessGroup | None = None) -> None:
        _left.append(group or dist.group.WORLD)
        destroy(group)

    dist.destroy_process_group = keep_and_destroy


def _become_worker(target: str | Path | Callable[[], object], args: Sequence[str], variables: Mapping[str, str]) -> int:
    """What a forked child does; returns its exit code, or minus the signal that ends it."""
    import runpy

    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(variables)
    torch.set_num_threads(int(variables[env.OMP_NUM_THREADS]))
    _keep_destroyed_groups()
    code = 0
    try:
        as_in_a_fresh_process()  # from here on Ctrl-C ends it like any other program
        if callable(target):
            target()
        else:
            draw_anew()
            sys.argv = [str(target), *args]
            sys.path.insert(0, str(Path(target).resolve().parent))
            _left.append(runpy.run_path(str(target), run_name="__main__"))
    except BaseException as error:  # noqa: BLE001 - the script's own error
        _left.append(error)
        code = _code_of(error)
    if code == 0 and not callable(target):
        _warn_if_schedule_unused(target, variables)
    end_as_python_does()
    return code


def _code_of(error: BaseException) -> int:
    """Say what ended the script, as Python does, and with which exit code; minus the signal that ends it."""
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
            return 1
        return (error.code or 0) & 0xFF
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    sys.last_value = known = explained(error)
    if isinstance(known, PartreduceError):
        return tell(known)
    _say(error)
    return 1


def _warn_if_schedule_unused(script: str | Path, variables: Mapping[str, str]) -> None:
    """Say once what a script lacks that has trained, if at all, without the schedule that it was started with."""
    from partreduce.runtime.transport.rendezvous import has_joined

    schedule = variables.get(env.SCHEDULE)
    if schedule is None or has_joined() or variables[env.RANK] != "0" or variables[env.WORLD_SIZE] == "1":
        return
    sys.stderr.write(
        f"partreduce: {script} ended without a DistributedOptimizer, so nothing followed {schedule}; it needs\n"
        "    import partreduce\n"
        "    data = partreduce.shard_dataset(data)  # this worker's part\n"
        f'    optimizer = partreduce.DistributedOptimizer(optimizer, model, os.environ["{env.SCHEDULE}"])\n'
    )


def _say(error: BaseException) -> None:
    """Show the script's own error as the script wants it shown."""
    try:
        error.with_traceback(_of_the_script(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the launcher's own frames; whole where nothing else is in it."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        rest = rest.tb_next
    return rest or trace


def serve_store(address: str = LOOPBACK) -> tuple[Store, int]:
    """Start the store on a free port, which is returned beside it.

    For this machine alone it is given a socket that listens there only: by itself it would on all addresses, for
    anybody. For other hosts, which reach it at `address`, it does, so that this process needs no network to ask it.
    """
    from partreduce.runtime.transport.torch_api import store_on

    here, family = ("::1", socket.AF_INET6) if ":" in address else (LOOPBACK, socket.AF_INET)
    listening = socket.create_server((here if here == address else "", 0), family=family, backlog=4096)
    port = listening.getsockname()[1]
    return store_on(listening, here), port


def release_workers(workers: Sequence[Child], port: int, variables: Mapping[str, str] | None = None) -> None:
    """Tell forked workers the store's port, for which they wait, and further variables."""
    told = json.dumps({**(variables or {}), env.MASTER_PORT: str(port)}).encode()
    for worker in workers:
        with contextlib.suppress(BrokenPipeError):
            os.write(worker.go, told)
        os.close(worker.go)
        worker.go = -1
