"""Fits how much consensus distance lengthens the training of two networks: the planner's, and the lab's.

    python -m benchmarks.steps_to_loss.second_task [--seeds 4] [--random 16] [--output FILE]
    python -m benchmarks.steps_to_loss.second_task --rows benchmarks/results/steps_to_loss_second.json   # fit only

`fit.py` measures one network only, and how much noise between workers costs depends on the network. Here the network of
`benchmarks/lab` trains on shuffled data under the same kind of schedules; the constant a of

    steps ratio = 1 + a · consensus distance

is fitted to each task alone and to both with equal weight. The last is the planner's. Writes
benchmarks/results/steps_to_loss_second.json. About a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from benchmarks import compact
from benchmarks.lab.rehearse import Rehearsal, by_schedule, steps_to
from benchmarks.lab.tasks import read_data, write_data
from benchmarks.steps_to_loss.fit import RESULT, named, random_rules, summary
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import consensus_distance

OUTPUT = RESULT.with_name("steps_to_loss_second.json")
TARGET, RATE, MOST = 0.1, 0.4, 120


def measured(seeds: int, count: int) -> list[dict[str, object]]:
    """Every schedule's steps to the target by seed; None where it is not reached in `MOST` steps."""
    cluster = Cluster.parse("4x4")
    schedules = [
        build("allreduce", cluster),
        *named(cluster, (2, 2)),
        *random_rules(cluster, (2, 2), count, np.random.default_rng(7)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_data("digits", Path(folder) / "data.npz")
        samples = read_data(Path(folder) / "data.npz")
    rows: list[dict[str, object]] = []
    for number, schedule in enumerate(schedules):
        steps = []
        for seed in range(seeds):
            rehearsal = Rehearsal(samples, task="digits", data="shuffled", cluster=cluster, rate=RATE, seed=seed)
            steps.append(steps_to(TARGET, rehearsal, by_schedule(rehearsal, schedule), MOST))
        rows.append(
            {"schedule": schedule.name, "consensus_distance": consensus_distance(schedule).value, "steps": steps}
        )
        print(f"\r{number + 1}/{len(schedules)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def steps_ratios(rows: list[dict[str, object]]) -> tuple[np.ndarray, np.ndarray]:
    """(consensus distance, mean steps ÷ All-Reduce's mean steps) of every schedule but All-Reduce itself."""
    steps = np.array([[value or MOST for value in row["steps"]] for row in rows], dtype=float).mean(axis=1)  # type: ignore[attr-defined]
    spread = np.array([row["consensus_distance"] for row in rows], dtype=float)
    return spread[1:], steps[1:] / steps[0]


def fitted(tasks: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The constant a with the least mean squared error in logarithms, every task counting alike."""

    def loss(a: float) -> float:
        return sum(float(np.mean((np.log1p(a * spread) - np.log(steps_ratio)) ** 2)) for spread, steps_ratio in tasks)

    return float(minimize_scalar(loss, bounds=(0, 1), method="bounded").x)


def errors(a: float, task: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Relative errors of the predicted steps ratio."""
    return summary(np.abs((1 + a * task[0]) / task[1] - 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--random", type=int, default=16)
    parser.add_argument("--output", type=Path, help=f"default, unless --rows is given: {OUTPUT.name}")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="fit the rows of an earlier run, measure nothing")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    first_rows = [row for row in json.loads(RESULT.read_text())["rows"] if row["data"] == "shuffled"]
    first = tuple(
        np.array([row[key] for row in first_rows], dtype=float) for key in ("consensus_distance", "steps_ratio")
    )
    rows = json.loads(chosen.rows.read_text())["rows"] if chosen.rows else measured(chosen.seeds, chosen.random)
    tasks = {"planner's task": (first[0], first[1]), "lab's network": steps_ratios(rows)}
    a = fitted(list(tasks.values()))
    result = {
        "model": "steps ratio = 1 + a*consensus distance",
        "command": "python -m benchmarks.steps_to_loss.second_task " + " ".join(sys.argv[1:]),
        "a": {**{name: round(fitted([task]), 4) for name, task in tasks.items()}, "both": round(a, 4)},
        "relative error with a of both": {name: errors(a, task) for name, task in tasks.items()},
        "relative error with a of the planner's task": {
            name: errors(fitted([tasks["planner's task"]]), task) for name, task in tasks.items()
        },
        "target": TARGET,
        "learning_rate": RATE,
        "rows": rows,
    }
    if chosen.output or not chosen.rows:
        (chosen.output or OUTPUT).write_text(compact.text(result))
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
