"""Every way of exchanging tables, ready to train: the two baselines, and ours by schedules that name routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

import torch

import partreduce
from benchmarks.lab.setting import Job
from benchmarks.papers.tables.baselines import Gathered, Servers
from benchmarks.papers.tables.models import Batch, Language
from partreduce.runtime.transport.communicators import Communicator

TF_PS, TF_PS_IN_PAIRS, HOROVOD = "TF-PS", "TF-PS, in rounds of pairs", "Horovod"
TF_PS_CUT = "TF-PS, dense parameters cut evenly"
SERVERS = (TF_PS, TF_PS_IN_PAIRS, TF_PS_CUT)
BASELINES = (*SERVERS, HOROVOD)
TABLE_RATE, RATE = 0.2, 0.01
"""Learning rates of Adagrad for tables and for the rest."""
TIMEOUT = 60.0


class Way(Protocol):
    """A model and what makes it step."""

    model: Language

    def before(self, batch: Batch) -> None:
        """Fetch what forward reads, where that does not happen by itself."""

    def step(self) -> None:
        """Exchange gradients and step."""


def way_of(name: str, job: Job, group: Communicator) -> Way:
    """The way of that name; ours reads its schedule. Models are the same on all workers."""

    def optimizer(parameters: list[torch.nn.Parameter], is_table: bool) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(parameters, lr=TABLE_RATE if is_table else RATE)

    model = Language(sparse=True)
    if name == HOROVOD:
        return Gathered(group, model, optimizer)
    if name in SERVERS:
        hosts = range(0, job.num_workers, job.workers_per_node)
        return Servers(group, model, optimizer, hosts, in_pairs=name == TF_PS_IN_PAIRS, cut=name == TF_PS_CUT)
    return Routed(model, job.options["schedules"][name])


class Routed:
    """A schedule of ours, with the lines that its users write; models are equal from the start, and nothing is sent."""

    def __init__(self, model: Language, schedule: str) -> None:
        groups = [
            {"params": list(model.tables().values()), "lr": TABLE_RATE},
            {"params": model.dense(), "lr": RATE},
        ]
        adagrad = torch.optim.Adagrad(groups)
        codec = json.loads(Path(schedule).read_text())["strategy"].get("transport", {}).get("codec", "none")
        initial = "keep" if codec == "none" else "broadcast"  # coded averages of parameters want it
        self.optimizer = partreduce.DistributedOptimizer(adagrad, model, schedule, timeout=TIMEOUT, initial=initial)
        self.model = model

    def before(self, batch: Batch) -> None:
        """Lookups fetch rows by themselves."""

    def step(self) -> None:
        self.optimizer.step()
