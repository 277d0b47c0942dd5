"""Every way of exchanging tables, ready to train: the two baselines, and ours by schedules that name routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

import partreduce
from benchmarks.papers.tables.baselines import Gathered, Servers
from benchmarks.papers.tables.models import ClickData, ClickModel, Language, LanguageData
from benchmarks.papers.tables.sweep import SweepData, SweepModel

if TYPE_CHECKING:
    from benchmarks.lab.job import Job
    from benchmarks.papers.tables.models import Batch, WithTables
    from partreduce.runtime.transport.communicators import Communicator

TF_PS, TF_PS_CUT, HOROVOD = "TF-PS", "TF-PS, cut evenly", "Horovod"
BASELINES = (TF_PS, TF_PS_CUT, HOROVOD)
DENSE = "dense"
RATES = {"language": (0.2, 0.01), "clicks": (0.1, 0.01), "sweep": (0.1, 0.01)}
"""Learning rates of Adagrad for tables and for the rest."""
TIMEOUT = 60.0


class Data(Protocol):
    """Batches of a task."""

    def batch(self, seed: int, step: int, worker: int) -> Batch:
        """What a worker's step reads."""

    def judged(self, worker: int, size: int) -> Batch:
        """What nobody trains on."""


class Way(Protocol):
    """A model and what makes it step."""

    model: WithTables

    def before(self, batch: Batch) -> None:
        """Fetch what forward reads, where that does not happen by itself."""

    def step(self) -> None:
        """Exchange gradients and step."""


def data_of(task: str, path: str) -> Data:
    """A task's batches; `sweep 0.03` touches that share of its table."""
    if task == "language":
        return LanguageData(np.load(path, mmap_mode="r"))
    return ClickData() if task == "clicks" else SweepData(float(task.split()[1]))


def model_of(task: str, *, sparse: bool = True) -> WithTables:
    """A task's model, the same on all workers."""
    kind = {"language": Language, "clicks": ClickModel, "sweep": SweepModel}[task.split(maxsplit=1)[0]]
    return kind(sparse=sparse)


def way_of(name: str, job: Job, group: Communicator) -> Way:
    """The way of that name; ours reads its schedule."""
    task = job.task
    table_rate, rate = RATES[task.split(maxsplit=1)[0]]

    def optimizer(parameters: list[torch.nn.Parameter], is_table: bool) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=table_rate if is_table else rate)

    model = model_of(task, sparse=name in BASELINES or not (name == DENSE or task.startswith("sweep")))
    hosts = range(0, job.num_workers, job.workers_per_node)
    if name == HOROVOD:
        return Gathered(group, model, optimizer)
    if name in BASELINES:
        return Servers(group, model, optimizer, hosts, whole=name == TF_PS)
    return Routed(model, job.options["schedules"][name], table_rate, rate)


class Routed:
    """A schedule of ours, with the lines that its users write; models are equal from the start, and nothing is sent."""

    def __init__(self, model: WithTables, schedule: str, table_rate: float, rate: float) -> None:
        groups = [
            {"params": list(model.tables().values()), "lr": table_rate},
            {"params": model.dense(), "lr": rate},
        ]
        adagrad = torch.optim.Adagrad(groups)
        codec = json.loads(Path(schedule).read_text())["strategy"].get("how", {}).get("codec", "none")
        initial = "keep" if codec == "none" else "broadcast"  # coded averages of parameters want it
        self.optimizer = partreduce.DistributedOptimizer(adagrad, model, schedule, timeout=TIMEOUT, initial=initial)
        self.model = model

    def before(self, batch: Batch) -> None:
        """Lookups fetch rows by themselves."""

    def step(self) -> None:
        """As the schedule says."""
        self.optimizer.step()
