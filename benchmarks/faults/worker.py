"""One worker under faults: in each step it adds 1 to its own row and writes down its parameters.

Lines go straight to the file, so a kill loses none but the one being written.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import stat
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.kinds import rows_of
from benchmarks.faults.processes import runs
from benchmarks.faults.running import Task, records_after
from partreduce.runtime.checkpoint import load_checkpoint, save_checkpoint
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.errors import FileError, PartreduceError

TASK = "FAULTS_TASK"
CHECKPOINT_STEPS = 60
AGAIN_STEPS = 20
"""Steps between two checkpoints if all workers may restart from one."""
STEP_SECONDS = 0.012
MEET_SECONDS = 15.0
SAVE_SECONDS = 0.3


class Diary:
    def __init__(self, folder: Path, rank: int, rows: list[torch.Tensor]) -> None:
        path = folder / f"worker-{rank}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.rows = rows

    def note(self, what: str, step: int, more: Any = None) -> None:
        parts = [part.detach().numpy() for part in self.rows]  # NumPy takes a tenth of torch's time for these
        rows = [[float(low), float(high)] for part in parts for low, high in zip(part.min(1), part.max(1), strict=True)]
        os.write(self._file, (json.dumps([what, time.monotonic(), step, rows, more]) + "\n").encode())


def work() -> None:
    """Train until the task's steps are done or an error occurs."""
    task = Task.read(Path(os.environ[TASK]))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    start = torch.zeros(size + 1, task.columns)
    start[-1] = 1.0
    schedule = load_schedule(task.schedule)
    split = rows_of(schedule.strategy.payload.num_fragments)
    parts = {f"rows{place}": torch.nn.Parameter(part) for place, part in enumerate(start.split(split))}
    model = torch.nn.ParameterDict(parts)
    diary = Diary(Path(task.folder), rank, list(parts.values()))
    diary.note("begins", int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), os.getpid())
    step, children = 0, []
    try:
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, model, schedule, timeout=task.timeout, trace=task.trace)
        if task.restarts and task.checkpoints is not None:
            load_checkpoint(optimizer, task.checkpoints)
        diary.note("ready", begun := optimizer.steps)
        children = _fork_children(task)
        diary.note("forked", begun, children)
        if task.saves:
            signal.signal(signal.SIGTERM, lambda *_: _save(task, rank))
        gradient = torch.zeros_like(start)
        gradient[rank] = -1.0
        chance, start_time = random.Random(rank), time.monotonic()
        while (step := optimizer.steps) < task.steps:  # a worker that skips counts steps that it does not take
            _step(task, step, optimizer, gradient, diary)
            # By the clock, so that one that was held up catches up: under some kinds no worker waits for the others in
            # between, and `finish` waits for one timeout only.
            due = start_time + STEP_SECONDS * (step - begun + chance.random())
            time.sleep(max(0.0, due - time.monotonic()))
        step = task.steps
        if task.meets:
            _meet(Path(task.folder), rank, size)
        diary.note("finishes", step)
        optimizer.finish()
        diary.note("finished", step)
    except PartreduceError as error:
        diary.note("failed", step, f"{type(error).__name__}: {error}")
        raise
    except BaseException as error:
        diary.note("raised", step, f"{type(error).__name__}: {error}")
        raise
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _fork_children(task: Task) -> list[int]:
    """Fork the task's children, which run until the task's folder is deleted or they are killed; return their ids."""
    pids: list[int] = []
    for _ in range(task.children):
        pid = os.fork()
        if pid == 0:
            _close_pipes()
            while Path(task.folder).exists():
                time.sleep(0.1)
            os._exit(0)
        pids.append(pid)
    return pids


def _close_pipes() -> None:
    """Close the pipe by whose end torchrun's agent notices this worker's; a process that torchrun starts has none."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names are numbers here
        with contextlib.suppress(OSError):  # what the listing itself was read from
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                os.close(int(name))


def _save(task: Task, rank: int) -> None:
    time.sleep(SAVE_SECONDS)
    Path(task.folder, f"saved-{rank}").touch()
    os._exit(0)


def _meet(folder: Path, rank: int, size: int) -> None:
    """Wait for slower workers, as a user's evaluation would: `finish` itself waits for one timeout only."""
    (folder / f"done-{rank}").touch()
    began = [next(r for r in reversed(records_after(folder, other)[0]) if r.what == "begins") for other in range(size)]
    deadline = time.monotonic() + MEET_SECONDS
    for other in range(size):
        while not (folder / f"done-{other}").exists() and time.monotonic() < deadline:
            if not runs(int(began[other].more)):
                return
            time.sleep(0.02)


def _step(task: Task, step: int, optimizer: DistributedOptimizer, gradient: torch.Tensor, diary: Diary) -> None:
    if optimizer.rank == task.raising and step == task.raising_step:
        diary.note("raises", step)
        raise ValueError("a bug in the data loader")
    for part, share in zip(diary.rows, gradient.split([len(part) for part in diary.rows]), strict=True):
        part.grad = share.clone()
    executed = getattr(getattr(optimizer.runner, "client", None), "executed", [])
    before = len(executed)
    diary.note("enters", step)
    optimizer.step()
    membership = optimizer.run.membership
    diary.note("leaves", step, list(membership.views) if isinstance(membership, Member) else list(executed[before:]))
    every = AGAIN_STEPS if task.restarts else CHECKPOINT_STEPS
    if task.checkpoints is not None and optimizer.steps % every == 0:
        try:
            save_checkpoint(optimizer, task.checkpoints)
            diary.note("saved", step)
        except FileError as error:
            diary.note("not saved", step, str(error))


if __name__ == "__main__":
    work()
