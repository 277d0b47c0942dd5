"""Measures what averaging less, and late, costs in steps on tasks of five kinds, and fits the planner's prices to them.

    python -m benchmarks.steps_to_loss.lateness measure [--tasks text/sgd …] [--seeds 2]   # resumes what is there
    python -m benchmarks.steps_to_loss.lateness fit

Sixteen workers on 4 nodes, shuffled data; networks and optimizers are those of `networks.py`. Each task is trained to
what All-Reduce's loss at its best rate of a grid is after `STEPS` steps, by every schedule at that same rate. The
model is that of the planner,

    steps ratio = 1 + a · consensus distance + late · late distance

with the late distance at one curvature for all tasks (`topo.figures.late_distance`); each task has its own prices.
Held out is a whole kind of network: its schedules are predicted with the mean prices of the others.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import least_squares

from benchmarks import compact, kit
from benchmarks.lab.rehearse import by_schedule, steps_to
from benchmarks.steps_to_loss.networks import KINDS, OPTIMIZERS, Network
from partreduce.runtime.pilot.probes import ring_pairs
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import consensus_distance, late_distance
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Late, Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

Row = dict[str, Any]
CLUSTER = Cluster.parse("4x4")
STEPS, EVERY, DIVERGED, LEAST = 80, 4, 5.0, 0.05
RATES = {
    "sgd": (0.1, 0.2, 0.4, 0.8, 1.6),
    "momentum": (0.0125, 0.025, 0.05, 0.1, 0.2),
    "adam": (0.00125, 0.0025, 0.005, 0.01, 0.02),
}
RESULT = kit.RESULTS / "steps_to_loss_lateness.json"


def schedules() -> list[Schedule]:
    """Lockstep and late, rounds of one step and of several, among all and in groups; and a pipeline."""

    def node(rounds: int) -> Schedule:
        return build("node-then-all", CLUSTER, node_rounds=rounds)

    def at(schedule: Schedule, pace: int = 1, *, late: bool = False) -> Schedule:
        words = f"{schedule.name}{f' every {pace}' if pace > 1 else ''}{' late' if late else ''}"
        strategy = replace(schedule.strategy, pace=pace, **({"when": Late()} if late else {}))
        return replace(schedule, name=words, strategy=strategy, certificate=None)

    everyone = build("allreduce", CLUSTER)
    found = [at(everyone, pace) for pace in (2, 5, 10)] + [at(node(3)), at(node(15)), ring_pairs(CLUSTER, 1)]
    found += [at(everyone, pace, late=True) for pace in (1, 2, 3, 5, 10)]
    found += [
        at(node(3), late=True),
        at(node(15), late=True),
        at(node(3), 5, late=True),
        at(build("prague-figure-10", CLUSTER), late=True),
    ]
    found += [ring_pairs(CLUSTER, 1, late=True), Schedule("pipeline", CLUSTER, AllReduce(when=Pipeline()))]
    return found


def best_rate(kind: str, optimizer: str) -> tuple[float, float]:
    """The rate at which All-Reduce's loss is least after `STEPS` steps, and that loss, or `LEAST` of the first."""
    found, least = [], 0.0
    for rate in RATES[optimizer]:
        network = Network(kind, CLUSTER, rate=rate, optimizer=optimizer)
        least, advance = LEAST * network.loss(network.models[0]), network.together()
        for step in range(STEPS):
            advance(step)
        loss = network.loss(network.models[0])
        found.append((loss if np.isfinite(loss) else np.inf, rate))
    loss, rate = min(found)
    return rate, float(f"{max(loss, least):.3g}")


def steps_of(
    task: str, schedule: Schedule, *, rate: float, target: float, most: int, seed: int = 0, mode: str = "shuffled"
) -> float | None:
    """Steps of a task to a loss; None if it does not get there."""
    kind, _, optimizer = task.partition("/")
    network = Network(kind, schedule.cluster, rate=rate, optimizer=optimizer, seed=seed, mode=mode)
    strategy = schedule.strategy
    advance = network.together(strategy.when.lag) if strategy.averages_gradients else by_schedule(network, schedule)
    return steps_to(target, network, advance, most, every=EVERY)


def measured(task: str, seeds: int, known: list[Row]) -> Iterator[Row]:
    """Rows of a task: its schedules with their steps over All-Reduce's, seed by seed."""
    kind, _, optimizer = task.partition("/")
    rate, target = (known[0]["rate"], known[0]["target"]) if known else best_rate(kind, optimizer)
    goal: dict[str, Any] = {"rate": rate, "target": target}
    everyone, most = build("allreduce", CLUSTER), 3 * STEPS
    base = [steps_of(task, everyone, **goal, most=most, seed=seed) or float(most) for seed in range(seeds)]
    have = {row["schedule"] for row in known}
    for schedule in schedules():
        if schedule.name in have:
            continue
        taken = [steps_of(task, schedule, **goal, most=int(DIVERGED * one), seed=seed) for seed, one in enumerate(base)]
        ratios = [None if t is None else round(t / one, 4) for t, one in zip(taken, base, strict=True)]
        row = {"task": task, **goal, "schedule": schedule.name, "ratios": ratios}
        print(json.dumps(row), file=sys.stderr, flush=True)
        yield row


def stored() -> list[Row]:
    """Every task and schedule but pipelines, with its figures and the mean ratio.

    Adam's are counted beside All-Reduce every 2 steps: its moments are of single workers' gradients where parameters
    are averaged, of their mean where gradients are, and at one rate that alone costs steps under every schedule that
    averages parameters, however it does.
    """
    figures = {one.name: (float(consensus_distance(one)), late_distance(one)) for one in schedules()[:-1]}
    rows = _rows()
    for row in rows:
        row["ratio"] = float(np.exp(np.mean(np.log([ratio or DIVERGED for ratio in row["ratios"]]))))
    beside = {row["task"]: row["ratio"] for row in rows if row["schedule"] == "allreduce every 2"}
    rows = [row | {"figures": figures[row["schedule"]]} for row in rows if row["schedule"] in figures]
    return [row | {"ratio": row["ratio"] / beside[row["task"]]} if "adam" in row["task"] else row for row in rows]


def fitted(rows: list[Row]) -> npt.NDArray[np.float64]:
    """The prices a and late with the least squares of logarithms, every task with the same weight."""
    figures, measured = np.array([row["figures"] for row in rows]), np.log([row["ratio"] for row in rows])
    found = least_squares(lambda x: np.log1p(figures @ x) - measured, x0=[0.1, 0.1], bounds=(0.0, np.inf))
    return np.asarray(found.x)


def kind_of(row: Row) -> str:
    return str(row["task"]).split("/")[0]


def answer(rows: list[Row]) -> tuple[str, str]:
    """The prices, those of each task, and what the prices of all other kinds of networks predict for each kind."""
    for kind in {kind_of(row) for row in rows}:
        prices = fitted([row for row in rows if kind_of(row) != kind])
        for row in rows:
            if kind_of(row) == kind:
                row["predicted"] = 1 + float(np.dot(row["figures"], prices))
    errors = {
        words: np.abs([np.log(row["predicted"] / row["ratio"]) for row in rows if (row["figures"][1] > 0) is late])
        for words, late in (("lockstep", False), ("late", True))
    }
    said = ", ".join(
        f"{words}: half within {np.expm1(np.median(off)):.0%}, 9 of 10 within {np.expm1(np.quantile(off, 0.9)):.0%}"
        for words, off in errors.items()
    )
    tasks = {task: [row for row in rows if row["task"] == task] for task in sorted({row["task"] for row in rows})}
    each = [[task, listed[0]["rate"], *(f"{price:.3f}" for price in fitted(listed))] for task, listed in tasks.items()]
    a, late = fitted(rows)
    prices_table = kit.table(("task", "rate", "a", "late"), [*each, ["all", "", f"{a:.3f}", f"{late:.3f}"]])
    shown = [f"allreduce{words} late" for words in ("", " every 2", " every 5", " every 10")]
    cells = [
        [
            task,
            *(
                f"{row['predicted']:.2f} / {row['ratio']:.2f}"
                for name in shown
                for row in listed
                if row["schedule"] == name
            ),
        ]
        for task, listed in tasks.items()
    ]
    late_table = kit.table(("task", *shown), cells)
    return (
        f"Held out, a kind of network at a time ({len(rows)} tasks x schedules), {said}.",
        f"{prices_table}\nBy the prices of other kinds / measured ({DIVERGED:g}: not reached):\n\n{late_table}",
    )


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("what", choices=["measure", "fit"])
    arguments.add_argument("--tasks", nargs="+", default=[f"{kind}/{rule}" for kind in KINDS for rule in OPTIMIZERS])
    arguments.add_argument("--seeds", type=int, default=1)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # its set-up costs more than it saves at this size
    if chosen.what == "fit":
        about = f"`{kit.command('steps_to_loss.lateness')}`; {CLUSTER} workers, shuffled data."
        kit.write(RESULT, "What averaging less, and late, costs in steps", about, *answer(stored()))
        return
    for task in chosen.tasks:
        known = [row for row in _rows() if row["task"] == task]
        for row in measured(task, chosen.seeds, known):
            RESULT.write_text(compact.text({"rows": [*_rows(), row]}))


def _rows() -> list[Row]:
    rows: list[Row] = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    return rows


if __name__ == "__main__":
    main()
