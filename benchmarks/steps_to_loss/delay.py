"""Measures what averaging less, and late, costs in steps on tasks of five kinds, and fits the planner's prices to them.

    python -m benchmarks.steps_to_loss.delay measure [--tasks text/sgd …] [--seeds 2]   # resumes what is there
    python -m benchmarks.steps_to_loss.delay fit

Sixteen workers on 4 nodes, and eight on 2, shuffled data; networks and optimizers are those of `networks.py`. Each task
is trained to what All-Reduce's loss at its best rate of a grid is after `STEPS` steps, by every schedule at that same
rate. The model is that of the planner (`partreduce.planner.steps_model`),

    steps ratio = 1 + own + a · consensus distance + late · late distance + later · (late distance - 1) · late distance

where own is Adam's alone, by the noise of a worker's gradient, and the late distance is at one curvature for all
(`topo.metrics.late_distance`); each task has its own prices. Held out is a whole kind of network: it is predicted with
the prices of the others.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks import compact, kit
from benchmarks.lab.outer_steps import by_turns
from benchmarks.lab.rehearse import by_schedule, steps_to
from benchmarks.steps_to_loss.networks import KINDS, OPTIMIZERS, Network
from partreduce.planner.steps_model import Prices, StepsModel
from partreduce.runtime.pilot.job import ring_pairs
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.metrics import consensus_distance, late_distance
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedAveraging, Pipeline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

Row = dict[str, Any]
CLUSTER = Cluster.parse("4x4")
MOST_LATE = 3
"""Steps of the longest late round that is measured on other clusters."""
STEPS, EVERY, DIVERGED, LEAST = 80, 4, 5.0, 0.05
RATES = {
    "sgd": (0.1, 0.2, 0.4, 0.8, 1.6),
    "momentum": (0.0125, 0.025, 0.05, 0.1, 0.2),
    "adam": (0.00125, 0.0025, 0.005, 0.01, 0.02),
}
SHAPE: dict[str, Any] = {"c": 0.0, "p": 1.0, "errors": (), "max_consensus_distance": np.inf, "max_drift": np.inf}
"""Of the model on shuffled data."""
RESULT = kit.RESULTS / "steps_to_loss_lateness.json"


def schedules(cluster: Cluster = CLUSTER) -> list[Schedule]:
    """Synchronous and late rounds of one step and of several, of all and in groups; on `CLUSTER` also a pipeline."""

    def node(rounds: int) -> Schedule:
        return build("node-then-all", cluster, node_rounds=rounds)

    def at(schedule: Schedule, steps_per_round: int = 1, *, late: bool = False) -> Schedule:
        words = f"{schedule.name}{f' every {steps_per_round}' if steps_per_round > 1 else ''}{' late' if late else ''}"
        strategy = replace(
            schedule.strategy, steps_per_round=steps_per_round, **({"sync": DelayedAveraging()} if late else {})
        )
        return replace(schedule, name=words, strategy=strategy, certificate=None)

    everyone = build("allreduce", cluster)
    found = [at(everyone, steps_per_round) for steps_per_round in (2, 5, 10)] + [
        at(node(3)),
        at(node(15)),
        ring_pairs(cluster, 1),
    ]
    found += [at(everyone, steps_per_round, late=True) for steps_per_round in (1, 2, 3, 5, 10)]
    found += [
        at(node(3), late=True),
        at(node(15), late=True),
        at(node(3), 5, late=True),
        at(build("prague-figure-10", cluster), late=True),
        ring_pairs(cluster, 1, late=True),
    ]
    if cluster == CLUSTER:
        return [*found, Schedule("pipeline", cluster, AllReduce(sync=Pipeline()))]
    return [one for one in found if not one.strategy.is_delayed or one.strategy.steps_per_round <= MOST_LATE]


def best_rate(kind: str, optimizer: str, *, steps: int = STEPS, least: float = LEAST) -> tuple[float, float]:
    """The rate at which All-Reduce's loss is least after `steps` steps, and that loss, or `least` of the first."""
    found, floor = [], 0.0
    for rate in RATES[optimizer]:
        network = Network(kind, CLUSTER, rate=rate, optimizer=optimizer)
        floor, advance = least * network.loss(network.models[0]), network.together()
        for step in range(steps):
            advance(step)
        loss = network.loss(network.models[0])
        found.append((loss if np.isfinite(loss) else np.inf, rate))
        print(f"{kind}/{optimizer} at {rate}: {loss:.4g}", file=sys.stderr, flush=True)
    loss, rate = min(found)
    return rate, float(f"{max(loss, floor):.3g}")


def steps_of(
    task: str, schedule: Schedule, *, rate: float, target: float, most: int, seed: int = 0, mode: str = "shuffled"
) -> float | None:
    """Steps of a task to a loss; None if it does not get there."""
    kind, _, optimizer = task.partition("/")
    network = Network(kind, schedule.cluster, rate=rate, optimizer=optimizer, seed=seed, mode=mode)
    strategy = schedule.strategy
    if strategy.takes_turns or not strategy.payload.outer.is_plain:
        advance = by_turns(network, schedule)
    else:
        advance = network.together(strategy.sync.lag) if strategy.averages_gradients else by_schedule(network, schedule)
    return steps_to(target, network, advance, most, every=EVERY)


def measured(task: str, cluster: Cluster, seeds: int, known: list[Row]) -> Iterator[Row]:
    """Rows of a task: its schedules with their steps over All-Reduce's, seed by seed."""
    kind, _, optimizer = task.partition("/")
    rate, target = (known[0]["rate"], known[0]["target"]) if known else best_rate(kind, optimizer)
    goal: dict[str, Any] = {"cluster": str(cluster), "rate": rate, "target": target}
    everyone, most, aim = build("allreduce", cluster), 3 * STEPS, {"rate": rate, "target": target}
    base = [steps_of(task, everyone, **aim, most=most, seed=seed) or float(most) for seed in range(seeds)]
    have = {row["schedule"] for row in known if row["cluster"] == str(cluster)}
    for schedule in schedules(cluster):
        if schedule.name in have:
            continue
        taken = [steps_of(task, schedule, **aim, most=int(DIVERGED * one), seed=seed) for seed, one in enumerate(base)]
        ratios = [None if t is None else round(t / one, 4) for t, one in zip(taken, base, strict=True)]
        yield {"task": task, **goal, "schedule": schedule.name, "ratios": ratios}


def stored() -> list[Row]:
    """Every row with its mean ratio, its number of workers, and its schedule's metrics."""
    rows = rows_in(RESULT)
    shapes = [CLUSTER, *map(Cluster.parse, sorted({row["cluster"] for row in rows} - {str(CLUSTER)}))]
    metrics = {(str(one.cluster), one.name): _metrics(one) for shape in shapes for one in schedules(shape)}
    for row in rows:
        row["ratio"] = float(np.exp(np.mean(np.log([ratio or DIVERGED for ratio in row["ratios"]]))))
        row["workers"] = Cluster.parse(row["cluster"]).num_workers
        row["metrics"] = metrics[row["cluster"], row["schedule"]]
    return rows


def _metrics(schedule: Schedule) -> tuple[float, float]:
    """Consensus distance and late distance; those of a pipeline, whose workers are never apart, are 0."""
    if schedule.strategy.averages_gradients:
        return 0.0, 0.0
    return float(consensus_distance(schedule)), late_distance(schedule)


def predicted(row: Row, prices: npt.NDArray[np.float64]) -> float:
    """The steps ratio at prices of noise, consensus distance and delay; only Adam's steps shrink by noise."""
    model = StepsModel(**SHAPE, **dict(zip(Prices._fields, prices, strict=False)), num_workers=row["workers"])
    return model.steps_ratio(row["metrics"][0], 0.0, late=row["metrics"][1])


def fitted(rows: list[Row]) -> npt.NDArray[np.float64]:
    """The prices with the least squares of logarithms, robust, every row with the same weight.

    What did not get there took at least `DIVERGED` times as long, so more is no error.
    """
    measured, is_adam = np.log([row["ratio"] for row in rows]), any("adam" in row["task"] for row in rows)

    def off(prices: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        found = np.log([predicted(row, prices * [is_adam, 1, 1, 1]) for row in rows]) - measured
        return np.where((measured > 0.999 * np.log(DIVERGED)) & (found > 0), 0.0, found)

    found = least_squares(off, x0=[0.1] * 4, bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.1)
    return np.asarray(found.x) * [is_adam, 1, 1, 1]


def kind_of(row: Row) -> str:
    return str(row["task"]).split("/")[0]


def held_out(rows: list[Row]) -> dict[str, npt.NDArray[np.float64]]:
    """Relative errors of synchronous and late rounds, of each kind of network by the prices of all other kinds."""
    errors: dict[str, list[float]] = {"synchronous": [], "late": []}
    for kind in sorted({kind_of(row) for row in rows}):
        prices = fitted([row for row in rows if kind_of(row) != kind])
        for row in rows:
            if kind_of(row) == kind:
                row["predicted"] = min(DIVERGED, predicted(row, prices))
                off = abs(np.log(row["predicted"] / row["ratio"]))
                errors["late" if row["metrics"][1] > 0 else "synchronous"].append(float(np.expm1(off)))
    return {words: np.array(found) for words, found in errors.items()}


def answer(rows: list[Row]) -> tuple[str, str]:
    """The prices of each task, of all tasks of an optimizer and of all, each with the errors of a held-out kind."""
    piped = {row["task"]: row["ratio"] for row in rows if row["schedule"] == "pipeline"}
    rows = [row for row in rows if row["schedule"] != "pipeline"]
    said, cells = [], []
    for words in ("", *OPTIMIZERS):
        own = [row for row in rows if row["task"].endswith(words)]
        if words:
            for task in sorted({row["task"] for row in own}):
                listed = [row for row in own if row["task"] == task]
                cells.append([task, listed[0]["rate"], *_told(fitted(listed)), f"{piped[task]:.2f}", "", ""])
        delay = float(np.exp(np.mean([np.log(piped[task]) for task in {row["task"] for row in own}])))
        errors = held_out(own)
        nine = [f"{np.quantile(found, 0.9):.0%}" for found in errors.values()]
        cells.append([f"all {words}".strip(), "", *_told(fitted(own)), f"{delay:.2f}", *nine])
        half = [f"{np.median(found):.0%}" for found in errors.values()]
        said.append(f"{words or 'any optimizer'}: half within {half[0]} synchronous and {half[1]} late")
    shown = ("allreduce every 5", "allreduce late", "allreduce every 3 late")
    measured = [[task, *(_both(rows, task, name) for name in shown)] for task in sorted({row["task"] for row in rows})]
    words = f"By the prices of the optimizer's other kinds / measured, on {CLUSTER} ({DIVERGED:g}: not reached):"
    head = ("task", "rate", "noise", "a", "late", "later", "pipeline", "9 of 10, synchronous", "9 of 10, late")
    return (
        f"Held out, a kind of network at a time ({len(rows)} tasks x schedules): {'; '.join(said)}.",
        f"{kit.table(head, cells)}\n{words}\n\n{kit.table(('task', *shown), measured)}",
    )


def _told(prices: npt.NDArray[np.float64]) -> list[str]:
    return [f"{price:.3f}" for price in prices]


def _both(rows: list[Row], task: str, schedule: str) -> str:
    """Predicted and measured."""
    row = next(r for r in rows if (r["task"], r["schedule"], r["cluster"]) == (task, schedule, str(CLUSTER)))
    return f"{row['predicted']:.2f} / {row['ratio']:.2f}"


def parser(words: str) -> argparse.ArgumentParser:
    """What is done, and for which tasks."""
    arguments = kit.parser(words)
    arguments.add_argument("what", choices=["measure", "fit"])
    arguments.add_argument(
        "--tasks",
        nargs="+",
        default=[f"{name}/{rule}" for name, kind in KINDS.items() if kind.priced for rule in OPTIMIZERS],
    )
    return arguments


def rows_in(place: Path) -> list[Row]:
    rows: list[Row] = json.loads(place.read_text())["rows"] if place.exists() else []
    return rows


def resume(place: Path, tasks: Sequence[str], measured: Callable[[str, list[Row]], Iterable[Row]]) -> None:
    """Add what is `measured` of each task, which is told the rows that are there, row by row."""
    for task in tasks:
        for row in measured(task, [row for row in rows_in(place) if row["task"] == task]):
            print(json.dumps(row), file=sys.stderr, flush=True)
            place.write_text(compact.text({"rows": [*rows_in(place), row]}))


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--cluster", type=Cluster.parse, default=CLUSTER)
    chosen = arguments.parse_args()
    kit.one_thread()
    if chosen.what == "fit":
        about = f"`{kit.command('steps_to_loss.delay')}`; {CLUSTER} workers, one seed, and 2x4, two; shuffled data."
        kit.write(RESULT, "What averaging less, and late, costs in steps", about, *answer(stored()))
        return
    resume(RESULT, chosen.tasks, lambda task, known: measured(task, chosen.cluster, chosen.seeds, known))


if __name__ == "__main__":
    main()
