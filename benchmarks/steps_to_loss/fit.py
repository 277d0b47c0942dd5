"""Fits how much longer a schedule trains than All-Reduce, in steps, from its consensus distance and drift.

    python -m benchmarks.steps_to_loss.fit [--seeds 5] [--random 40]
    python -m benchmarks.steps_to_loss.fit --rows benchmarks/results/steps_to_loss.json   # measured before: fit only

Every schedule is trained on digits with 16 virtual workers (`virtual_training.py`) under three placements of the data;
the ratio of its steps to the target loss over All-Reduce's is the measured *steps ratio*. The model is

    steps ratio = 1 + a · consensus distance + c · drift^p

with drift 0 for shuffled data, the `worker` drift for data sorted per worker and the `node` drift for data sorted per
node. It is fitted on half of the schedules; the error on the other half, and on another cluster shape, is printed and
written to benchmarks/results/steps_to_loss.json, from which the planner's constants are copied.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares

from benchmarks import compact
from benchmarks.steps_to_loss.virtual_training import Data, load_digits, steps_to_loss
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import consensus_distance, drift, radius
from partreduce.topo.rule import Block, RulePhase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, RulePhases, Static

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Measure = Callable[[list[Schedule], Data, int, float], list[dict[str, object]]]

COLUMNS = ("cluster", "schedule", "data", "consensus_distance", "drift", "steps_ratio")
"""What a fit reads of a row; the file holds these."""
MODES = ("shuffled", "per-worker", "per-node")
RESULT = Path(__file__).parents[1] / "results" / "steps_to_loss.json"


def rule(name: str, cluster: Cluster, radices: tuple[int, ...], *phases: RulePhase) -> Schedule:
    return Schedule(name, cluster, Static(phases=RulePhases(radices, phases)))


def named(cluster: Cluster, radices: tuple[int, ...]) -> list[Schedule]:
    size = cluster.workers_per_node or 0
    every = tuple(range(size))
    digits = tuple(range(len(radices)))
    node, everybody = (Block(every),), (Block(every, digits),)
    result = [Schedule(f"allreduce-every-{h}", cluster, AllReduce(pace=h)) for h in (2, 3, 4, 6, 8, 12, 16, 24)]
    result += [
        rule(f"node-x{k}-then-all", cluster, radices, *[node] * k, everybody) for k in (1, 2, 3, 5, 7, 11, 15, 23)
    ]
    if size == 4:
        figure_10 = ((Block((0,), digits), Block((2, 3))), node, (Block((0, 3)), Block((1,), (0,))), node)
        result.append(rule("prague-figure-10", cluster, radices, *figure_10))
    return result


def random_rules(cluster: Cluster, radices: tuple[int, ...], count: int, rng: np.random.Generator) -> list[Schedule]:
    """Random rules that converge, of period 2 to 8."""
    size, result = cluster.workers_per_node or 0, []
    while len(result) < count:
        phases = []
        for _ in range(int(rng.integers(2, 9))):
            order = rng.permutation(size).tolist()
            cuts = sorted(rng.choice(np.arange(1, size), size=int(rng.integers(0, size)), replace=False).tolist())
            blocks = []
            for a, b in zip([0, *cuts], [*cuts, size], strict=True):
                across = tuple(d for d in range(len(radices)) if rng.random() < 0.35)
                if b - a > 1 or across:
                    blocks.append(Block(tuple(sorted(order[a:b])), across))
            phases.append(tuple(blocks))
        schedule = rule(f"random-{len(result)}", cluster, radices, *phases)
        if (radius(schedule).value or 0) < 0.95:
            result.append(schedule)
    return result


def measure(schedules: list[Schedule], data: Data, seeds: int, rate: float) -> list[dict[str, object]]:
    cluster = schedules[0].cluster
    base = Schedule("allreduce", cluster, AllReduce())
    reference = {
        (mode, seed): steps_to_loss(base, data, mode, seed=seed, rate=rate) for mode in MODES for seed in range(seeds)
    }
    rows: list[dict[str, object]] = []
    for number, schedule in enumerate(schedules):
        features = [consensus_distance(schedule).value, drift(schedule, "worker").value, drift(schedule, "node").value]
        for mode in MODES:
            ratios = []
            for seed in range(seeds):
                steps, of_allreduce = steps_to_loss(schedule, data, mode, seed=seed, rate=rate), reference[mode, seed]
                assert of_allreduce is not None
                ratios.append((steps or 3000) / of_allreduce)
            rows.append(
                {
                    "cluster": str(cluster),
                    "schedule": schedule.name,
                    "data": mode,
                    "consensus_distance": features[0],
                    "drift": {"shuffled": 0.0, "per-worker": features[1], "per-node": features[2]}[mode],
                    "steps_ratio": float(np.median(ratios)),
                    "spread": [float(min(ratios)), float(max(ratios))],
                }
            )
        print(f"\r{cluster}: {number + 1}/{len(schedules)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def predict(rows: list[dict[str, object]], parameters: np.ndarray) -> np.ndarray:
    a, c, p = parameters
    d = np.array([row["consensus_distance"] for row in rows], dtype=float)
    z = np.array([row["drift"] for row in rows], dtype=float)
    return 1 + a * d + c * np.where(z > 0, z, 0.0) ** p


def summary(relative: np.ndarray) -> dict[str, float]:
    """Of relative errors."""
    return {
        "median": round(float(np.median(relative)), 4),
        "p90": round(float(np.quantile(relative, 0.9)), 4),
        "worst": round(float(relative.max()), 4),
    }


def errors(rows: list[dict[str, object]], parameters: np.ndarray) -> dict[str, float]:
    measured = np.array([row["steps_ratio"] for row in rows], dtype=float)
    return summary(np.abs(predict(rows, parameters) / measured - 1))


def options_of(words: str, *, seeds: int, result: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--random", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.4, help="learning rate")
    parser.add_argument("--output", type=Path, help=f"default, unless --rows is given: {result.name}")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="fit the rows of an earlier run, measure nothing")
    options = parser.parse_args()
    if options.rows is None and options.output is None:
        options.output = result
    return options


def measured_before(path: Path) -> Measure:
    """Looks up what an earlier run with the same `--random` measured."""
    rows = json.loads(path.read_text())["rows"]

    def measure(schedules: list[Schedule], *_: object) -> list[dict[str, object]]:
        asked = {(str(schedule.cluster), schedule.name) for schedule in schedules}
        return [row for row in rows if (row["cluster"], row["schedule"]) in asked]

    return measure


def fit(measure: Measure, options: argparse.Namespace, *, drift_guess: float, model: str, modes: Sequence[str]) -> None:
    """Fit half of the 4x4 schedules, and publish the error on the other half and on 8x2."""
    if options.rows is not None:
        measure = measured_before(options.rows)
    started, rng, data = time.time(), np.random.default_rng(7), load_digits()
    four, eight = Cluster.parse("4x4"), Cluster.parse("8x2")
    schedules = named(four, (2, 2)) + random_rules(four, (2, 2), options.random, rng)
    rows = measure(schedules, data, options.seeds, options.rate)
    schedules = named(eight, (2, 4)) + random_rules(eight, (2, 4), options.random // 2, rng)
    other = measure(schedules, data, options.seeds, options.rate)
    names = sorted({str(row["schedule"]) for row in rows})
    half = set(rng.permutation(names)[: len(names) // 2].tolist())
    fitted = [row for row in rows if row["schedule"] in half]
    held_out = [row for row in rows if row["schedule"] not in half]
    solution = least_squares(
        lambda x: np.log(predict(fitted, x)) - np.log([float(str(row["steps_ratio"])) for row in fitted]),
        x0=np.array([0.02, drift_guess, 0.45]),
        bounds=([0, 0, 0.1], [1, 10, 1]),
    )
    result = {
        "model": model,
        "parameters": dict(zip("acp", [round(float(v), 4) for v in solution.x], strict=True)),
        "relative error": {
            mode: {
                "fitted half, 4x4": errors([r for r in fitted if r["data"] == mode], solution.x),
                "held-out half, 4x4": errors([r for r in held_out if r["data"] == mode], solution.x),
                "held-out cluster, 8x2": errors([r for r in other if r["data"] == mode], solution.x),
            }
            for mode in modes
        },
        "command": f"python benchmarks/steps_to_loss/{Path(sys.argv[0]).name} " + " ".join(sys.argv[1:]),
        "seeds": options.seeds,
        "learning_rate": options.rate,
        "seconds": round(time.time() - started, 1),
        "rows": [{key: row[key] for key in COLUMNS} for row in rows + other],
    }
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(compact.text(result))
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))


def main() -> None:
    words = "steps ratio = 1 + a*consensus distance + c*drift^p"
    fit(measure, options_of(__doc__, seeds=5, result=RESULT), drift_guess=1.0, model=words, modes=MODES)


if __name__ == "__main__":
    main()
