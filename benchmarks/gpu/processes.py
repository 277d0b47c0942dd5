"""One worker process of stages 7 and 8: trains a small model on the GPU and checks its result."""

from __future__ import annotations

import os
import sys

import torch

from benchmarks.gpu.cells import RANKS, Cell, model_and_data, optimizer_of
from preduce.runtime.optimizer import DistributedOptimizer
from preduce.runtime.state.checkpoint import load_checkpoint, save_checkpoint
from preduce.topo.cluster import Cluster
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.strategies.pairwise import Pairwise
from preduce.topo.strategies.server import Server

STEPS = 6


def schedule_of(kind: str, workers: int) -> Schedule:
    """The schedule of a body."""
    cluster = Cluster.regular(1, workers)
    if kind == "server":
        return Schedule("gpu server", cluster, Server(hosts=(0, 1)))
    if kind == "pairwise":
        return Schedule("gpu pairwise", cluster, Pairwise(active=(0, 2)))
    return Cell("gpu static").schedule if workers == RANKS else Schedule("gpu two", cluster, AllReduce())


def main(kind: str, folder: str) -> None:
    """One worker."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", 0 if os.environ.get("PREDUCE_ONE_GPU") else rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    model, batches = model_and_data(Cell("process"), rank)
    model.to(device)
    optimizer = DistributedOptimizer(
        optimizer_of(Cell("process"), model), model, schedule_of(kind, workers), timeout=30
    )
    steps = 10_000 if kind == "killed" else STEPS
    for step in range(steps):
        inputs, targets = batches[step % len(batches)]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
        optimizer.step()
        if kind == "killed":
            sys.stdout.write(f"step {step}\n")
            sys.stdout.flush()
        if kind == "checkpoint" and step == STEPS // 2:
            save_checkpoint(optimizer, folder)
            saved = [value.clone() for value in model.parameters()]
    if kind == "checkpoint":
        resumed = load_checkpoint(optimizer, folder)
        assert resumed is not None
        assert all(torch.equal(a, b) for a, b in zip(saved, model.parameters(), strict=True))
    optimizer.finish()
    assert all(bool(value.isfinite().all()) for value in model.parameters())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
