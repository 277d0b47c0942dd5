"""Runs cells side by side, each from its start to its verdict; one thread, so that forking stays safe."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

from benchmarks.faults import injectors, verdicts
from benchmarks.faults.cell import Cell, Outcome, Task
from benchmarks.faults.kinds import KINDS, NODES, WORKERS
from benchmarks.faults.processes import command_of, end, fork_session, show_stacks
from benchmarks.faults.running import Running
from benchmarks.kit import free_port, import_all
from benchmarks.lab.network import Network, why_not
from partreduce.topo.document.writer import write_schedule

POLL_SECONDS = 0.03
AT_LEAST = 2
"""So many cells run at once whatever the machine does; each more begins when a processor was idle."""
ASK_SECONDS = 0.5
"""How long that one is given to need a processor itself, before the next."""
THEIRS = ("torchelastic_", "pytorch-errorfile-")
"""What torchrun's agent leaves: a folder for logs by intention, files of its forked workers when it is killed."""
LINGER_SECONDS = 2.0
"""How long after the end what the run started may take to go."""
RUN_SECONDS = 45.0
"""How long a run that is to continue may take after the fault, on a machine with two cores that is busy otherwise."""


def import_once() -> None:
    """Import here what every cell would import for itself after the fork."""
    import torch._dynamo
    import torch.distributed.elastic.multiprocessing.errors
    import torch.distributed.launcher.api

    import partreduce.__main__
    import partreduce.commands
    import partreduce.runtime
    import partreduce.topo.document.schedule
    from benchmarks.faults import launchers  # noqa: F401 - as said

    import_all(partreduce.runtime, partreduce.commands)
    torch.set_num_threads(1)  # several would wait for one another in each of a cell's processes
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy every page of this one


def combinations() -> list[tuple[str, str, str]]:
    """Every (kind, fault, launcher) that goes together on this machine, weighted."""
    nodes, root = why_not() is None, os.geteuid() == 0
    return [
        (kind, name, launcher)
        for name, fault in injectors.FAULTS.items()
        for launcher in fault.launchers
        for kind in fault.kinds
        if not (kind in injectors.NEEDS_GENERATOR and launcher not in injectors.OURS)
        and (not name.startswith("cut link") or nodes)
        and (not name.startswith("full disk") or root)
        for _ in range(fault.weight)
    ]


def what_is_left_out() -> list[str]:
    """Why some faults cannot be made here."""
    reasons = [] if why_not() is None else [f"links are not cut: {why_not()}"]
    return reasons + ([] if os.geteuid() == 0 else ["disks are not filled: mounting a small one needs root"])


class Idle:
    """Whether this machine has left a processor idle, most of which is what cells do that wait for a timeout."""

    def __init__(self) -> None:
        self._asked, self._spent = time.monotonic(), self._seconds()

    @staticmethod
    def _seconds() -> float:
        with Path("/proc/stat").open() as file:
            fields = file.readline().split()
        return (int(fields[2]) + int(fields[4])) / os.sysconf("SC_CLK_TCK")  # what is nice gives way

    def now(self) -> bool:
        """Whether it was so for half of the time since this was last answered; not asked for so soon again."""
        passed = time.monotonic() - self._asked
        if passed < ASK_SECONDS:
            return False
        spent = self._seconds()
        was_idle = spent - self._spent > passed / 2
        self._asked, self._spent = time.monotonic(), spent
        return was_idle


def run_cells(cells: Iterable[Cell], on_outcome: Callable[[Outcome], None], *, at_once: int = AT_LEAST) -> None:
    """Run them all, at most `at_once` side by side; the verdict of each is handed on as it comes."""
    waiting, idle = iter(cells), Idle()
    lanes: dict[int, Generator[Outcome | None]] = {}
    """By a number that no other cell has meanwhile: networks are named after it."""
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
    """One cell, polled; the last value is its outcome."""
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
    from benchmarks.faults import launchers

    chance, fault = cell.random, injectors.FAULTS[cell.fault]
    (folder / "tmp").mkdir()
    write_schedule(folder / "schedule.json", KINDS[cell.kind].schedule)
    steps = injectors.SHORT if KINDS[cell.kind].lasts_after and fault.steps == injectors.LONG else fault.steps
    task = Task(
        folder=str(folder),
        schedule=str(folder / "schedule.json"),
        timeout=cell.timeout,
        steps=steps,
        columns=chance.choice([64] if cell.fault.startswith("cut link") else [64, 20_000]),
        meets=KINDS[cell.kind].law in ("convex", "counts"),
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
        action = functools.partial(launchers.by_partreduce_run, task, KINDS[cell.kind])
    elif cell.launcher == "torchrun":
        action = functools.partial(launchers.by_torchrun, task)
    elif cell.launcher == "nodes":
        if why_not() is None:
            network = running.network = Network(NODES, "1gbit", subnet=f"10.{80 + lane}.0", tag=f"f{lane}")
            network.__enter__()
            running.undo.append(network.close)
        action = functools.partial(launchers.on_nodes, task, KINDS[cell.kind], free_port(), running.network)
    else:
        port = free_port()
        if cell.fault == "squatted port":
            stranger = injectors.squat()
            running.undo.append(stranger.close)
            port = stranger.getsockname()[1]
        action = functools.partial(launchers.by_hand, port)
    variables = {"FAULTS_TASK": str(folder / "task.json"), "TMPDIR": str(folder / "tmp"), "FAULTS_MARK": str(folder)}
    running.started = time.monotonic()
    running.pid = fork_session(functools.partial(_with_fresh_tempdir, action), folder / "output.txt", variables)
    return running


def _checkpoints(cell: Cell, folder: Path) -> str | None:
    """Where workers save now and then, if they do."""
    if cell.fault == "full disk for checkpoints":
        return str(folder / "disk")
    saves = cell.kind in injectors.IN_STEP and injectors.all_restart(cell.kind, injectors.FAULTS[cell.fault].restarts)
    return str(folder / "saved") if saves else None


def _with_fresh_tempdir(action: Callable[[], int | None]) -> int | None:
    tempfile.tempdir = None
    return action()


def _to_the_end(running: Running) -> Iterator[None]:
    """Wait until the run is over, for as long as it may take."""
    cell = running.cell
    if not running.outcome.fired:
        running.outcome.note = running.outcome.note or "the run ended, or did not begin, before the instant came"
    continues = running.must_finish or KINDS[cell.kind].lasts_after
    limit = RUN_SECONDS if continues else cell.timeout + verdicts.SLACK_SECONDS + verdicts.GRACE_SECONDS
    limit += 3 * cell.timeout if "pause" in cell.fault else 0.0
    begun = running.fault_time or time.monotonic()
    while not running.is_over and time.monotonic() < begun + limit + min(running.held_up, RUN_SECONDS):
        yield
    running.outcome.over = time.monotonic() - begun
    if not running.is_over and running.outcome.fired:
        # The program alone: its path is this machine's, and rows are kept.
        left = [
            f"{running.role_of(pid)} {Path((command_of(pid).split() or ['?'])[0]).name}" for pid in running.processes()
        ]
        show_stacks([pid for pid in running.processes() if running.role_of(pid)])
        running.outcome.violations.append(f"hang: after {limit:g} s there still run {left}")


def _judge(running: Running) -> Iterator[None]:
    """All verdicts; what is left behind gets a moment to go."""
    outcome = running.outcome
    if not outcome.fired:
        return
    verdicts.judge_ends(running)
    verdicts.judge_attempts(running)
    verdicts.judge_crashes(running)
    verdicts.judge_values(running)
    if running.task.checkpoints is not None:
        outcome.violations += verdicts.judge_checkpoints(Path(running.task.checkpoints))
    if running.must_save:
        verdicts.judge_saved(running)
    if (
        running.cell.launcher not in injectors.OURS
    ):  # which alone end what a killed worker has left; torchrun's agent kills all
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
    """Keep what a violation looked like, for whoever wants to understand it."""
    kept = Path("build/faults") / running.cell.name.replace("/", "-").replace(" ", "_")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for path in [running.folder / "output.txt", *running.folder.glob("worker-*.jsonl")]:
        if path.exists():
            shutil.copy(path, kept)
    (kept / "outcome.json").write_text(json.dumps(json.loads(running.outcome.line()), indent=1))
