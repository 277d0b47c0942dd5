"""The demonstration's workers: ordinary data-parallel training through `partreduce.DistributedOptimizer`.

`python -m partreduce.demo.train PLAN.json` runs every schedule of a plan, one after another, each with new processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import partreduce
from partreduce.runtime.environment import RANK, WORLD_SIZE
from partreduce.runtime.launcher.launch import launch
from partreduce.topo.document.writer import write_file
from partreduce.topo.extras import require

TEST_SHARE = 5


@dataclass(frozen=True, slots=True)
class Digits:
    """Training and test images [count, 1, 8, 8], from 0 to 1, and their labels [count]."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_digits() -> Digits:
    """Load scikit-learn's 1,797 digits in a fixed order: four fifths to train on, one fifth to test."""
    require("sklearn", purpose="the demonstration's data")
    from sklearn.datasets import load_digits as bundled

    data = bundled()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.tensor(data.images[order] / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target[order], dtype=torch.int64)
    cut = len(order) - len(order) // TEST_SHARE
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


def make_model(seed: int = 0) -> torch.nn.Module:
    """Build a CNN of two convolutions and two dense layers (71,754 parameters) whose weights depend on `seed` only."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of the demonstration: the path of each schedule's file by its name, hyperparameters, folder for results.

    In each of the `turns` every schedule runs once. Each turn begins with another schedule, since other work of the
    machine makes seconds differ; losses are equal in all turns. Workers evaluate after every `every` steps.
    """

    schedules: dict[str, str]
    folder: str
    num_nodes: int
    steps: int = 160
    turns: int = 3
    every: int = 4
    batch: int = 16
    learning_rate: float = 0.3
    seed: int = 0

    def write(self, path: Path) -> None:
        write_file(path, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls(**json.loads(path.read_text()))

    def place(self, name: str, turn: int = 0) -> Path:
        """Return the folder for the results of schedule `name` in one turn."""
        return Path(self.folder) / (f"{name}-turn-{turn + 1}" if turn else name)

    def order(self, turn: int) -> list[str]:
        """Return the names of the schedules in the order of their runs in one turn."""
        names = list(self.schedules)
        first = turn % len(names)
        return names[first:] + names[:first]


def work(plan: Plan, name: str, turn: int, digits: Digits) -> None:
    """Train as one worker under schedule `name` in one turn, and write the losses to a file in the turn's folder.

    The worker's rank and the number of workers are in the environment, as torchrun sets them.
    """
    folder = plan.place(name, turn)
    rank, count = int(os.environ[RANK]), int(os.environ[WORLD_SIZE])
    model = make_model(plan.seed)
    optimizer = partreduce.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=plan.learning_rate),
        model,
        plan.schedules[name],
        timeout=60.0,
        trace=folder,
    )
    shard = torch.arange(rank, len(digits.train_labels), count)
    generator = torch.Generator().manual_seed(1000 * plan.seed + rank)
    curve, losses, seconds, started = [], [], 0.0, time.perf_counter()
    for step in range(plan.steps):
        batch = shard[torch.randint(len(shard), (plan.batch,), generator=generator)]
        loss = cross_entropy(model(digits.train_images[batch]), digits.train_labels[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % plan.every == 0:
            seconds += time.perf_counter() - started
            with optimizer.mean_model():
                curve.append({"step": step + 1, "seconds": seconds, **_sums(model, digits, rank, count)})
            if rank == 0:
                progress = {"name": name, "step": turn * plan.steps + step + 1}
                write_file(Path(plan.folder) / "progress.json", json.dumps(progress).encode())
            started = time.perf_counter()
    optimizer.finish()
    write_file(folder / f"result-{rank:05d}.json", json.dumps({"curve": curve, "losses": losses}).encode())


def _sums(model: torch.nn.Module, digits: Digits, rank: int, count: int) -> dict[str, float]:
    """Evaluate every `count`-th image from image `rank` on, so that `count` workers together evaluate all.

    Returns "loss_sum", the sum of the losses on training images, and "right", the correct predictions on test images.
    """
    with torch.no_grad():
        part = slice(rank, None, count)
        scores = model(digits.train_images[part])
        loss = cross_entropy(scores, digits.train_labels[part], reduction="sum")
        right = (model(digits.test_images[part]).argmax(1) == digits.test_labels[part]).sum()
    return {"loss_sum": loss.item(), "right": right.item()}


def main(path: str) -> int:
    """Run the plan in the JSON file `path`; returns the exit code of the first run that failed, or 0."""
    plan = Plan.read(Path(path))
    digits = load_digits()  # before the workers are forked, so that scikit-learn is imported once
    for turn in range(plan.turns):
        for name in plan.order(turn):
            plan.place(name, turn).mkdir(parents=True, exist_ok=True)
            num_workers = partreduce.load_schedule(plan.schedules[name]).num_workers
            worker = partial(work, plan, name, turn, digits)
            code = launch(worker, num_workers=num_workers, num_nodes=plan.num_nodes, threads=1)
            if code:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
