"""One worker process of stages 3c, 7 and 8: trains small models on the GPU and checks the results."""

from __future__ import annotations

import os
import sys

import torch

from helpers.device import table_cells
from helpers.device.cells import BY_NAME, RANKS, distance, model_and_data, optimizer_of
from partreduce.runtime.checkpoint import load_checkpoint, save_checkpoint
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.server import Server

STEPS = 6
CLOSE = 2e-4
"""Largest difference in float32 that another order of additions may cause."""


def schedule_of(kind: str, workers: int) -> Schedule:
    cluster = Cluster.regular(1, workers)
    if kind == "server":
        return Schedule("gpu server", cluster, Server(hosts=(0, 1)))
    if kind == "pairwise":
        return Schedule("gpu pairwise", cluster, Pairwise(active=(0, 2)))
    return BY_NAME["static"].schedule if workers == RANKS else Schedule("gpu two", cluster, AllReduce())


def tables(rank: int, device: torch.device) -> None:
    """Run all cells with tables on the CPU and then on the GPU; results must be close and on the right device."""
    gaps = {}
    for cell in table_cells.TABLE_CELLS:
        wanted = table_cells.train(cell, table_cells.prepare(cell, rank), torch.device("cpu"))
        got = table_cells.train(cell, table_cells.prepare(cell, rank), device)
        away = [name for name, value in got.items() if name.startswith(("words", "bag")) and value.device != device]
        assert not away, f"{cell.name}: {away} are not on {device}"
        gaps[cell.name] = distance([{"values": got}], [{"values": wanted}])
        assert gaps[cell.name] <= CLOSE, f"{cell.name}: {gaps[cell.name]:.3g} from the CPU's"
    sys.stdout.write(f"largest relative difference {max(gaps.values()):.3g}\n")


def main(kind: str, folder: str) -> None:
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", 0 if os.environ.get("PARTREDUCE_ONE_GPU") else rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if kind == "tables":
        tables(rank, device)
        return
    model, batches = model_and_data(BY_NAME["static"], rank)
    model.to(device)
    inner = optimizer_of(BY_NAME["static"], model)
    optimizer = DistributedOptimizer(inner, model, schedule_of(kind, workers), timeout=30)
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
