"""Steps to a training loss with and without drift correction, over All-Reduce's: digits, 16 virtual workers, NumPy.

    python -m benchmarks.steps_to_loss.drift_correction [--seeds 3] [-o benchmarks/results/drift_correction.md]

Data are shuffled, sorted by label over workers, or sorted over nodes. `auto` is the strength that
topo.figures.correction chooses, with the runtime's guard: whenever all workers meet, corrections shrink to what
predicts the gradients there. A run ends after 4 times All-Reduce's steps; a dash: not reached, or diverged.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kit
from benchmarks.steps_to_loss.training import MODES, Perceptron, Workers, steps_to
from partreduce.schedulers.registry import build
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.figures.correction import best_alpha, noise_factor
from partreduce.topo.hardware import Hardware
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partreduce.topo.schedule import Schedule

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


def steps(schedule: Schedule, mode: str, rate: float, seed: int, most: int, **correction: Any) -> float | None:  # noqa: ANN401
    """Steps to the target; None if `most` is passed or it diverged."""
    workers = Workers(schedule, Perceptron(schedule.cluster, mode, seed), rate=rate, **correction)
    return steps_to(TARGET, workers, most=most)


def measured(seeds: int, modes: list[str], rates: list[float], names: list[str]) -> Iterator[dict[str, Any]]:
    every_step = build("allreduce", load_cluster("4x4"))
    every = {name: schedule for name, schedule in schedules().items() if name in names}
    for mode in modes:
        for rate in rates:
            base = [steps(every_step, mode, rate, seed, 3000) for seed in range(seeds)]
            for name, schedule in every.items():
                alpha, radius = best_alpha(schedule)
                row: dict[str, Any] = {"data": mode, "rate": rate, "schedule": name, "all-reduce steps": base}
                row |= {"nic": nic_share(schedule), "alpha": alpha, "radius": radius}
                row["noise factor"] = noise_factor(schedule, alpha)
                for label, strength in (("without", 0.0), ("auto", alpha)):
                    row[label] = []
                    for seed, usual in enumerate(base):
                        assert usual is not None, "all-reduce reaches the target"
                        found = steps(schedule, mode, rate, seed, int(MOST * usual), alpha=strength)
                        row[label].append(None if found is None else found / usual)
                yield row


COLUMNS = ("data", "learning rate", "schedule", "NIC bytes ÷ All-Reduce's", "without", "auto", "α")


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the table; a dash where most runs did not come to the target."""

    def cell(ratios: list[float | None]) -> str:
        known = sorted(MOST if ratio is None else ratio for ratio in ratios)
        return "–" if statistics.median(known) == MOST else kit.middle(known)

    first = [row["data"], f"{row['rate']:g}", row["schedule"], f"{row['nic']:.2f}"]
    return [*first, cell(row["without"]), cell(row["auto"]), f"{row['alpha']:.3f}"]


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--modes", nargs="+", default=list(MODES))
    arguments.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    arguments.add_argument("--schedules", nargs="+", default=list(schedules()), choices=list(schedules()))
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    rows = []
    with np.errstate(all="ignore"):
        for row in measured(chosen.seeds, chosen.modes, chosen.rates, chosen.schedules):
            rows.append(cells(row))
            print(" | ".join(rows[-1]), flush=True)
    about = f"Steps to a training loss of {TARGET:g} over All-Reduce's; median [lowest-highest] of the seeds."
    command = f"`{kit.command('steps_to_loss.drift_correction')}`"
    kit.write(chosen.output, "Drift correction", about, command, kit.table(COLUMNS, rows))


if __name__ == "__main__":
    main()
