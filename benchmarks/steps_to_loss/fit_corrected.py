"""Fits how much longer a schedule trains than All-Reduce with drift correction, in steps, on data sorted by label.

    python -m benchmarks.steps_to_loss.fit_corrected [--seeds 3] [--random 40]

As fit.py, but with corrections of the strength `auto` and the runtime's guard (drift_correction.py). Half of the
schedules of 4 nodes of 4 are fitted; the error on the other half and on 8 nodes of 2 is printed and written to
benchmarks/results/steps_to_loss_corrected.json, from which the planner's constants are copied.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.steps_to_loss.drift_correction import steps_to_loss
from benchmarks.steps_to_loss.fit import fit, options_of
from partreduce.schedulers.registry import build
from partreduce.topo.figures import consensus_distance, drift
from partreduce.topo.figures.correction import best_alpha

if TYPE_CHECKING:
    from benchmarks.steps_to_loss.virtual_training import Data
    from partreduce.topo.schedule import Schedule

MODES = ("per-worker", "per-node")
MOST = 8
RESULT = Path(__file__).parents[1] / "results" / "steps_to_loss_corrected.json"


def measure(schedules: list[Schedule], data: Data, seeds: int, rate: float) -> list[dict[str, object]]:
    cluster, rows = schedules[0].cluster, []
    every_step = build("allreduce", cluster)
    for mode in MODES:
        base = [steps_to_loss(every_step, 0, data, mode, seed=s, rate=rate, most=3000) or 3000 for s in range(seeds)]
        for schedule in schedules:
            alpha, radius = best_alpha(schedule)
            ratios = []
            for seed, steps in enumerate(base):
                found = steps_to_loss(schedule, alpha, data, mode, seed=seed, rate=rate, most=MOST * steps)
                ratios.append(float(MOST) if found is None else found / steps)
            rows.append(
                {
                    "cluster": str(cluster),
                    "schedule": schedule.name,
                    "data": mode,
                    "consensus_distance": consensus_distance(schedule).value,
                    "drift": drift(schedule, "worker" if mode == "per-worker" else "node").value,
                    "alpha": alpha,
                    "radius": radius,
                    "steps_ratio": float(np.median(ratios)),
                    "spread": [min(ratios), max(ratios)],
                }
            )
            print(f"\r{cluster} {mode}: {len(rows)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def main() -> None:
    words = "steps ratio = 1 + a*consensus distance + c*drift^p, with drift correction 'auto'"
    options = options_of(__doc__, seeds=3, result=RESULT)
    with np.errstate(all="ignore"):
        fit(measure, options, drift_guess=0.1, model=words, modes=MODES)


if __name__ == "__main__":
    main()
