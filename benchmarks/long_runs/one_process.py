"""A thousand steps over regions by one process, for losses alone: what real workers reach, at the order of additions.

    python -m benchmarks.long_runs.one_process --momentum 0.9 --rates 0.08 0.16 0.32 --steps 252  # says how they end
    python -m benchmarks.long_runs.one_process --momentum 0.9 --rates 0.16 --seeds 0 1 2 --keep   # also writes it down
    python -m benchmarks.long_runs.one_process --optimizer adamw --rates 0.002 --contestants "DiLoCo, every 30, int4"
    python -m benchmarks.long_runs.one_process --optimizer adamw --rates 0.002 \\
        --contestants "DiLoCo of replicas, every 15, int4" --change '{"payload": {"outer": {"momentum": "7/10"}}}'

Models, shards, batches, falling rates and what is evaluated are those of the lab's workers (benchmarks/lab/worker.py).
Under All-Reduce workers' models are equal, so one model takes the mean gradient of all; other contestants, any of the
lab's with fixed phases and equal steps per round, train one model for each worker, or for each node that is a replica.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks import compact, kit
from benchmarks.lab.batches import Batches
from benchmarks.lab.contestants import named
from benchmarks.lab.gates import Clock
from benchmarks.lab.job import Job
from benchmarks.lab.plan import Planner
from benchmarks.lab.rehearse import advance_of
from benchmarks.lab.setting import settings
from benchmarks.lab.standing import provenance
from benchmarks.lab.tasks import Samples, accuracy, evaluated, loss_of, make_model, optimizer_of, samples_of
from benchmarks.lab.worker import rate_after
from benchmarks.long_runs.regions import BASE, CLUSTER, FREE, RESULT, STEPS, named_under, schedule_of
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.document.strategies import load_strategy
from partreduce.topo.schedule import Schedule

TASK = "deep text"


class Learner(Protocol):
    """What is trained: `step(number)` takes one of every worker, `mean()` is the model that is evaluated."""

    optimizer: torch.optim.Optimizer

    def step(self, number: int) -> None: ...

    def mean(self) -> nn.Module: ...


class Together:
    """One model, since all are equal, with the batches of all."""

    def __init__(self, job: Job, samples: Samples) -> None:
        self._model = make_model(job.task, samples, Clock(), job.seed).eval()  # gates are open then
        self._samples, self._task = samples, job.task
        self._batches = [Batches(job, rank, samples) for rank in range(job.num_workers)]
        self.optimizer = optimizer_of(job, self._model.parameters())

    def step(self, number: int) -> None:  # noqa: ARG002 - every step is alike
        batch = torch.cat([one.draw()[0] for one in self._batches])  # (workers x batch,): the mean of equal means
        self.optimizer.zero_grad()
        said = self._model(self._samples.inputs[batch])
        loss_of(self._task, said, self._samples.labels[batch]).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def mean(self) -> nn.Module:
        return self._model


class Workers:
    """A model for each worker of a schedule, `models` (workers, numbers), which it averages.

    Where these are replicas, a batch is those of all workers of one.
    One optimizer of all models is one of each: what it does to a number depends on this number's gradients alone.
    """

    def __init__(self, job: Job, samples: Samples, schedule: Schedule) -> None:
        self._model = make_model(job.task, samples, Clock(), job.seed).eval()
        self._samples, self._task, self.count = samples, job.task, schedule.num_workers
        self._batches = [Batches(job, rank, samples) for rank in range(job.num_workers)]
        self._shapes = {name: part.shape for name, part in self._model.named_parameters()}
        self.named = [(name, shape.numel()) for name, shape in self._shapes.items()]
        self._all = nn.Parameter(parameters_to_vector(self._model.parameters()).detach().repeat(self.count, 1))
        self.models = self._all.data
        self.optimizer = optimizer_of(job, [self._all])
        self._gradients = vmap(grad(self._loss))
        self.step = advance_of(self, schedule)

    def _loss(self, at: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        parts = at.split([size for _, size in self.named])
        named = {name: part.view(shape) for part, (name, shape) in zip(parts, self._shapes.items(), strict=True)}
        return loss_of(self._task, functional_call(self._model, named, (inputs,)), labels)

    def take(self, counts: Sequence[int]) -> None:
        """A step of each worker by itself; schedules of unequal steps per round are not trained here."""
        assert set(counts) == {1}, counts
        batches = torch.stack([one.draw()[0] for one in self._batches]).view(self.count, -1)
        self._all.grad = self._gradients(self.models, self._samples.inputs[batches], self._samples.labels[batches])
        self.optimizer.step()

    def mean(self) -> nn.Module:
        vector_to_parameters(self.models.mean(0), self._model.parameters())
        return self._model


def changed(schedule: Schedule, members: dict[str, Any]) -> Schedule:
    """With other values of these members of its strategy, as a file has them."""

    def merged(old: Any, new: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(old, dict) and isinstance(new, dict):
            return old | {key: merged(old.get(key), value) for key, value in new.items()}
        return new

    document = merged(dump_schedule(schedule)["strategy"], members)
    return replace(schedule, strategy=load_strategy(document, schedule.cluster, "--change"))


def learner_of(contestant: str, job: Job, samples: Samples, change: dict[str, Any]) -> Learner:
    if contestant == BASE:
        return Together(job, samples)
    schedule = changed(schedule_of(contestant, settings(CLUSTER.num_workers)[FREE]), change)
    if named(contestant, Planner({})).options.get("replicas"):
        schedule = replace(schedule, cluster=Cluster.regular(CLUSTER.num_nodes, 1))
    return Workers(job, samples, schedule)


def trained(job: Job, samples: Samples, learner: Learner) -> Iterator[tuple[int, float, float]]:
    """Steps taken, training loss, and share told right of held out samples, as often as the job says and at the end."""
    part, told = evaluated(samples), samples.held_out
    assert told is not None, "the task keeps samples that nobody trains with"
    for step in range(job.steps + 1):
        if step % job.every == 0 or step == job.steps:
            model = learner.mean()
            with torch.no_grad():
                loss = float(loss_of(job.task, model(part.inputs), part.labels))
            yield step, loss, accuracy(model, told)
        if step == job.steps:
            return
        for group in learner.optimizer.param_groups:
            group["lr"] = rate_after(job, step)
        learner.step(step)


def keep(row: dict[str, Any]) -> None:
    """Add a run to what long_regions.json holds, in place of the same one."""
    content = json.loads(RESULT.read_text())
    same = ("contestant", "rate", "seed")
    content["runs"] = [run for run in content["runs"] if any(run[key] != row[key] for key in same)] + [row]
    RESULT.write_text(compact.text(content, digits=5))


def main() -> int:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--contestants", default=BASE, help="names separated by semicolons, as in the lab")
    arguments.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    arguments.add_argument("--momentum", type=float, default=0.0, help="of SGD")
    arguments.add_argument("--rates", type=float, nargs="+", required=True)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--steps", type=int, default=STEPS)
    arguments.add_argument("--every", type=int, default=60)
    arguments.add_argument("--change", type=json.loads, default={}, help="members of the strategy, as a file has them")
    arguments.add_argument("--keep", action="store_true", help="write the runs down")
    chosen = arguments.parse_args()
    if chosen.keep and chosen.change:
        arguments.error("--keep: what is changed is no contestant; give it a name in benchmarks/lab/contestants.toml")
    kit.one_thread()  # as in the lab
    samples = samples_of(TASK)
    fields: dict[str, Any] = {"folder": "", "num_nodes": CLUSTER.num_nodes, "task": TASK, "falling": True}
    fields |= {"workers_per_node": CLUSTER.num_workers // CLUSTER.num_nodes, "steps": chosen.steps}
    fields |= {"optimizer": chosen.optimizer, "momentum": chosen.momentum, "every": chosen.every}
    about = {"commit": provenance("long_runs.one_process")["commit"], "command": kit.command("long_runs.one_process")}
    for contestant in chosen.contestants.split(";"):
        name = named_under(contestant, chosen.optimizer, chosen.momentum, chosen.steps)
        for rate, seed in [(rate, seed) for rate in chosen.rates for seed in chosen.seeds]:
            begun = time.monotonic()
            job = Job(**fields, name=name, learning_rate=rate, seed=seed)
            found = list(trained(job, samples, learner_of(contestant, job, samples, chosen.change)))
            (_, loss, right) = found[-1]
            took = time.monotonic() - begun
            also = f" {json.dumps(chosen.change)}" if chosen.change else ""
            print(f"{name}{also}, rate {rate:g}, seed {seed}: {loss:.4f}, {right:.4f}, {took:.0f} s", flush=True)
            if chosen.keep:
                row = {"contestant": name, "rate": rate, "seed": seed, "load": round(os.getloadavg()[0], 1), **about}
                keep(row | {"right": right, "curve": [(step, loss) for step, loss, _ in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
