"""Checks the planner's steps model on overlapped schedules, whose averaging is late by one round.

    python -m benchmarks.steps_to_loss.overlapped --random 20 [--seeds 5]
    python -m benchmarks.steps_to_loss.overlapped --rows benchmarks/results/steps_to_loss_overlapped.json --random 20

The schedules of `fit.py` are trained once more, every one late by a round, All-Reduce in each step among them. Asked is
whether the constants fitted without overlap predict them from consensus distance and drift under delayed mixing
(docs/figures.md), or whether lateness has a price of its own. The candidates for that price are fitted on half of the
4x4 schedules; their errors on the other half and on 8x2 are printed and written to
benchmarks/results/steps_to_loss_overlapped.json. About ten minutes.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from benchmarks import compact
from benchmarks.steps_to_loss.fit import (
    COLUMNS,
    MODES,
    RESULT,
    measure,
    measured_before,
    named,
    options_of,
    random_rules,
    summary,
)
from benchmarks.steps_to_loss.virtual_training import load_digits
from partreduce.planner.steps_model import FITTED
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Late

OUTPUT = RESULT.with_name("steps_to_loss_overlapped.json")
NONE, CONSTANT, FACTOR = "no price", "1 + predicted excess + s", "1 + f * predicted excess"
"""The candidates; `excess` is what the constants fitted without overlap predict above 1."""


def overlapped(cluster: Cluster, radices: tuple[int, ...], count: int, rng: np.random.Generator) -> list[Schedule]:
    schedules = [Schedule("allreduce", cluster, AllReduce()), *named(cluster, radices)]
    schedules += random_rules(cluster, radices, count, rng)
    return [replace(schedule, strategy=replace(schedule.strategy, when=Late())) for schedule in schedules]


def column(rows: list[dict[str, object]], key: str) -> np.ndarray:
    return np.array([float(str(row[key])) for row in rows])


def excess(rows: list[dict[str, object]]) -> np.ndarray:
    pairs = zip(column(rows, "consensus_distance"), column(rows, "drift"), strict=True)
    return np.array([FITTED.steps_ratio(consensus_distance, drift) - 1 for consensus_distance, drift in pairs])


def predict(kind: str, rows: list[dict[str, object]], price: float) -> np.ndarray:
    if kind == CONSTANT:
        return 1 + excess(rows) + price
    return 1 + (price if kind == FACTOR else 1.0) * excess(rows)


def fitted(kind: str, rows: list[dict[str, object]]) -> float:
    """The price with the least squares of logarithms; 0 where the candidate has none."""
    if kind == NONE:
        return 0.0
    logarithms = np.log(column(rows, "steps_ratio"))
    solution = least_squares(lambda x: np.log(predict(kind, rows, x[0])) - logarithms, x0=[0.5], bounds=(0, 10))
    return float(solution.x[0])


def inside(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Those whose figures lie where the model was fitted."""
    return [r for r in rows if not FITTED.extrapolates(float(str(r["consensus_distance"])), float(str(r["drift"])))]


def main() -> None:
    options = options_of(__doc__, seeds=5, result=OUTPUT)
    run = measure if options.rows is None else measured_before(options.rows)
    started, rng, data = time.time(), np.random.default_rng(7), load_digits()
    four, eight = Cluster.parse("4x4"), Cluster.parse("8x2")
    rows = run(overlapped(four, (2, 2), options.random, rng), data, options.seeds, options.rate)
    other = run(overlapped(eight, (2, 4), options.random // 2, rng), data, options.seeds, options.rate)
    names = sorted({str(row["schedule"]) for row in rows})
    half = set(rng.permutation(names)[: len(names) // 2].tolist())
    parts = {
        "fitted half, 4x4": inside([row for row in rows if row["schedule"] in half]),
        "held-out half, 4x4": inside([row for row in rows if row["schedule"] not in half]),
        "held-out cluster, 8x2": inside(other),
    }
    prices: dict[str, float] = {}
    errors: dict[str, object] = {}
    for kind in (NONE, CONSTANT, FACTOR):
        prices[kind] = fitted(kind, parts["fitted half, 4x4"])
        errors[kind] = {
            mode: {
                part: summary(np.abs(predict(kind, chosen, prices[kind]) / column(chosen, "steps_ratio") - 1))
                for part, everything in parts.items()
                if (chosen := [row for row in everything if row["data"] == mode])
            }
            for mode in MODES
        }
    result = {
        "model": "steps ratio of overlapped schedules from 1 + a*consensus distance + c*drift^p under delayed mixing",
        "prices": {kind: round(price, 4) for kind, price in prices.items()},
        "relative error": errors,
        "command": "python -m benchmarks.steps_to_loss.overlapped " + " ".join(sys.argv[1:]),
        "seeds": options.seeds,
        "learning_rate": options.rate,
        "seconds": round(time.time() - started, 1),
        "rows": [{key: row[key] for key in COLUMNS} for row in rows + other],
    }
    if options.output is not None:
        options.output.write_text(compact.text(result))
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
