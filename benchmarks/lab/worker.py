"""One worker of one cell: joins the run, trains, and writes timestamps and snapshots of its parameters.

Nothing is evaluated during the run, because an evaluation of the mean model would synchronize the workers and change
the measurement. Snapshots (16-bit, in memory) are averaged and evaluated afterwards. The baselines are here, too:
torch's own ways of synchronizing, as their users would write them.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import partreduce
from benchmarks import kit
from benchmarks.kit import one_thread
from benchmarks.lab.setting import Job
from benchmarks.lab.tasks import Batches, Clock, Samples, loss_of, make_model
from partreduce.topo.errors import PartreduceError

NAME = "board"


class Board:
    """Counters of one cell: the workers that are ready, every worker's steps, and whether the run is over."""

    def __init__(self, folder: Path, num_workers: int, *, create: bool = False) -> None:
        path, shape = folder / NAME, (2 * num_workers + 1,)
        self._cells = np.memmap(path, dtype=np.int64, mode="w+" if create else "r+", shape=shape)
        self._count = num_workers

    def ready(self, rank: int, seconds: float) -> bool:
        """Count this worker as ready and wait for the others; return False if they are not in time."""
        self._cells[rank] = 1
        end = time.monotonic() + seconds
        while int(self._cells[: self._count].sum()) < self._count:
            if self.over or time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def stepped(self, rank: int, steps: int) -> None:
        self._cells[self._count + rank] = steps

    @property
    def all_steps(self) -> int:
        return int(self._cells[self._count : -1].sum())

    @property
    def over(self) -> bool:
        return bool(self._cells[-1])

    def end(self) -> None:
        self._cells[-1] = 1


def _join(job: Job) -> None:
    dist.init_process_group("gloo", timeout=_patience(job))


def _patience(job: Job) -> timedelta:
    return timedelta(seconds=job.limit + 20)


def _group_of_node(job: Job) -> Any:
    """Return the group of this worker's node; all workers create all nodes' groups together."""
    size, nodes = job.workers_per_node, range(job.num_nodes)
    made = [dist.new_group(list(range(n * size, (n + 1) * size)), timeout=_patience(job)) for n in nodes]
    return made[dist.get_rank() // size]


class Alone:
    """No synchronization, the compute-only limit of the lab's code; the base class of the other ways to train.

    `protocol` is the schedule's, `share` the largest number of steps per round divided by this worker's own, `in_step`
    whether all workers' numbers are equal, and `progress` the step that a worker with an iteration gap has entered, or
    the number of sums that a worker under a quorum took.
    """

    protocol = ""
    share = 1
    in_step = True
    progress = 0

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        self.model, self._optimizer = model, optimizer

    def step(self) -> None:
        self._optimizer.step()

    def close(self) -> None:
        """Do nothing; torch's own clean-up can wait for peers, and the process ends now."""


class Ddp(Alone):
    """DistributedDataParallel with its default buckets (1 MB, then 25 MB), which it sends during backward.

    The option `hook` sends gradients in float16, or as PowerSGD's products of the option `rank`.
    """

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        _join(job)
        caps = {"bucket_cap_mb": job.options["bucket"]} if "bucket" in job.options else {}
        # Backward averages the gradients.
        super().__init__(
            job, torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, **caps), optimizer
        )
        model_of_all: Any = self.model
        match job.options.get("hook"):
            case "float16":
                model_of_all.register_comm_hook(None, default_hooks.fp16_compress_hook)
            case "PowerSGD":
                state = powerSGD_hook.PowerSGDState(
                    None, matrix_approximation_rank=job.options["rank"], start_powerSGD_iter=2
                )
                model_of_all.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class Hierarchical(Alone):
    """All-reduce of the gradients in two levels: reduce-scatter in the node, all-reduce across nodes, all-gather."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _join(job)
        super().__init__(job, model, optimizer)
        rank, size = dist.get_rank(), job.workers_per_node
        rows = [dist.new_group(list(range(r, job.num_workers, size)), timeout=_patience(job)) for r in range(size)]
        self._node, self._row, self._place = _group_of_node(job), rows[rank % size], rank % size
        length = sum(p.numel() for p in model.parameters())
        self._flat = torch.zeros(-(-length // size) * size)
        self._shards = list(self._flat.chunk(size))
        self._mine = torch.zeros_like(self._shards[0])
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)

    def step(self) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        there = self._flat[: sum(gradient.numel() for gradient in gradients)]
        torch.cat([gradient.flatten() for gradient in gradients], out=there)
        self._flat.div_(dist.get_world_size())
        dist.reduce_scatter(self._mine, self._shards, group=self._node)
        dist.all_reduce(self._mine, group=self._row)
        dist.all_gather(self._shards, self._mine, group=self._node)
        for gradient, mean in zip(gradients, there.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
        self._optimizer.step()


class TorchAverager(Alone):
    """PyTorch's HierarchicalModelAverager: averages in the node every `inner` steps, over all every `outer`."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from collections import OrderedDict

        from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

        _join(job)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        super().__init__(job, model, optimizer)
        inner, outer = job.options["inner"], job.options["outer"]
        periods = OrderedDict([(inner, job.workers_per_node), (outer, job.num_workers)])
        self._averager: Any = HierarchicalModelAverager(period_group_size_dict=periods)
        self._averager.step = 1  # from 0, torch averages models that are equal

    def step(self) -> None:
        self._optimizer.step()
        self._averager.average_parameters(self.model.parameters())


class PostLocal(Alone):
    """PyTorch's post-local SGD: gradients are averaged in the node in each step, models over all every `outer`."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        _join(job)
        whole: Any = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        state = post_localSGD_hook.PostLocalSGDState(None, _group_of_node(job), start_localSGD_iter=0)
        whole.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=job.options["outer"], warmup_steps=0)
        averager.step = 1  # from 0, torch averages models that are equal
        super().__init__(job, whole, PostLocalSGDOptimizer(optimizer, averager))


def use_environment(job: Job, node: int) -> int:
    """Set the run's environment variables from the node's; return the rank."""
    rank = job.first_of(node) + int(os.environ["LOCAL_RANK"])
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(job.num_workers),
        GROUP_RANK=str(node),
        GROUP_WORLD_SIZE=str(job.num_nodes),
        MASTER_ADDR=job.address,
        MASTER_PORT=str(job.port),
        GLOO_SOCKET_IFNAME="eth0",
        **job.environment,
    )
    return rank


HEADER = struct.Struct("<dq")
START_SECONDS = 45.0
SPARE_SECONDS = 15.0
LEAVE_SECONDS = 1.0
APART = 4
"""Factor of the snapshots of workers at different steps, of which one in so many is evaluated."""
FINISH_SECONDS = 8.0
"""Seconds within which workers under a quorum must reach the same last sum."""


class Partreduce(Alone):
    """Training by `partreduce.DistributedOptimizer`, with its trace."""

    def __init__(self, job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert job.schedule is not None
        options = {**job.options, "timeout": START_SECONDS, "trace": job.path}
        self._averaging = partreduce.DistributedOptimizer(optimizer, model, job.schedule, **options)
        super().__init__(job, model, self._averaging)
        schedule = self._averaging.schedule
        self.protocol, steps = schedule.strategy.protocol, schedule.worker_steps()
        self.share = max(1, int(steps.max()) // schedule.steps_per_round_of(self._averaging.rank))
        self.in_step = len(set(steps.tolist())) == 1

    @property
    def progress(self) -> int:
        return self._averaging.round

    def close(self) -> None:
        """Under a quorum end with a sum of all; the launcher's exit hooks write the trace and inform the others."""
        if self.protocol.startswith("quorum"):
            with contextlib.suppress(PartreduceError, RuntimeError):  # who has gone has left its results
                self._averaging.finish()


KINDS: dict[str, type[Alone]] = {
    "partreduce": Partreduce,
    "alone": Alone,
    "ddp": Ddp,
    "hierarchical": Hierarchical,
    "torch-averager": TorchAverager,
    "post-local": PostLocal,
}


def work(job: Job, node: int, samples: Samples) -> None:
    """Run the worker; an alarm ends the process if it hangs."""
    kit.end_after(START_SECONDS + job.limit + SPARE_SECONDS)
    rank = use_environment(job, node)
    board = Board(job.path, job.num_workers)
    report: dict[str, object] = {"rank": rank}
    try:
        report.update(_train(job, rank, samples, board))
    except (PartreduceError, RuntimeError) as error:
        board.end()
        report["failed"] = f"{type(error).__name__}: {error}"[:400]
        traceback.print_exc()
    _write(job, rank, report)


def _train(job: Job, rank: int, samples: Samples, board: Board) -> dict[str, object]:
    one_thread()
    clock = Clock()
    model = make_model(job.setting.task, samples, clock, job.seed)
    momentum, decay = job.setting.momentum, job.setting.weight_decay
    inner = torch.optim.SGD(model.parameters(), lr=job.learning_rate, momentum=momentum, weight_decay=decay)
    training = KINDS[job.how](job, model, inner)
    batches = Batches(job, rank, samples)
    apart, partial_sums = training.protocol == "gap", training.protocol.startswith("quorum")
    goal = job.steps if job.free_running else job.steps // training.share
    # More snapshots where workers are at different steps, so that none is old.
    every = job.every if training.in_step and not (job.free_running or apart) else max(1, job.every // APART)
    seconds = partial(job.setting.step_seconds, job.num_workers, rank, job.seed)
    times: list[tuple[float, float, float]] = []
    if not board.ready(rank, START_SECONDS):
        return {"failed": "the others were not ready in time"}
    sent, started, end = bytes_out(), time.monotonic(), time.monotonic() + job.limit

    def result(ended: str) -> dict[str, object]:
        found = {"ended": ended, "started": started, "times": list(times), "sent": bytes_out() - sent}
        return {**found, "rounds": training.progress} if partial_sums else found

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
                    _snapshot(file, model, reached)
                training.model.train()
                loss = loss_of(job.setting.task, training.model(samples.inputs[batch]), samples.labels[batch])
                inner.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                clock.until(1.0)
                # DDP communicates inside backward: there the timetable alone says how long computing took.
                computed = begun + due if job.how in ("ddp", "post-local") else time.monotonic()
                training.step()
                times.append((begun, computed, time.monotonic()))
                reached = training.progress if apart else reached + 1
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
        if reached % every == 0:
            _snapshot(file, model, reached)
    report = result(ended)
    _wait_for_the_others(job, board, end, apart=apart)
    board.end()
    training.close()
    return {**report, "reached": reached, "apart": apart}


def _wait_for_the_others(job: Job, board: Board, end: float, *, apart: bool) -> None:
    """Wait before closing connections, from which others may still have to read the last step.

    Workers with an iteration gap end one after another: they wait for the last one, for the `end` of the run, or until
    one of them fails.
    """
    patience = LEAVE_SECONDS + (end if apart else time.monotonic())
    while not job.free_running and board.all_steps < job.steps * job.num_workers and time.monotonic() < patience:
        if apart and board.over:
            break
        time.sleep(0.005)


def _leave_when_over(
    job: Job, rank: int, board: Board, result: Callable[[], dict[str, object]], patience: float
) -> None:
    """End a free-running worker a little after the run, since it may wait for peers that have left.

    Its last, unfinished step is not among the results in any case.
    """
    while not board.over:
        time.sleep(0.1)
    report = result()
    time.sleep(patience)
    if not _path(job, rank).exists():
        _write(job, rank, {"rank": rank, **report})
    os._exit(0)


def _path(job: Job, rank: int) -> Path:
    return job.path / f"worker-{rank:03d}.json"


def _write(job: Job, rank: int, report: dict[str, object]) -> None:
    path = _path(job, rank)
    part = path.with_suffix(f".{threading.get_ident()}")
    part.write_text(json.dumps(report))
    part.replace(path)


def _snapshot(file, model: torch.nn.Module, step: int) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    now = time.monotonic()
    with torch.no_grad():
        flat = torch.cat([p.detach().flatten() for p in model.parameters()]).half()
    file.write(HEADER.pack(now, step) + flat.numpy().tobytes())
    file.flush()


def bytes_out() -> int:
    """Return the bytes that this worker's node has sent so far."""
    path = Path("/sys/class/net/eth0/statistics/tx_bytes")
    return int(path.read_text()) if path.exists() else 0
