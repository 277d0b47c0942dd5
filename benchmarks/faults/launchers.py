"""How the workers of a cell are started: by `partreduce run`, here or on two nodes, by torchrun's agent, or by hand."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.cell import Task
from benchmarks.faults.kinds import NODES, WORKERS, Kind
from benchmarks.faults.processes import become
from benchmarks.faults.worker import work
from benchmarks.lab.network import Network

SCRIPT = Path(__file__).with_name("worker.py")
NETNS = 0x40000000


def by_partreduce_run(task: Task, kind: Kind, *more: str) -> int:
    """The command itself, in this process; how many may fail stands in the schedule's plan, where it has one."""
    from partreduce.__main__ import main

    limit = ["--tolerate-failures", str(kind.max_failures)] if kind.schedule.failure_plan is None else []
    again = ["--max-restarts", str(task.restarts)] if task.restarts else []
    return main(["run", "--schedule", task.schedule, "--threads", "1", *limit, *again, *more, str(SCRIPT)])


def on_nodes(task: Task, kind: Kind, port: int, network: Network | None) -> int:
    """The same command on two nodes, each in a network namespace of its own where there are any."""
    address = "127.0.0.1" if network is None else network.address(0)
    same = ["--nnodes", str(NODES), "--nproc-per-node", str(WORKERS // NODES), "--rdzv-endpoint", f"{address}:{port}"]

    def node(rank: int) -> int:
        if network is not None:
            enter(network.namespace(rank))
        Path(task.folder, f"launcher-{rank}").write_text(f"{os.getpid()}\n")
        return by_partreduce_run(task, kind, *same, "--node-rank", str(rank))

    interface = {} if network is None else {"GLOO_SOCKET_IFNAME": "eth0"}
    return _first_failure([_fork(lambda rank=rank: node(rank), interface) for rank in range(NODES)])  # type: ignore[misc]


def by_torchrun(task: Task) -> int:
    """torchrun's own agent and store; its workers are forked, which saves their imports."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=WORKERS,
        run_id=f"faults-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        elastic_launch(config, torchrun_worker)(task.timeout)
    except ChildFailedError as error:
        print(error, flush=True)
        return 1
    return 0


def torchrun_worker(_timeout: float) -> None:
    """One worker of the agent; ends as a script would."""
    import atexit
    import sys

    from partreduce.topo.errors import PartreduceError

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # the agent's own handlers are not a worker's
    code = 0
    try:
        work()
    except PartreduceError as error:
        sys.last_value = error
        code = error.exit_code
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    except Exception as error:  # noqa: BLE001 - shown as Python would
        sys.last_value = error
        code = 1
        traceback.print_exc()
    if code:  # the agent waits for what a forked worker returns when all is well
        atexit._run_exitfuncs()  # noqa: SLF001 - a forked process skips them, an ordinary script does not
        os._exit(code)


def by_hand(port: int) -> int:
    """Workers as a user's own script would start them; rank 0 hosts the store."""
    variables = {
        "WORLD_SIZE": str(WORKERS), "LOCAL_WORLD_SIZE": str(WORKERS), "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    ranks = [{**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(WORKERS)]
    return _first_failure([_fork(lambda: torchrun_worker(0.0), own) for own in ranks])


def _first_failure(pids: list[int]) -> int:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _fork(action: Callable[[], int | None], variables: dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        become(action, None, variables)
    return pid


def enter(namespace: str) -> None:
    """Move this process into a network namespace."""
    descriptor = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NETNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), namespace)
    os.close(descriptor)
