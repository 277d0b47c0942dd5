"""Forks workers that train with dropout and momentum, save every few rounds, may be killed, and resume.

Reads one JSON request per line, answers with one; torch is imported once.
"""

import io
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch

from runtime.checkpoint import load_checkpoint, save_checkpoint
from runtime.launch import launch
from runtime.optimizer import DistributedOptimizer
from topo.cluster import Cluster
from topo.phase import Phase
from topo.schedule import Schedule
from topo.strategies import AllReduce, Static


def schedule(kind: str, n: int) -> Schedule:
    if kind == "allreduce":
        return Schedule(kind, Cluster.regular(1, n), AllReduce())
    phases = tuple(Phase.from_groups(n, groups) for groups in ([[0, 1]], [[1, 2]], [[0, 2]]))
    overlap, pace = kind == "overlap", (1, 2, 1) if kind == "pace" else 1
    return Schedule(kind, Cluster.regular(1, n), Static(phases=phases, overlap=overlap, pace=pace))


def work() -> None:
    request = json.loads(os.environ["REQUEST"])
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(rank)
    np.random.seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
    )
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if request.get("adam"):
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(inner, T_max=40)
    optimizer = DistributedOptimizer(inner, model, schedule(request["kind"], n), timeout=30)
    resumed = load_checkpoint(optimizer, request["directory"]) if request["resume"] else None
    if resumed is not None:
        scheduler.load_state_dict(resumed.extra["scheduler"])
    pace = optimizer.schedule.pace_of(rank)
    for step in range(optimizer.steps, request["rounds"] * pace):
        if rank == request.get("victim") and step == request["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 4) + torch.from_numpy(np.random.normal(size=(8, 4))).float()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % (3 * pace) == 0 and request["save"]:
            save_checkpoint(optimizer, request["directory"], extra={"scheduler": scheduler.state_dict()})
    weights = torch.cat(
        [p.detach().reshape(-1) for p in model.parameters()] + [b.reshape(-1).float() for b in model.buffers()]
    )
    optimizer.finish()
    started = resumed.steps if resumed else 0
    say("REPORT " + json.dumps({"rank": rank, "weights": weights.tolist(), "from": started}))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for line in sys.stdin:
        output = io.StringIO()
        code = launch(work, num_workers=3, output=output, environment={"REQUEST": line.strip()}, grace=3.0)
        say(json.dumps({"code": code, "output": output.getvalue()}))
