"""All-Reduce over regions, by one process: workers' models are equal, so one model takes the mean gradient of all.

    python -m benchmarks.long_runs.one_model --momentum 0.9 --rates 0.08 0.16 0.32 --steps 252  # says how they end
    python -m benchmarks.long_runs.one_model --momentum 0.9 --rates 0.16 --seeds 0 1 2 --keep   # also writes them down
    python -m benchmarks.long_runs.one_model --optimizer adamw --rates 0.002 --seeds 0 1 2 --keep

Models, shards, batches, falling rates and what is evaluated are those of the lab's workers (benchmarks/lab/worker.py);
numbers differ from theirs in the order in which gradients are added.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks import compact, kit
from benchmarks.lab.batches import Batches
from benchmarks.lab.gates import Clock
from benchmarks.lab.job import Job
from benchmarks.lab.standing import provenance
from benchmarks.lab.tasks import Samples, accuracy, evaluated, loss_of, make_model, optimizer_of, samples_of
from benchmarks.lab.worker import rate_after
from benchmarks.long_runs.regions import BASE, CLUSTER, RESULT, named_under

TASK = "deep text"


def trained(job: Job, samples: Samples) -> Iterator[tuple[int, float, float]]:
    """Steps taken, training loss, and share told right of held out samples, as often as the job says and at the end."""
    model = make_model(job.task, samples, Clock(), job.seed).eval()  # gates are open then
    optimizer = optimizer_of(job, model.parameters())
    batches = [Batches(job, rank, samples) for rank in range(job.num_workers)]
    part, told = evaluated(samples), samples.held_out
    assert told is not None, "the task keeps samples that nobody trains with"
    for step in range(job.steps + 1):
        if step % job.every == 0 or step == job.steps:
            with torch.no_grad():
                loss = float(loss_of(job.task, model(part.inputs), part.labels))
            yield step, loss, accuracy(model, told)
        if step == job.steps:
            return
        for group in optimizer.param_groups:
            group["lr"] = rate_after(job, step)
        batch = torch.cat([one.draw()[0] for one in batches])  # (workers x batch,): the mean of means of equal batches
        optimizer.zero_grad()
        loss_of(job.task, model(samples.inputs[batch]), samples.labels[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def keep(row: dict[str, Any]) -> None:
    """Add a run to what long_regions.json holds, in place of the same one."""
    content = json.loads(RESULT.read_text())
    same = ("contestant", "rate", "seed")
    content["runs"] = [run for run in content["runs"] if any(run[key] != row[key] for key in same)] + [row]
    RESULT.write_text(compact.text(content, digits=5))


def main() -> int:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    arguments.add_argument("--momentum", type=float, default=0.0, help="of SGD")
    arguments.add_argument("--rates", type=float, nargs="+", required=True)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--steps", type=int, default=1020)
    arguments.add_argument("--every", type=int, default=60)
    arguments.add_argument("--keep", action="store_true", help="write the runs down")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # as in the lab
    samples, name = samples_of(TASK), named_under(BASE, chosen.optimizer, chosen.momentum)
    fields: dict[str, Any] = {"name": name, "folder": "", "how": BASE, "num_nodes": CLUSTER.num_nodes}
    fields |= {"workers_per_node": CLUSTER.num_workers // CLUSTER.num_nodes, "task": TASK, "falling": True}
    fields |= {"optimizer": chosen.optimizer, "momentum": chosen.momentum, "steps": chosen.steps, "every": chosen.every}
    about = {"commit": provenance("long_runs.one_model")["commit"], "command": kit.command("long_runs.one_model")}
    for rate in chosen.rates:
        for seed in chosen.seeds:
            begun = time.monotonic()
            found = list(trained(Job(**fields, learning_rate=rate, seed=seed), samples))
            (_, loss, right) = found[-1]
            print(
                f"{name}, rate {rate:g}, seed {seed}: {loss:.4f}, {right:.4f}, {time.monotonic() - begun:.0f} s",
                flush=True,
            )
            if chosen.keep:
                row = {"contestant": name, "rate": rate, "seed": seed, "load": round(os.getloadavg()[0], 1), **about}
                keep(row | {"right": right, "curve": [(step, loss) for step, loss, _ in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
