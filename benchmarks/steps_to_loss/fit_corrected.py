"""Fits how much longer a schedule trains than All-Reduce with drift correction, in steps, on data sorted by label.

    python benchmarks/steps_to_loss/fit_corrected.py [--seeds 3] [--random 40]

As fit.py, but with corrections of the strength `auto` and the runtime's guard (drift_correction.py). Half of the
schedules of 4 nodes of 4 are fitted; the error on the other half and on 8 nodes of 2 is printed and written to
benchmarks/results/steps_to_loss_corrected.json, from which the planner's constants are copied.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from drift_correction import steps_to_loss
from fit import errors, named, predict, random_rules
from scipy.optimize import least_squares
from virtual_training import Data, load_digits

from schedulers.registry import build
from topo.cluster import Cluster
from topo.figures import disagreement, drift
from topo.figures.correction import best_alpha

if TYPE_CHECKING:
    from topo.schedule import Schedule

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
                    "disagreement": disagreement(schedule).value,
                    "drift": drift(schedule, "worker" if mode == "per-worker" else "node").value,
                    "alpha": alpha,
                    "radius": radius,
                    "stretch": float(np.median(ratios)),
                    "spread": [min(ratios), max(ratios)],
                }
            )
            print(f"\r{cluster} {mode}: {len(rows)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--random", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.4, help="learning rate")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    started, rng, data = time.perf_counter(), np.random.default_rng(7), load_digits()
    four, eight = Cluster.parse("4x4"), Cluster.parse("8x2")
    with np.errstate(all="ignore"):
        schedules = named(four, (2, 2)) + random_rules(four, (2, 2), options.random, rng)
        rows = measure(schedules, data, options.seeds, options.rate)
        schedules = named(eight, (2, 4)) + random_rules(eight, (2, 4), options.random // 2, rng)
        other = measure(schedules, data, options.seeds, options.rate)
    names = sorted({str(row["schedule"]) for row in rows})
    half = set(rng.permutation(names)[: len(names) // 2].tolist())
    fitted = [row for row in rows if row["schedule"] in half]
    held_out = [row for row in rows if row["schedule"] not in half]
    solution = least_squares(
        lambda x: np.log(predict(fitted, x)) - np.log([float(str(row["stretch"])) for row in fitted]),
        x0=np.array([0.02, 0.1, 0.45]),
        bounds=([0, 0, 0.1], [1, 10, 1]),
    )
    result = {
        "model": "stretch = 1 + a*disagreement + c*drift^p, with drift correction 'auto'",
        "parameters": dict(zip("acp", [round(float(v), 4) for v in solution.x], strict=True)),
        "relative error": {
            mode: {
                "fitted half, 4x4": errors([r for r in fitted if r["data"] == mode], solution.x),
                "held-out half, 4x4": errors([r for r in held_out if r["data"] == mode], solution.x),
                "held-out cluster, 8x2": errors([r for r in other if r["data"] == mode], solution.x),
            }
            for mode in MODES
        },
        "command": "python benchmarks/steps_to_loss/fit_corrected.py " + " ".join(sys.argv[1:]),
        "seeds": options.seeds,
        "learning_rate": options.rate,
        "seconds": round(time.perf_counter() - started, 1),
        "rows": rows + other,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
