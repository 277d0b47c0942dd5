"""Checks a pilot for real: its prices, what they predict of schedules that it did not run, and of a whole training.

    python -m benchmarks.steps_to_loss.pilot_check [--workers 4] [--seeds 4] [--steps 60] [--output FILE]

The demonstration's network and data (scikit-learn's digits, learning rate 0.3) on local workers over gloo: the pilot as
`partreduce measure` runs it, the same number of steps under schedules that are not in it, and a training of 240 steps
whose steps to a loss are compared with both models. Writes benchmarks/results/pilot.json. About five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from benchmarks import compact
from partreduce.demo.digits import Digits, load_digits, make_model
from partreduce.planner.calibration import calibrated, drift_that_counts, steps_model, steps_ratio_between
from partreduce.planner.steps_model import FITTED
from partreduce.runtime.launcher.launch import launch
from partreduce.runtime.pilot.job import Curve, PilotJob
from partreduce.runtime.pilot.probes import ring_pairs
from partreduce.runtime.pilot.run import run_pilot
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.pilot import dump_pilot
from partreduce.topo.figures import consensus_distance, late_distance
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Late

OUTPUT = Path(__file__).parents[1] / "results" / "pilot.json"
RATE, BATCH, LONG, TARGET = 0.3, 16, 240, 0.2


@cache
def data() -> Digits:
    return load_digits()


def pilot(seed: int) -> PilotJob:
    """The job; also for `partreduce measure benchmarks/steps_to_loss/pilot_check.py:pilot --workers 8`."""
    digits = data()
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model = make_model(seed)
    own = torch.arange(rank, len(digits.train_labels), count)
    pairs = torch.utils.data.TensorDataset(digits.train_images[own], digits.train_labels[own])
    order = torch.Generator().manual_seed(1000 * seed + rank)
    batches = torch.utils.data.DataLoader(pairs, batch_size=BATCH, shuffle=True, drop_last=True, generator=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def loss(batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    return PilotJob(model=model, optimizer=optimizer, batches=batches, loss=loss)


def held_out(cluster: Cluster) -> list[Schedule]:
    return [
        Schedule("allreduce-every-6", cluster, AllReduce(pace=6)),
        Schedule("allreduce-every-12", cluster, AllReduce(pace=12)),
        Schedule("allreduce-every-2-late", cluster, AllReduce(pace=2, when=Late())),
        ring_pairs(cluster, 8),
        ring_pairs(cluster, 4, late=True),
    ]


def measured(workers: int, seeds: int, steps: int) -> list[list[Curve]]:
    """The curves of the pilot, of the schedules held out from it, and of the long runs; over real processes."""
    cluster = Cluster.parse(f"1x{workers}")
    data()  # before the workers are forked, so that scikit-learn is imported once
    long = [held_out(cluster)[1], held_out(cluster)[4]]
    folder = Path(tempfile.mkdtemp())  # a TemporaryDirectory would be removed by the first forked worker that ends

    def main() -> None:
        parts = [
            run_pilot(pilot, steps=steps, seeds=range(seeds)),
            run_pilot(pilot, steps=steps, seeds=range(seeds), schedules=held_out(cluster)),
            run_pilot(pilot, steps=LONG, seeds=range(min(3, seeds)), schedules=long),
        ]
        if os.environ["RANK"] == "0":
            torch.save(parts, folder / "curves.pt")

    try:
        if launch(main, num_workers=workers, threads=1):
            sys.exit("a run failed")
        return list(torch.load(folder / "curves.pt", weights_only=False))
    finally:
        shutil.rmtree(folder)


def steps_to(target: float, curve: Curve) -> float:
    """The first evaluated step from which the loss is below the target, in a straight line from the one before."""
    losses = np.array(curve.losses)
    if not (losses < target).any():
        return float("inf")
    index = int(np.argmax(losses < target))
    before, after = losses[index - 1], losses[index]
    return float((index - 1 + (before - target) / (before - after)) * curve.every)


def grouped(curves: list[Curve]) -> tuple[dict[int, Curve], dict[str, list[Curve]]]:
    references = {c.seed: c for c in curves if c.schedule.name == "allreduce"}
    others: dict[str, list[Curve]] = {}
    for curve in curves:
        if curve.schedule.name != "allreduce":
            others.setdefault(curve.schedule.name, []).append(curve)
    return references, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, second, third = measured(options.workers, options.seeds, options.steps)
    found = calibrated(first, data="shuffled", steps=options.steps)
    model = steps_model(found)

    def row(runs: list[Curve], steps_ratios: list[float]) -> dict[str, object]:
        schedule = runs[0].schedule
        figures = float(consensus_distance(schedule)), drift_that_counts(schedule, "shuffled")
        late = late_distance(schedule)
        return {
            "schedule": schedule.name,
            "consensus_distance": figures[0],
            "measured": float(np.mean(steps_ratios)),
            "seeds": [round(steps_ratio, 3) for steps_ratio in steps_ratios],
            "by the pilot": model.steps_ratio(*figures, late=late),
            "by the shipped model": FITTED.steps_ratio(*figures, late=late),
        }

    references, others = grouped(second)
    unseen = [
        row(runs, [steps_ratio_between(run.losses, references[run.seed].losses) for run in runs])
        for runs in others.values()
    ]
    references, others = grouped(third)
    trained = [
        row(runs, [steps_to(TARGET, run) / steps_to(TARGET, references[run.seed]) for run in runs])
        for runs in others.values()
    ]
    result = {
        "command": "python -m benchmarks.steps_to_loss.pilot_check " + " ".join(sys.argv[1:]),
        "pilot": {**dump_pilot(found), "probes": "below"},
        "error that the pilot states": model.error("shuffled"),
        "probes": [
            row(runs, list(p.steps_ratios)) for runs, p in zip(grouped(first)[1].values(), found.probes, strict=True)
        ],
        "held out": unseen,
        f"steps to a loss of {TARGET} in a training of {LONG} steps": trained,
    }
    options.output.write_text(compact.text(result, digits=4))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
