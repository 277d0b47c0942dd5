"""Steps to a training loss with and without drift correction, over All-Reduce's: digits, 16 virtual workers, NumPy.

    python benchmarks/steps_to_loss/drift_correction.py [--seeds 5] [--json benchmarks/results/drift_correction.json]

Data are shuffled, sorted by label over workers (the ratio that the design page gives), or sorted over nodes.
`auto` is the strength that topo.figures.correction chooses. A dash: not reached within 2,000 steps, or diverged.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from virtual_training import BATCH, HIDDEN, Data, _gradients, _loss, load_digits, shards

from schedulers.registry import build
from topo.document import load_cluster
from topo.figures.correction import best_alpha, correction_radius
from topo.rule import Block
from topo.schedule import Schedule
from topo.strategies import AllReduce, Static

MOST = 2000


def schedules() -> dict[str, Schedule]:
    cluster = load_cluster("4x4")
    pairs = (Block((0, 1)), Block((2, 3))), (Block((0, 2)), Block((1, 3))), (Block((0, 1, 2, 3), (0,)),)
    return {
        "all-reduce every 2": build("allreduce", cluster, every=2),
        "pairs, pairs, all": Schedule("pairs", cluster, Static(phases=pairs, node_radices=(4,))),
        "node×3, then all": build("node-then-all", cluster, node_rounds=3),
        "all-reduce every 4": build("allreduce", cluster, every=4),
        "node×7, then all": build("node-then-all", cluster, node_rounds=7),
        "all-reduce every 8": build("allreduce", cluster, every=8),
        "node×15, then all": build("node-then-all", cluster, node_rounds=15),
        "Figure 10": build("prague-figure-10", cluster),
        "all-reduce every 16": build("allreduce", cluster, every=16),
    }


def steps_to_loss(
    schedule: Schedule, alpha: float, data: Data, mode: str, *, seed: int, rate: float = 0.4, target: float = 0.15
) -> int | None:
    """As virtual_training.steps_to_loss, with corrections h of strength α (0: none)."""
    rng = np.random.default_rng(seed)
    own = shards(data, schedule, mode, rng)
    n, pace = schedule.num_workers, int(schedule.paces()[0])
    one = [
        rng.normal(0, 64**-0.5, (64, HIDDEN)),
        np.zeros(HIDDEN),
        rng.normal(0, HIDDEN**-0.5, (HIDDEN, 10)),
        np.zeros(10),
    ]
    weights = [np.repeat(part[None], n, axis=0) for part in one]
    corrections = [np.zeros_like(part) for part in weights]
    since = np.zeros(n)
    exact = isinstance(schedule.strategy, AllReduce) and schedule.strategy.averages_gradients
    for step in range(MOST):
        picks = np.stack([shard[rng.integers(0, len(shard), BATCH)] for shard in own])
        with np.errstate(all="ignore"):
            gradients = _gradients(weights, data.pixels[picks], data.labels[picks])
        if exact:
            gradients = [np.broadcast_to(g.mean(axis=0), g.shape) for g in gradients]
        for part, gradient, h in zip(weights, gradients, corrections, strict=True):
            np.subtract(part, rate * (gradient - h), out=part)
        since += rate
        if not exact and (step + 1) % pace == 0:
            for group in schedule.phase((step // pace) % schedule.period):
                members = list(group.members)
                for part, h in zip(weights, corrections, strict=True):
                    change = part[members].mean(axis=0) - part[members]
                    h[members] += alpha / since[members].mean() * change
                    part[members] += float(group.relax) * change
                since[members] = 0
        if (step + 1) % 5 == 0:
            with np.errstate(all="ignore"):
                loss = _loss([part.mean(axis=0) for part in weights], data)
            if not np.isfinite(loss):
                return None
            if loss < target:
                return step + 1
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--modes", nargs="+", default=["shuffled", "per-worker", "per-node"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = load_digits()
    every_step = build("allreduce", load_cluster("4x4"))
    table: dict[str, dict[str, object]] = {}
    for mode in options.modes:
        base = [steps_to_loss(every_step, 0, data, mode, seed=seed) for seed in range(options.seeds)]
        print(f"\n{mode}: all-reduce needs {base} steps; ratio: median [lowest, highest] of {options.seeds} seeds")
        print(f"{'schedule':22} {'without':>22} {'α = 0.3':>22} {'α = 1':>22} {'auto':>30}")
        for name, schedule in schedules().items():
            auto, radius = best_alpha(schedule)
            row: dict[str, object] = {"auto": auto, "radius": radius}
            cells = []
            for label, alpha in (("without", 0.0), ("0.3", 0.3), ("1", 1.0), ("auto ratio", auto)):
                found = [steps_to_loss(schedule, alpha, data, mode, seed=seed) for seed in range(options.seeds)]
                ratios = [None if s is None or b is None else s / b for s, b in zip(found, base, strict=True)]
                row[label] = ratios
                if label in ("0.3", "1"):
                    row[f"radius {label}"] = correction_radius(schedule, alpha)
                reached = [r for r in ratios if r is not None]
                text = (
                    "-"
                    if len(reached) < len(ratios)
                    else (f"{statistics.median(reached):.2f} [{min(reached):.2f}, {max(reached):.2f}]")
                )
                cells.append(text if label != "auto ratio" else f"{text} (α {auto:.3f}, ρ {radius:.2f})")
            print(f"{name:22} " + " ".join(f"{cell:>22}" for cell in cells), flush=True)
            table.setdefault(mode, {"all-reduce steps": base})[name] = row
    if options.json is not None:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
