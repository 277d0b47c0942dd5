"""Steps to a training loss with and without drift correction, over All-Reduce's: digits, 16 virtual workers, NumPy.

    python -m benchmarks.steps_to_loss.drift_correction [--seeds 3] [--json benchmarks/results/drift_correction.json]

Data are shuffled, sorted by label over workers, or sorted over nodes. `auto` is the strength that
topo.figures.correction chooses, with the runtime's guard: whenever all workers meet, corrections shrink to what
predicts the gradients there. A run ends after 4 times All-Reduce's steps; a dash: not reached, or diverged. With --json
a table in Markdown is written beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are too small to be shared by threads

import numpy as np

from benchmarks.steps_to_loss.virtual_training import BATCH, HIDDEN, Data, gradients_of, load_digits, loss_of, shards
from partreduce.schedulers.registry import build
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.figures.correction import best_alpha, noise_factor
from partreduce.topo.hardware import Hardware
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from partreduce.topo.schedule import Schedule

MODES = ("per-worker", "per-node", "shuffled")
RATES = (0.1, 0.2, 0.4)
TARGET = 0.15
MOST = 4.0


def schedules() -> dict[str, Schedule]:
    cluster = load_cluster("4x4")
    return {
        "all-reduce every 2": build("allreduce", cluster, every=2),
        "all-reduce every 4": build("allreduce", cluster, every=4),
        "pairs, pairs, all": build("pairs-pairs-all", cluster),
        "node×3, then all": build("node-then-all", cluster, node_rounds=3),
        "node×15, then all": build("node-then-all", cluster, node_rounds=15),
        "hyper-cuboid": build("hyper-cuboid", cluster),
        "Figure 10": build("prague-figure-10", cluster),
    }


def nic_share(schedule: Schedule) -> float:
    """Bytes through a node's NIC per step over those of all-reduce in each step."""
    hardware = Hardware(model_bytes=1_000_000)
    every_step = build("allreduce", schedule.cluster)
    return communication(schedule, hardware).nic_bytes_per_step / communication(every_step, hardware).nic_bytes_per_step


class Corrections:
    """The runtime's rule (runtime/strategies/drift_correction.py), for all workers at once. α = 0: none."""

    def __init__(self, alpha: float, shape: tuple[int, int], *, guarded: bool) -> None:
        self.alpha, self.guarded, self.trust, self.doubts = alpha, guarded, 1.0, 0
        self.values = np.zeros(shape, dtype=np.float32)
        self.agreement, self.size = np.zeros(2)

    def compare(self, gradients: np.ndarray, fresh: np.ndarray) -> None:
        """`fresh`: who takes the first step after a mean."""
        if fresh.any():
            self.agreement += float(np.vdot(gradients[fresh], self.values[fresh]))
            self.size += float(np.vdot(self.values[fresh], self.values[fresh]))

    def all_met(self) -> None:
        if self.guarded and self.size > 0:
            kept = min(max(self.agreement / self.size, 0.0), 1.0)
            self.values *= np.float32(kept)
            self.trust = max(self.trust / 2, 1 / 64) if kept < 0.5 else min(self.trust * 1.2, 1.0)
            self.doubts += kept < 0.5
        self.agreement = self.size = 0.0


def steps_to_loss(
    schedule: Schedule, alpha: float, data: Data, mode: str, *, seed: int, rate: float, most: int, guarded: bool = True
) -> int | None:
    """Steps until the mean model's loss is below TARGET, checked every 5; None if `most` is passed or it diverged."""
    rng = np.random.default_rng(seed)
    own, pixels = shards(data, schedule, mode, rng), data.pixels.astype(np.float32)
    n, pace = schedule.num_workers, int(schedule.paces()[0])
    shapes = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
    start = [rng.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape) for shape in shapes]
    cuts = np.cumsum([part.size for part in start])[:-1]
    x = np.repeat(np.concatenate([part.ravel() for part in start])[None], n, axis=0).astype(np.float32)
    exact = schedule.strategy.averages_gradients
    corrections, since = Corrections(alpha, x.shape, guarded=guarded), np.zeros(n)

    def parts(flat: np.ndarray) -> list[np.ndarray]:
        return [p.reshape(len(flat), *s) for p, s in zip(np.split(flat, cuts, axis=1), shapes, strict=True)]

    for step in range(most):
        picks = np.stack([shard[rng.integers(0, len(shard), BATCH)] for shard in own])
        found = gradients_of(parts(x), pixels[picks], data.labels[picks])
        gradients = np.concatenate([g.reshape(n, -1) for g in found], axis=1)
        if exact:
            gradients = np.broadcast_to(gradients.mean(axis=0), gradients.shape)
        if alpha:
            corrections.compare(gradients, since == 0)
        x -= np.float32(rate) * (gradients - corrections.values)
        since += rate
        if not exact and (step + 1) % pace == 0:
            groups = schedule.phase((step // pace) % schedule.period)
            changes = [(list(g.members), float(g.relax), x[list(g.members)]) for g in groups]
            for members, relax, before in changes:
                if len(members) == n:
                    corrections.all_met()
                change = before.mean(axis=0) - before
                corrections.values[members] += np.float32(alpha * corrections.trust / since[members].mean()) * change
                x[members] += np.float32(relax) * change
                since[members] = 0
        if (step + 1) % 5 == 0:
            loss = loss_of([part[0] for part in parts(x.mean(axis=0)[None])], data)
            if loss < TARGET or not np.isfinite(loss):
                return step + 1 if loss < TARGET else None
    return None


def measured(data: Data, seeds: int, modes: list[str], rates: list[float], names: list[str]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    every_step = build("allreduce", load_cluster("4x4"))
    every = {name: schedule for name, schedule in schedules().items() if name in names}
    strengths = {name: best_alpha(schedule) for name, schedule in every.items()}
    for mode in modes:
        for rate in rates:
            base = [steps_to_loss(every_step, 0, data, mode, seed=s, rate=rate, most=3000) for s in range(seeds)]
            for name, schedule in every.items():
                alpha, radius = strengths[name]
                row: dict[str, object] = {"data": mode, "rate": rate, "schedule": name, "all-reduce steps": base}
                row |= {"nic": nic_share(schedule), "alpha": alpha, "radius": radius}
                row["noise factor"] = noise_factor(schedule, alpha)
                for label, strength, guarded in (("without", 0.0, False), ("auto", alpha, True)):
                    ratios = []
                    for seed, steps in enumerate(base):
                        assert steps is not None, "all-reduce reaches the target"
                        most = int(MOST * steps)
                        found = steps_to_loss(
                            schedule, strength, data, mode, seed=seed, rate=rate, most=most, guarded=guarded
                        )
                        ratios.append(None if found is None else found / steps)
                    row[label] = ratios
                rows.append(row)
                print(line(row), flush=True)
    return rows


def line(row: dict[str, object]) -> str:
    """One row of the Markdown table."""

    def cell(ratios: list[float | None]) -> str:
        known = sorted(MOST if ratio is None else ratio for ratio in ratios)
        middle = statistics.median(known)
        return "–" if middle == MOST else f"{middle:.2f} [{known[0]:.2f}, {known[-1]:.2f}]"

    cells = [row["data"], row["rate"], row["schedule"], f"{row['nic']:.2f}", cell(row["without"]), cell(row["auto"])]
    return "| " + " | ".join(map(str, [*cells, f"{row['alpha']:.3f}"])) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--schedules", nargs="+", default=list(schedules()), choices=list(schedules()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started = time.perf_counter()
    with np.errstate(all="ignore"):
        rows = measured(load_digits(), options.seeds, options.modes, options.rates, options.schedules)
    seconds = round(time.perf_counter() - started, 1)
    print(f"{seconds} s")
    if options.json is not None:
        command = "python -m benchmarks.steps_to_loss.drift_correction " + " ".join(sys.argv[1:])
        options.json.write_text(json.dumps({"command": command, "seconds": seconds, "rows": rows}, indent=1) + "\n")
        columns = ["data", "learning rate", "schedule", "NIC bytes ÷ All-Reduce's", "without", "auto", "α"]
        head = "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)
        lines = [
            f"Steps to a training loss of {TARGET:g} over All-Reduce's; median [lowest, highest] of the seeds.",
            "",
        ]
        lines += [f"`{command}` ({seconds} s)", "", head, *map(line, rows)]
        options.json.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
