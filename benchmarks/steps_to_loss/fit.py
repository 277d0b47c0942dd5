"""Fits how much longer a schedule trains than All-Reduce, in steps, from its consensus distance and drift.

    python -m benchmarks.steps_to_loss.fit [plain|late|second] [--seeds 5] [--random 40]
    python -m benchmarks.steps_to_loss.fit --rows benchmarks/results/steps_to_loss.json   # measured before: fit only

Schedules train 16 virtual workers, as a rehearsal of the lab does, under three placements of the data; the ratio of
the steps to the target loss over All-Reduce's is the measured *steps ratio*. The model is

    steps ratio = 1 + a · consensus distance + c · drift^p

with drift 0 for shuffled data, the `worker` drift for data sorted per worker and the `node` drift for data sorted per
node. It is fitted on half of the schedules; the error on the other half, and on another cluster shape, is printed and
written beside what was measured, from which the planner's constants are copied.

* plain: as said; results/steps_to_loss.json.
* late: every schedule late by a round. Do the constants fitted without predict them from figures under delayed mixing,
  or has lateness a price of its own? results/steps_to_loss_overlapped.json.
* second: the constant a on the lab's convolutional network, beside the planner's task; shuffled data;
  results/steps_to_loss_second.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize_scalar

from benchmarks import compact, kit
from benchmarks.lab.rehearse import Rehearsal, by_schedule, steps_to
from benchmarks.steps_to_loss.training import MODES, Perceptron
from partreduce.planner.steps_model import FITTED
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures import consensus_distance, drift, radius
from partreduce.topo.rule import Block, RulePhase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Late, RulePhases, Static

Row = dict[str, Any]
COLUMNS = ("cluster", "schedule", "data", "consensus_distance", "drift", "steps_ratio")
"""What a fit reads of a row; the file holds these."""
FOUR, EIGHT = Cluster.parse("4x4"), Cluster.parse("8x2")
DIVERGED = 8.0
"""The ratio that stands for a run which did not come to the target in so many times All-Reduce's steps."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is trained, and how its rows are fitted."""

    result: str
    modes: tuple[str, ...] = MODES
    seeds: int = 5
    random: int = 40
    target: float = 0.15
    most: int = 3000
    late: bool = False
    shapes: tuple[tuple[Cluster, tuple[int, ...]], ...] = ((FOUR, (2, 2)), (EIGHT, (2, 4)))

    @property
    def path(self) -> Path:
        """Where its rows stay."""
        return kit.RESULTS / f"{self.result}.json"

    def steps(self, schedule: Schedule, mode: str, rate: float, seed: int, most: int) -> float | None:
        """To the target; None if it takes more than `most`."""
        task = (
            Rehearsal(task="digits", cluster=schedule.cluster, rate=rate, seed=seed)
            if self is SECOND
            else Perceptron(schedule.cluster, mode, rate, seed)
        )
        return steps_to(self.target, task, by_schedule(task, schedule), most, every=5)


PLAIN = Question("steps_to_loss")
LATE = Question("steps_to_loss_overlapped", late=True)
SECOND = Question(
    "steps_to_loss_second", modes=MODES[:1], seeds=4, random=16, target=0.1, most=120, shapes=((FOUR, (2, 2)),)
)
QUESTIONS = {"plain": PLAIN, "late": LATE, "second": SECOND}


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


def schedules(question: Question, count: int, rng: np.random.Generator) -> list[list[Schedule]]:
    """Those of every cluster."""
    found = []
    for cluster, radices in question.shapes:
        listed = named(cluster, radices) + random_rules(cluster, radices, count // (1 + (cluster is EIGHT)), rng)
        if question.late:
            listed = [Schedule("allreduce", cluster, AllReduce()), *listed]
            listed = [replace(one, strategy=replace(one.strategy, when=Late())) for one in listed]
        found.append(listed)
    return found


def ratios(question: Question, schedule: Schedule, mode: str, base: list[float], rate: float) -> list[float]:
    """Steps over those of All-Reduce, seed by seed."""
    found = []
    for seed, steps in enumerate(base):
        taken = question.steps(schedule, mode, rate, seed, min(question.most, int(DIVERGED * steps)))
        found.append(DIVERGED if taken is None else taken / steps)
    return found


def all_reduce(question: Question, cluster: Cluster, mode: str, seeds: int, rate: float) -> list[float]:
    """Its steps to the target, by seed."""
    base, most = Schedule("allreduce", cluster, AllReduce()), question.most
    return [question.steps(base, mode, rate, seed, most) or float(most) for seed in range(seeds)]


def measured(question: Question, schedules: list[Schedule], seeds: int, rate: float) -> list[Row]:
    """A row for every schedule and placement of the data."""
    cluster, rows = schedules[0].cluster, []
    base = {mode: all_reduce(question, cluster, mode, seeds, rate) for mode in question.modes}
    for number, schedule in enumerate(schedules):
        spread = consensus_distance(schedule).value
        for mode in question.modes:
            pushed = 0.0 if mode == "shuffled" else drift(schedule, mode.removeprefix("per-")).value
            found = ratios(question, schedule, mode, base[mode], rate)
            row = (str(cluster), schedule.name, mode, spread, pushed, float(np.median(found)))
            rows.append(dict(zip(COLUMNS, row, strict=True)))
        print(f"\r{cluster}: {number + 1}/{len(schedules)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def column(rows: list[Row], key: str) -> np.ndarray:
    return np.array([row[key] for row in rows], dtype=float)


def summary(predicted: np.ndarray, rows: list[Row]) -> dict[str, float]:
    """Of relative errors."""
    relative = np.abs(predicted / column(rows, "steps_ratio") - 1)
    found = {"median": np.median(relative), "p90": np.quantile(relative, 0.9), "worst": relative.max()}
    return {name: round(float(value), 4) for name, value in found.items()}


Model = Callable[[list[Row], np.ndarray], np.ndarray]


def by_figures(rows: list[Row], parameters: np.ndarray) -> np.ndarray:
    a, c, p = parameters
    pushed = column(rows, "drift")
    return np.asarray(1 + a * column(rows, "consensus_distance") + c * np.where(pushed > 0, pushed, 0.0) ** p)


def fitted(model: Model, rows: list[Row], start: list[float], bounds: tuple[list[float], list[float]]) -> np.ndarray:
    """The least squares of logarithms."""
    wanted = np.log(column(rows, "steps_ratio"))
    return np.asarray(least_squares(lambda x: np.log(model(rows, x)) - wanted, x0=start, bounds=bounds).x)


def excess(rows: list[Row]) -> np.ndarray:
    """What the constants fitted without lateness predict above 1."""
    pairs = zip(column(rows, "consensus_distance"), column(rows, "drift"), strict=True)
    return np.array([FITTED.steps_ratio(spread, pushed) - 1 for spread, pushed in pairs])


PRICES: dict[str, Any] = {
    "no price": (lambda rows, _: 1 + excess(rows), []),
    "1 + predicted excess + s": (lambda rows, price: 1 + excess(rows) + price[0], [0.5]),
    "1 + f * predicted excess": (lambda rows, price: 1 + price[0] * excess(rows), [0.5]),
}
"""What lateness may cost beside what figures under delayed mixing say."""


def fit_of(question: Question, rows: list[Row], rng: np.random.Generator) -> Row:
    """Fitted on half of the 4x4 schedules; errors there, on the other half and on 8x2."""
    four = [row for row in rows if row["cluster"] == str(FOUR)]
    names = sorted({str(row["schedule"]) for row in four})
    half = set(rng.permutation(names)[: len(names) // 2].tolist())
    parts = {
        "fitted half, 4x4": [row for row in four if row["schedule"] in half],
        "held-out half, 4x4": [row for row in four if row["schedule"] not in half],
        "held-out cluster, 8x2": [row for row in rows if row["cluster"] != str(FOUR)],
    }

    def errors(model: Model, found: np.ndarray) -> Row:
        return {
            mode: {
                part: summary(model(mine, found), mine)
                for part, listed in parts.items()
                if (mine := [row for row in listed if row["data"] == mode])
            }
            for mode in question.modes
        }

    if question.late:
        parts = {
            part: [r for r in listed if not FITTED.extrapolates(r["consensus_distance"], r["drift"])]
            for part, listed in parts.items()
        }
        fits = {
            kind: (model, fitted(model, parts["fitted half, 4x4"], start, ([0.0], [10.0])) if start else np.zeros(1))
            for kind, (model, start) in PRICES.items()
        }
        return {
            "model": "steps ratio of late schedules from 1 + a*consensus distance + c*drift^p under delayed mixing",
            "prices": {kind: round(float(found[0]), 4) for kind, (_, found) in fits.items()},
            "relative error": {kind: errors(model, found) for kind, (model, found) in fits.items()},
        }
    found = fitted(by_figures, parts["fitted half, 4x4"], [0.02, 1.0, 0.45], ([0, 0, 0.1], [1, 10, 1]))
    return {
        "model": "steps ratio = 1 + a*consensus distance + c*drift^p",
        "parameters": dict(zip("acp", [round(float(v), 4) for v in found], strict=True)),
        "relative error": errors(by_figures, found),
    }


def second_fit(rows: list[Row]) -> Row:
    """The constant a of each task alone and of both with equal weight, which is the planner's."""
    tasks = {
        "planner's task": [r for r in json.loads(PLAIN.path.read_text())["rows"] if r["data"] == "shuffled"],
        "lab's network": [row for row in rows if row["schedule"] != "allreduce"],
    }

    def line(a: float, listed: list[Row]) -> np.ndarray:
        return np.asarray(1 + a * column(listed, "consensus_distance"))

    def best(*listed: list[Row]) -> float:
        def loss(a: float) -> float:
            return sum(float(np.mean(np.log(line(a, r) / column(r, "steps_ratio")) ** 2)) for r in listed)

        return float(minimize_scalar(loss, bounds=(0, 1), method="bounded").x)

    alone, both = {name: best(listed) for name, listed in tasks.items()}, best(*tasks.values())
    return {
        "model": "steps ratio = 1 + a*consensus distance",
        "a": {name: round(a, 4) for name, a in {**alone, "both": both}.items()},
        "relative error with a of both": {name: summary(line(both, r), r) for name, r in tasks.items()},
    }


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("question", nargs="?", choices=list(QUESTIONS), default="plain")
    arguments.add_argument("--seeds", type=int)
    arguments.add_argument("--random", type=int, help="random rules beside the named ones")
    arguments.add_argument("--rate", type=float, default=0.4, help="learning rate")
    arguments.add_argument("--output", type=Path, help="default, unless --rows is given: the question's own file")
    arguments.add_argument("--rows", type=Path, metavar="FILE", help="fit the rows of an earlier run, measure nothing")
    chosen = arguments.parse_args()
    question, started, rng = QUESTIONS[chosen.question], time.time(), np.random.default_rng(7)
    seeds = chosen.seeds or question.seeds
    drawn = schedules(question, question.random if chosen.random is None else chosen.random, rng)  # as when measured
    rows: list[Row] = json.loads(chosen.rows.read_text())["rows"] if chosen.rows else []
    for listed in drawn if not rows else ():
        rows += measured(question, listed, seeds, chosen.rate)
    result = {
        **(second_fit(rows) if question is SECOND else fit_of(question, rows, rng)),
        "command": kit.command("steps_to_loss.fit"),
        "target": question.target,
        "seeds": seeds,
        "learning_rate": chosen.rate,
        "seconds": round(time.time() - started, 1),
    }
    path = chosen.output or (None if chosen.rows else question.path)
    if path is not None:
        path.write_text(compact.text({**result, "rows": [{key: row[key] for key in COLUMNS} for row in rows]}))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
