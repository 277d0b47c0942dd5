"""Measures what outer steps cost or gain in steps, on the planner's tasks, and fits their prices.

    python -m benchmarks.steps_to_loss.outer measure [--tasks text/adam …] [--share 0.5]   # resumes what is there
    python -m benchmarks.steps_to_loss.outer fit

Sixteen workers, shuffled data, networks and optimizers of `networks.py`. Each task is trained to what All-Reduce's loss
is after `STEPS` steps at its best rate of a grid, by every schedule at that same rate or a share of it, as `delay`
does with shorter ones; a round is at most a quarter of All-Reduce's run. Where a setting was tried at several rates the
better one counts: such a training has to tune it anyway.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kit
from benchmarks.lab.outer_steps import by_turns
from benchmarks.lab.rehearse import steps_to
from benchmarks.steps_to_loss.delay import CLUSTER, best_rate, parser, resume, rows_in
from benchmarks.steps_to_loss.networks import Network
from partreduce.schedulers.registry import build
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, DelayedMerge, OuterStep, Payload, Synchronous

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]
STEPS = {"text/adam": 1000}
SHORT, EVERY, DIVERGED, LEAST = 400, 10, 3.0, 0.001
ROUNDS = (5, 15, 30, 100)
OUTERS = {
    "plain": OuterStep(),
    "0.5": OuterStep(lr="1", momentum="0.5", nesterov=True),
    "0.9": OuterStep(lr="0.7", momentum="0.9", nesterov=True),
}
"""By their momentum; the last is the published one."""
WITH_MOMENTUM = tuple(OUTERS)[1:]
LATE = {30: 6, 100: 20}
"""Steps by which fragments are merged late, by the steps of a round: a fifth."""
RESULT = kit.RESULTS / "steps_to_loss_outer.json"


def schedules() -> list[Schedule]:
    """Whole models in synchronous rounds; two fragments, merged late; nodes in each step, and all by an outer step."""

    def one(words: str, steps_per_round: int, outer: str, sync: Synchronous | DelayedMerge, fragments: int) -> Schedule:
        strategy = AllReduce(
            steps_per_round=steps_per_round, sync=sync, payload=Payload(outer=OUTERS[outer], fragments=fragments)
        )
        return Schedule(f"every {steps_per_round}, {outer}{words}", CLUSTER, strategy)

    def nodes(steps: int, outer: str) -> Schedule:
        plain = build("node-then-all", CLUSTER, node_rounds=steps - 1)
        payload = Payload(outer=OUTERS[outer])
        return Schedule(f"nodes, all every {steps}, {outer}", CLUSTER, replace(plain.strategy, payload=payload))

    whole = [one("", steps_per_round, outer, Synchronous(), 1) for steps_per_round in ROUNDS for outer in OUTERS]
    turns = [
        one(f", 2 fragments, alpha {alpha}", steps_per_round, outer, DelayedMerge(steps=late, alpha=alpha), 2)
        for steps_per_round, late in LATE.items()
        for alpha in ("0", "1/2")
        for outer in WITH_MOMENTUM
    ]
    return whole + turns + [nodes(steps, outer) for steps in ROUNDS[1:] for outer in WITH_MOMENTUM]


def base_of(task: str) -> tuple[float, float, float]:
    """All-Reduce's best rate of the grid, the loss that it gets to in so many steps, and its steps to there."""
    kind, _, optimizer = task.partition("/")
    most = STEPS.get(task, SHORT)
    rate, target = best_rate(kind, optimizer, steps=most, least=LEAST)
    network = Network(kind, CLUSTER, rate=rate, optimizer=optimizer)
    return rate, target, steps_to(target, network, network.together(), 2 * most, every=EVERY) or float(most)


def steps_of_round(schedule: Schedule) -> int:
    """Steps from one outer step of a parameter to the next."""
    return schedule.period * schedule.steps_per_round_of(0)


def measured(task: str, known: list[Row], words: str, share: float) -> Iterator[Row]:
    """Rows of a task: each schedule's steps over All-Reduce's, at a share of its rate; None beyond `DIVERGED` times."""
    kind, _, optimizer = task.partition("/")
    rate, target, base = (known[0]["rate"], known[0]["target"], known[0]["steps"]) if known else base_of(task)
    have = {row["schedule"] for row in known if row.get("share", 1) == share}
    for schedule in schedules():
        if not re.search(words, schedule.name) or schedule.name in have or 4 * steps_of_round(schedule) > base:
            continue
        network = Network(kind, CLUSTER, rate=share * rate, optimizer=optimizer)
        taken = steps_to(target, network, by_turns(network, schedule), int(DIVERGED * base), every=EVERY)
        ratio = None if taken is None else round(taken / base, 4)
        row = {"task": task, "rate": rate, "target": target, "steps": base, "schedule": schedule.name, "ratio": ratio}
        yield row | ({"share": share} if share != 1 else {})


def at_best_share(rows: list[Row]) -> list[Row]:
    """Of each optimizer and setting the rows at one share of All-Reduce's rate: of the most tasks, the least mean."""
    found: list[Row] = []
    for key in dict.fromkeys((optimizer_of(row), row["schedule"]) for row in rows):
        alike = [row for row in rows if (optimizer_of(row), row["schedule"]) == key]
        shares = sorted({share_of(row) for row in alike}, reverse=True)
        by_share = [[row for row in alike if share_of(row) == share] for share in shares]
        means = [float(np.mean([np.log(ratio_of(row)) for row in some])) for some in by_share]
        found += by_share[min(range(len(shares)), key=lambda index: (-len(by_share[index]), means[index]))]
    return found


def share_of(row: Row) -> float:
    """Of All-Reduce's best rate."""
    return float(row.get("share", 1))


def held_out(rows: list[Row]) -> list[float]:
    """The relative error of each row by the geometric mean of the other tasks of its optimizer and setting."""
    errors = []
    for row in rows:
        alike = [one for one in rows if one["schedule"] == row["schedule"] and one["task"] != row["task"]]
        others = [ratio_of(one) for one in alike if optimizer_of(one) == optimizer_of(row)]
        if others:
            errors.append(float(np.expm1(abs(np.log(ratio_of(row)) - np.mean(np.log(others))))))
    return errors


def ratio_of(row: Row) -> float:
    """Steps over All-Reduce's; what did not get there counts as `DIVERGED`."""
    return float(row["ratio"] or DIVERGED)


def optimizer_of(row: Row) -> str:
    return str(row["task"]).partition("/")[2]


def answer(rows: list[Row]) -> tuple[str, str]:
    """A line a setting, with its steps ratio on each task; and how far off a kind held out is.

    Errors are those of settings with momentum, which the planner proposes.
    """
    tasks = sorted({row["task"] for row in rows})
    steps = ", ".join(f"{task} {next(r['steps'] for r in rows if r['task'] == task):.0f}" for task in tasks)
    rows = at_best_share(rows)
    known = {(row["schedule"], row["task"]): row for row in rows}
    lines = []
    for name in (schedule.name for schedule in schedules()):
        found = [known.get((name, task)) for task in tasks]
        if not any(found):
            continue
        told = [f"{ratio_of(row):.2f}{'*' * (share_of(row) < 1)}" if row else "" for row in found]
        lines.append([name, *told])
    off = []
    for optimizer in sorted(set(map(optimizer_of, rows))):
        errors = held_out([row for row in rows if "plain" not in row["schedule"] and optimizer_of(row) == optimizer])
        off.append(f"{optimizer} half within {np.median(errors):.0%}, 9 of 10 within {np.quantile(errors, 0.9):.0%}")
    said = (
        f"All-Reduce's steps: {steps}. {DIVERGED:g}: not reached in so many times as many. A momentum of 0.5 goes with "
        "an outer rate of 1, 0.9 with 0.7, both Nesterov's; nothing stands where a run is shorter than four rounds, or "
        "was not made. *: at half of All-Reduce's best rate, where that needed fewer steps in the mean of an "
        f"optimizer's tasks. A kind of network held out: {', '.join(off)}."
    )
    return said, kit.table(("outer step", *tasks), lines)


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--schedules", default="", help="only those in whose name this regular expression is found")
    arguments.add_argument("--share", type=float, default=1.0, help="of All-Reduce's best rate")
    chosen = arguments.parse_args()
    kit.one_thread()
    if chosen.what == "fit":
        about = f"`{kit.command('steps_to_loss.outer')}`; {CLUSTER} workers, one seed, shuffled data."
        kit.write(RESULT, "What outer steps cost in steps", about, *answer(rows_in(RESULT)))
        return
    resume(RESULT, chosen.tasks, lambda task, known: measured(task, known, chosen.schedules, chosen.share))


if __name__ == "__main__":
    main()
