"""Workers that average in each step, by one process: their models are equal, so one model takes all their gradients.

    python -m benchmarks.long_runs.one_model --momentum 0.9 --rates 0.08 0.16 0.32 --steps 252  # says how they end
    python -m benchmarks.long_runs.one_model --momentum 0.9 --rates 0.16 --seeds 0 1 2 --keep   # also writes them down
    python -m benchmarks.long_runs.one_model --regions --momentum 0.9 --rates 0.16 --seeds 0    # outer steps between

All-Reduce over regions, or one model for each region, with outer steps in 4 bits between them. Models, shards, batches,
falling rates and what is evaluated are those of the lab's workers (benchmarks/lab/worker.py); numbers differ from
theirs in the order in which gradients are added.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks import compact, kit
from benchmarks.lab.batches import Batches
from benchmarks.lab.gates import Clock
from benchmarks.lab.job import Job
from benchmarks.lab.outer_steps import by_turns
from benchmarks.lab.standing import provenance
from benchmarks.lab.tasks import Samples, accuracy, evaluated, loss_of, make_model, samples_of
from benchmarks.lab.worker import rate_after
from benchmarks.long_runs.regions import BASE, CLUSTER, REGIONS, RESULT, with_momentum
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec, How

TASK = "deep text"


class Equal:
    """So many models, each of equally many workers that average in each step, under SGD with momentum."""

    def __init__(self, job: Job, samples: Samples, count: int) -> None:
        self._job, self._samples, self.count, self.rate = job, samples, count, 0.0
        self._model = make_model(job.task, samples, Clock(), job.seed).eval()  # gates are open then
        self._parts = list(self._model.parameters())
        self.named = [(name, part.numel()) for name, part in self._model.named_parameters()]
        start = torch.nn.utils.parameters_to_vector(self._parts).detach()
        self.models = start.expand(count, -1).clone()  # (count, numbers)
        self._momenta = torch.zeros_like(self.models)
        each = job.num_workers // count
        batches = [Batches(job, rank, samples) for rank in range(job.num_workers)]
        self._batches = [batches[first : first + each] for first in range(0, job.num_workers, each)]

    def take(self, counts: Sequence[int]) -> None:
        """A step of each."""
        assert set(counts) == {1}, "all have one pace"
        for model, momentum, own in zip(self.models, self._momenta, self._batches, strict=True):
            batch = torch.cat([one.draw()[0] for one in own])  # the mean of means of equal batches is its mean
            torch.nn.utils.vector_to_parameters(model, self._parts)
            said = self._model(self._samples.inputs[batch])
            gradient = torch.autograd.grad(loss_of(self._job.task, said, self._samples.labels[batch]), self._parts)
            momentum.mul_(self._job.momentum).add_(torch.cat([part.flatten() for part in gradient]))
            model.sub_(self.rate * momentum)

    def judged(self) -> tuple[float, float]:
        """The mean model's training loss, and the share that it tells right of what nobody trains with."""
        part, told = evaluated(self._samples), self._samples.held_out
        assert told is not None, "the task keeps such samples"
        torch.nn.utils.vector_to_parameters(self.models.mean(0), self._parts)
        with torch.no_grad():
            return float(loss_of(self._job.task, self._model(part.inputs), part.labels)), accuracy(self._model, told)


def outer_steps() -> Schedule:
    """Those of the regions, each of which is a worker here: codes are of its workers' sum as they are of its mean."""
    regions = Cluster.regular(CLUSTER.num_nodes, 1)
    made = build("diloco", regions, every=30, lr=1, momentum=0.5)
    return replace(made, strategy=replace(made.strategy, how=How(codec=Codec.INT4)))


def trained(job: Job, samples: Samples, schedule: Schedule | None) -> Iterator[tuple[int, float, float]]:
    """Steps taken, and what is judged then, as often as the job says and at the end."""
    equal = Equal(job, samples, 1 if schedule is None else schedule.num_workers)

    def alone(_: int) -> None:
        equal.take([1])

    advance: Callable[[int], None] = alone if schedule is None else by_turns(equal, schedule)
    for step in range(job.steps):
        if step % job.every == 0:
            yield (step, *equal.judged())
        equal.rate = rate_after(job, step)
        advance(step)
    yield (job.steps, *equal.judged())


def keep(row: dict[str, Any]) -> None:
    """Add a run to what long_regions.json holds, in place of the same one."""
    content = json.loads(RESULT.read_text())
    same = ("contestant", "rate", "seed")
    content["runs"] = [run for run in content["runs"] if any(run[key] != row[key] for key in same)] + [row]
    RESULT.write_text(compact.text(content, digits=5))


def main() -> int:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--regions", action="store_true", help="a model for each region, and outer steps")
    arguments.add_argument("--momentum", type=float, default=0.0)
    arguments.add_argument("--rates", type=float, nargs="+", required=True)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--steps", type=int, default=1020)
    arguments.add_argument("--every", type=int, default=60)
    arguments.add_argument("--keep", action="store_true", help="write the runs down")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # as in the lab
    samples, schedule = samples_of(TASK), outer_steps() if chosen.regions else None
    name = with_momentum(REGIONS if chosen.regions else BASE, chosen.momentum)
    fields: dict[str, Any] = {"name": name, "folder": "", "how": BASE, "num_nodes": CLUSTER.num_nodes}
    fields |= {"workers_per_node": CLUSTER.num_workers // CLUSTER.num_nodes, "task": TASK, "falling": True}
    fields |= {"momentum": chosen.momentum, "steps": chosen.steps, "every": chosen.every}
    about = {"commit": provenance("long_runs.one_model")["commit"], "command": kit.command("long_runs.one_model")}
    for rate in chosen.rates:
        for seed in chosen.seeds:
            begun = time.monotonic()
            found = list(trained(Job(**fields, learning_rate=rate, seed=seed), samples, schedule))
            (_, loss, right) = found[-1]
            seconds = f"{time.monotonic() - begun:.0f} s"
            print(f"{name}, rate {rate:g}, seed {seed}: {loss:.4f}, {right:.4f}, {seconds}", flush=True)
            if chosen.keep:
                row = {"contestant": name, "rate": rate, "seed": seed, "load": round(os.getloadavg()[0], 1), **about}
                keep(row | {"right": right, "curve": [(step, loss) for step, loss, _ in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
