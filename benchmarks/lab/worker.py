"""One worker of one cell: joins the run, trains, and leaves timestamps and snapshots of its parameters behind.

Nothing is evaluated while the clock runs: an evaluation of the mean model would make everybody meet and so change what
is measured. Snapshots (16-bit, in memory) are averaged and evaluated afterwards.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import partreduce
from benchmarks import kit
from benchmarks.kit import one_thread
from benchmarks.lab.baselines import KINDS, Alone, joined, use_environment
from benchmarks.lab.batches import Batches
from benchmarks.lab.board import Board
from benchmarks.lab.gates import Clock
from benchmarks.lab.job import Job
from benchmarks.lab.lengths import StepLengths
from benchmarks.lab.tasks import Samples, loss_of, make_model, optimizer_of
from partreduce.topo.errors import PartreduceError

HEADER = struct.Struct("<dq")
START_SECONDS = 45.0
SPARE_SECONDS = 15.0
LEAVE_SECONDS = 1.0
APART = 4
"""Times as many snapshots are taken of workers that differ, of which so much fewer are evaluated."""
FINISH_SECONDS = 8.0
"""How long workers whose sums do not wait may take to reach the same last sum."""


class Partreduce:
    """Training through `partreduce.DistributedOptimizer`, with its trace.

    With `replicas` in the options a node's workers are one replica: before each step they average their gradients.
    """

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert job.schedule is not None
        self.model = model
        options = {**job.options, "timeout": START_SECONDS, "trace": job.path}
        replicas = options.pop("replicas", False)
        self._node = joined(job) if replicas else None
        self.optimizer = partreduce.DistributedOptimizer(optimizer, model, job.schedule, **options)

    def step(self) -> None:
        if self._node is not None:
            gradients = [part.grad for part in self.model.parameters() if part.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, group=self._node)
            for gradient, mean in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient) / self._node.size())
        self.optimizer.step()

    def close(self) -> None:
        """The launcher's exit hooks write the trace and tell the others; sums that do not wait end with one of all."""
        if self.optimizer.schedule.strategy.protocol.startswith("quorum"):
            with contextlib.suppress(PartreduceError, RuntimeError):  # who has gone has left its results
                self.optimizer.finish()


Training = Partreduce | Alone


def work(job: Job, node: int, samples: Samples) -> None:
    """Everything a worker does; ends the process by an alarm if a cell hangs, whatever it hangs in."""
    kit.end_after(START_SECONDS + job.limit + SPARE_SECONDS)
    rank = use_environment(job, node)
    board = Board(job.path, job.num_workers)
    said: dict[str, object] = {"rank": rank}
    try:
        said.update(_train(job, rank, samples, board))
    except (PartreduceError, RuntimeError) as error:
        board.end()
        said["failed"] = f"{type(error).__name__}: {error}"[:400]
        traceback.print_exc()
    _write(job, rank, said)


def _train(job: Job, rank: int, samples: Samples, board: Board) -> dict[str, object]:
    one_thread()
    clock = Clock()
    model = make_model(job.task, samples, clock, job.seed)
    plain = model
    inner = optimizer_of(job, model.parameters())
    training: Training = (Partreduce if job.how == "partreduce" else KINDS[job.how])(job, model, inner)
    batches = Batches(job, rank, samples)
    protocol = training.optimizer.schedule.strategy.protocol if isinstance(training, Partreduce) else ""
    apart, partial_sums = protocol == "gap", protocol.startswith("quorum")
    goal, every = (
        job.steps // _share(training, job),
        _snapshots_every(training, job, apart=apart),
    )
    seconds = StepLengths(job, job.num_workers, rank, job.seed)
    times: list[tuple[float, float, float]] = []
    if not board.ready(rank, START_SECONDS):
        return {"failed": "the others were not ready in time"}
    sent, started, end = bytes_out(), time.monotonic(), time.monotonic() + job.limit
    busy = time.process_time()

    def result(ended: str) -> dict[str, object]:
        found = {"ended": ended, "started": started, "times": list(times), "sent": bytes_out() - sent}
        return {**found, "rounds": _reached(training)} if partial_sums else found

    if job.free_running:
        patience = FINISH_SECONDS if partial_sums else LEAVE_SECONDS
        threading.Thread(
            target=_leave_when_over, args=(job, rank, board, partial(result, "steps"), patience), daemon=True
        ).start()
    ended, reached = "steps", 0
    with (job.path / f"snapshots-{rank:03d}.bin").open("wb") as file:
        try:
            while reached < 100 * job.steps:
                batch, share = batches.draw()
                due = share * seconds(reached)
                begun = clock.begin(due)
                if reached % every == 0:  # where time is padded anyway, so that it costs the run nothing
                    _snapshot(file, plain, reached)
                training.model.train()
                loss = loss_of(job.task, training.model(samples.inputs[batch]), samples.labels[batch])
                _set_rate(inner, job, board.all_steps / job.num_workers if job.free_running or apart else reached)
                inner.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                clock.until(1.0)
                # DDP communicates inside backward: there the timetable alone says how long computing took.
                computed = begun + due if job.how in ("ddp", "post-local") else time.monotonic()
                training.step()
                times.append((begun, computed, time.monotonic()))
                reached = _reached(training) if apart else reached + 1
                board.stepped(rank, reached if job.free_running else min(reached, goal))
                if time.monotonic() > end:
                    ended = "time"
                    break
                if reached >= goal and not job.free_running:
                    break
                if job.free_running and (board.over or board.all_steps >= job.steps * job.num_workers):
                    break
        except (PartreduceError, RuntimeError) as error:
            # The first who leaves takes the others' peer away: after the end that is how the rest learns of it.
            if not board.over:
                raise
            ended = "time" if time.monotonic() > end else "steps"
            print(f"left after the end of the run: {str(error)[:200]}", flush=True)
        if reached % every == 0 or job.falling:
            _snapshot(file, plain, reached)
    said = {**result(ended), "busy": time.process_time() - busy}
    _wait_for_the_others(job, board, end, apart=apart)
    board.end()
    training.close()
    return {**said, "reached": reached, "apart": apart}


def _wait_for_the_others(job: Job, board: Board, end: float, *, apart: bool) -> None:
    """Who closes its connections first takes what the others have still to read of the last step.

    Workers that keep a gap end one after the other: they wait for the last one, for the `end` of the run, or until one
    of them fails.
    """
    patience = LEAVE_SECONDS + (end if apart else time.monotonic())
    while not job.free_running and board.all_steps < job.steps * job.num_workers and time.monotonic() < patience:
        if apart and board.over:
            break
        time.sleep(0.005)


def _reached(training: Training) -> int:
    """The step that a worker which keeps a gap has entered (it may have skipped some), or the sums that one took."""
    assert isinstance(training, Partreduce)
    return training.optimizer.round


def _leave_when_over(
    job: Job, rank: int, board: Board, result: Callable[[], dict[str, object]], patience: float
) -> None:
    """A free-running worker may wait for peers that have already left: end it a little after the run.

    Its last, unfinished step is not among the results either way.
    """
    while not board.over:
        time.sleep(0.1)
    said = result()
    time.sleep(patience)
    if not _path(job, rank).exists():
        _write(job, rank, {"rank": rank, **said})
    os._exit(0)


def _path(job: Job, rank: int) -> Path:
    return job.path / f"worker-{rank:03d}.json"


def _write(job: Job, rank: int, said: dict[str, object]) -> None:
    path = _path(job, rank)
    part = path.with_suffix(f".{threading.get_ident()}")
    part.write_text(json.dumps(said))
    part.replace(path)


def _share(training: Training, job: Job) -> int:
    """The largest number of steps per round divided by this worker's own."""
    if not isinstance(training, Partreduce) or job.free_running:
        return 1
    schedule, rank = training.optimizer.schedule, training.optimizer.rank
    return max(1, int(schedule.worker_steps().max()) // schedule.steps_per_round_of(rank))


def _set_rate(optimizer: torch.optim.Optimizer, job: Job, taken: float) -> None:
    """The rate after so many steps of each worker, on average; a falling one is half a cosine, to nothing."""
    for group in optimizer.param_groups if job.falling else ():
        group["lr"] = rate_after(job, taken)


def rate_after(job: Job, taken: float) -> float:
    """A falling rate after so many steps."""
    return job.learning_rate * (1 + math.cos(math.pi * min(1.0, taken / job.steps))) / 2


def _snapshots_every(training: Training, job: Job, *, apart: bool) -> int:
    """Steps from one snapshot to the next: fewer where workers differ, whose newest would else be old."""
    together = not (job.free_running or apart) and (
        not isinstance(training, Partreduce) or len(set(training.optimizer.schedule.worker_steps().tolist())) == 1
    )
    return job.every if together else max(1, job.every // APART)


def _snapshot(file, model: torch.nn.Module, step: int) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    now = time.monotonic()
    with torch.no_grad():
        flat = torch.cat([p.detach().flatten() for p in model.parameters()]).half()
    file.write(HEADER.pack(now, step) + flat.numpy().tobytes())
    file.flush()


def bytes_out() -> int:
    """Bytes that this worker's node has sent so far."""
    path = Path("/sys/class/net/eth0/statistics/tx_bytes")
    return int(path.read_text()) if path.exists() else 0
