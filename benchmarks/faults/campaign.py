"""Runs cells concurrently, each from its start to its verdict; in one thread, so that forking stays safe.

Workers are started by `partreduce run`, here or on two nodes, by torchrun's agent, or by hand.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.faults import injectors, verdicts
from benchmarks.faults.injectors import KINDS_OF, OURS
from benchmarks.faults.kinds import KINDS, NODES, WORKERS, Kind
from benchmarks.faults.processes import become, command_of, end, fork_session, show_stacks
from benchmarks.faults.running import Cell, Outcome, Running, Task
from benchmarks.faults.worker import work
from benchmarks.kit import free_port, import_all
from benchmarks.lab.network import Network, why_not
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import PartreduceError

SCRIPT = Path(__file__).with_name("worker.py")
NETNS = 0x40000000
POLL_SECONDS = 0.03
AT_LEAST = 2
"""How many cells run at once in any case; each more starts when a processor was idle."""
ASK_SECONDS = 0.5
"""Seconds between two checks for an idle processor, in which a new cell can use it."""
THEIRS = ("torchelastic_", "pytorch-errorfile-")
"""What torchrun's agent leaves behind: a folder of logs, and files of forked workers when it is killed."""
LINGER_SECONDS = 2.0
"""Seconds after the end within which all processes of a run must be gone."""
RUN_SECONDS = 45.0
"""Seconds that a continuing run may take after the fault, on a busy machine with two cores."""


def import_once() -> None:
    import torch._dynamo
    import torch.distributed.elastic.multiprocessing.errors
    import torch.distributed.launcher.api

    import partreduce.__main__
    import partreduce.commands
    import partreduce.runtime
    import partreduce.topo.document.schedule

    import_all(partreduce.runtime, partreduce.commands)
    torch.set_num_threads(1)  # several would wait for one another in each of a cell's processes
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy every page of this one


def combinations() -> list[tuple[str, str, str]]:
    """Return every possible (kind, fault, launcher) on this machine, repeated by the fault's weight."""
    nodes, root = why_not() is None, os.geteuid() == 0
    return [
        (kind, name, launcher)
        for name, fault in injectors.FAULTS.items()
        for launcher in fault.launchers
        for kind in fault.kinds
        if not (kind in KINDS_OF["generated"] and launcher not in OURS)
        and (not name.startswith("cut link") or nodes)
        and (not name.startswith("full disk") or root)
        for _ in range(fault.weight)
    ]


def what_is_left_out() -> list[str]:
    """Return sentences on the faults that are impossible on this machine."""
    reasons = [] if why_not() is None else [f"links are not cut: {why_not()}"]
    return reasons + ([] if os.geteuid() == 0 else ["disks are not filled: mounting a small one needs root"])


class Idle:
    """Whether a processor was idle, which it mostly is because cells wait for timeouts."""

    def __init__(self) -> None:
        self._asked, self._spent = time.monotonic(), self._seconds()

    @staticmethod
    def _seconds() -> float:
        with Path("/proc/stat").open() as file:
            fields = file.readline().split()
        return (int(fields[2]) + int(fields[4])) / os.sysconf("SC_CLK_TCK")  # what is nice gives way

    def now(self) -> bool:
        """Return whether a processor was idle for half of the time since the last answer; False if asked too soon."""
        passed = time.monotonic() - self._asked
        if passed < ASK_SECONDS:
            return False
        spent = self._seconds()
        was_idle = spent - self._spent > passed / 2
        self._asked, self._spent = time.monotonic(), spent
        return was_idle


def run_cells(cells: Iterable[Cell], on_outcome: Callable[[Outcome], None], *, at_once: int = AT_LEAST) -> None:
    """Run all cells, at most `at_once` concurrently, and pass each outcome to `on_outcome`."""
    waiting, idle = iter(cells), Idle()
    lanes: dict[int, Generator[Outcome | None]] = {}
    """The running cells by a number, after which their networks are named."""
    exhausted = False
    while lanes or not exhausted:
        while not exhausted and len(lanes) < at_once and (len(lanes) < AT_LEAST or idle.now()):
            cell = next(waiting, None)
            exhausted = cell is None
            if cell is not None:
                number = next(free for free in range(at_once) if free not in lanes)
                lanes[number] = _cell(cell, number)
        for number, lane in list(lanes.items()):
            outcome = next(lane)
            if outcome is not None:
                lane.close()
                del lanes[number]
                on_outcome(outcome)
        time.sleep(POLL_SECONDS)


def _cell(cell: Cell, lane: int) -> Generator[Outcome | None]:
    """Run one cell; yield None while it runs, then its outcome."""
    folder = Path(tempfile.mkdtemp(prefix="partreduce-faults-"))
    running = None
    try:
        running = _start(cell, folder, lane)
        for _ in injectors.FAULTS[cell.fault].inject(running):
            yield None
        for _ in _to_the_end(running):
            yield None
        for _ in _judge(running):
            yield None
        outcome = running.outcome
        if outcome.violations or not outcome.fired:
            _keep(running)
    finally:
        if running is not None:
            end(running.processes())
            running.look()
            if running.code is None:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(running.pid, 0)
            for undo in reversed(running.undo):
                undo()
        shutil.rmtree(folder, ignore_errors=True)
    yield outcome


def _start(cell: Cell, folder: Path, lane: int) -> Running:
    chance, fault, kind = cell.random, injectors.FAULTS[cell.fault], KINDS[cell.kind]
    (folder / "tmp").mkdir()
    write_schedule(folder / "schedule.json", kind.schedule)
    is_long = fault.steps == injectors.STEPS["long"]
    task = Task(
        folder=str(folder),
        schedule=str(folder / "schedule.json"),
        timeout=cell.timeout,
        steps=injectors.STEPS["short"] if kind.lasts_after and is_long else fault.steps,
        columns=chance.choice([64] if cell.fault.startswith("cut link") else [64, 20_000]),
        meets=kind.law in ("convex", "counts"),
        trace=str(folder / "disk") if cell.fault == "full disk for traces" else None,
        checkpoints=_checkpoints(cell, folder),
        raising=chance.randrange(WORKERS) if cell.fault == "exception" else None,
        raising_step=chance.randrange(60),
        children=fault.children,
        restarts=fault.restarts,
        saves=fault.saves,
    )
    task.write(folder / "task.json")
    running = Running(cell, task, folder, chance, Outcome(cell))
    if cell.fault.startswith("full disk"):
        running.undo.append(injectors.tiny_disk(folder / "disk"))
    action: Callable[[], int | None]
    if cell.launcher == "run":
        action = partial(by_partreduce_run, task, kind)
    elif cell.launcher == "torchrun":
        action = by_torchrun
    elif cell.launcher == "nodes":
        if why_not() is None:
            network = running.network = Network(NODES, "1gbit", subnet=f"10.{80 + lane}.0", tag=f"f{lane}")
            network.__enter__()
            running.undo.append(network.close)
        action = partial(on_nodes, task, kind, free_port(), running.network)
    else:
        port = free_port()
        if cell.fault == "squatted port":
            stranger = injectors.squat()
            running.undo.append(stranger.close)
            port = stranger.getsockname()[1]
        action = partial(by_hand, port)
    variables = {"FAULTS_TASK": str(folder / "task.json"), "TMPDIR": str(folder / "tmp"), "FAULTS_MARK": str(folder)}
    running.started = time.monotonic()
    running.pid = fork_session(partial(_with_fresh_tempdir, action), folder / "output.txt", variables)
    return running


def _checkpoints(cell: Cell, folder: Path) -> str | None:
    """Return the folder in which workers save from time to time, None if they do not."""
    if cell.fault == "full disk for checkpoints":
        return str(folder / "disk")
    all_restart = injectors.FAULTS[cell.fault].restarts > 0 and cell.kind in KINDS_OF["ending"]
    saves = all_restart and cell.kind in KINDS_OF["in step"]
    return str(folder / "saved") if saves else None


def _with_fresh_tempdir(action: Callable[[], int | None]) -> int | None:
    tempfile.tempdir = None
    return action()


def by_partreduce_run(task: Task, kind: Kind, *more: str) -> int:
    """Run the command in this process; the schedule's failure plan, if any, says how many workers may fail."""
    from partreduce.__main__ import main

    limit = ["--tolerate-failures", str(kind.max_failures)] if kind.schedule.failure_plan is None else []
    again = ["--max-restarts", str(task.restarts)] if task.restarts else []
    return main(["run", "--schedule", task.schedule, "--threads", "1", *limit, *again, *more, str(SCRIPT)])


def on_nodes(task: Task, kind: Kind, port: int, network: Network | None) -> int:
    """Run the command on two nodes, each in a network namespace if `network` is given."""
    address = "127.0.0.1" if network is None else network.address(0)
    same = ["--nnodes", str(NODES), "--nproc-per-node", str(WORKERS // NODES), "--rdzv-endpoint", f"{address}:{port}"]

    def node(rank: int) -> int:
        if network is not None:
            enter(network.namespace(rank))
        Path(task.folder, f"launcher-{rank}").write_text(f"{os.getpid()}\n")
        return by_partreduce_run(task, kind, *same, "--node-rank", str(rank))

    interface = {} if network is None else {"GLOO_SOCKET_IFNAME": "eth0"}
    return _first_failure([_fork(lambda rank=rank: node(rank), interface) for rank in range(NODES)])  # type: ignore[misc]


def by_torchrun() -> int:
    """Run torchrun's agent and store; its workers are forked, which saves their imports."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=WORKERS, run_id=f"faults-{os.getpid()}", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.1, start_method="fork",
    )  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        elastic_launch(config, torchrun_worker)()
    except ChildFailedError as error:
        print(error, flush=True)
        return 1
    return 0


def torchrun_worker() -> None:
    """Run one worker of the agent; end as a script would."""
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
    """Start workers as a user's script would; rank 0 hosts the store."""
    variables = {
        "WORLD_SIZE": str(WORKERS), "LOCAL_WORLD_SIZE": str(WORKERS), "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    ranks = [{**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(WORKERS)]
    return _first_failure([_fork(torchrun_worker, own) for own in ranks])


def _first_failure(pids: list[int]) -> int:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _fork(action: Callable[[], int | None], variables: dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        become(action, None, variables)
    return pid


def enter(namespace: str) -> None:
    descriptor = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NETNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), namespace)
    os.close(descriptor)


def _to_the_end(running: Running) -> Iterator[None]:
    """Wait until the run is over or has used up its time."""
    cell = running.cell
    if not running.outcome.fired:
        running.outcome.note = running.outcome.note or "the run ended, or did not begin, before the instant came"
    continues = running.must_finish or KINDS[cell.kind].lasts_after
    limit = RUN_SECONDS if continues else cell.timeout + verdicts.SLACK_SECONDS + verdicts.GRACE_SECONDS
    limit += 3 * cell.timeout if "pause" in cell.fault else 0.0
    begun = running.fault_time or time.monotonic()
    while not running.is_over and time.monotonic() < begun + limit + min(running.held_up, RUN_SECONDS):
        yield
    if not running.is_over and running.outcome.fired:
        # The program alone: its path is this machine's, and rows are kept.
        left = [
            f"{running.role_of(pid)} {Path((command_of(pid).split() or ['?'])[0]).name}" for pid in running.processes()
        ]
        show_stacks([pid for pid in running.processes() if running.role_of(pid)])
        running.outcome.violations.append(f"hang: after {limit:g} s there still run {left}")


def _judge(running: Running) -> Iterator[None]:
    """Compute all verdicts, after some time for the remaining processes to end."""
    outcome = running.outcome
    if not outcome.fired:
        return
    verdicts.judge(running)
    if running.cell.launcher not in OURS:  # which alone end what a killed worker has left; torchrun's agent kills all
        killed = range(WORKERS) if running.cell.launcher == "torchrun" else running.victims
        end([pid for rank in killed for pid in running.children_of(rank)])
    deadline = time.monotonic() + LINGER_SECONDS
    while (left := running.processes()) and time.monotonic() < deadline:
        yield
    commands = [command for pid in left if (command := command_of(pid)[:120])]  # one that is ending has none any more
    if commands and running.is_over:
        outcome.violations.append(f"orphans: {commands}")
    end(left)
    names = (path.name for path in (running.folder / "tmp").iterdir())
    files = sorted(name for name in names if not name.startswith(THEIRS))
    if files:
        outcome.violations.append(f"left behind: {files}")


def _keep(running: Running) -> None:
    kept = Path("build/faults") / running.cell.name.replace("/", "-").replace(" ", "_")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for path in [running.folder / "output.txt", *running.folder.glob("worker-*.jsonl")]:
        if path.exists():
            shutil.copy(path, kept)
    (kept / "outcome.json").write_text(json.dumps(asdict(running.outcome), indent=1))
