"""How many more steps training needs where slow workers take fewer steps per round.

    python -m benchmarks.planner.unequal_steps [--seeds 3]

Four workers average their models every 4 or 8 steps of the fastest, and one to three of them take a quarter of the
steps. Each of the planner's fifteen tasks is trained at All-Reduce's best rate, on shuffled data, until the mean
model's loss reaches the task's target. The steps are those of the fastest worker, over those of the same schedule with
equal steps. Writes benchmarks/results/unequal_steps.md.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np

from benchmarks import kit
from benchmarks.planner.regret import Network, tasks
from benchmarks.planner.training import by_schedule, steps_to
from partreduce import Cluster
from partreduce.schedulers.registry import build

FOUR = Cluster.parse("1x4")
PATTERNS = {(4, 4, 4, 1): 4, (4, 4, 1, 1): 4, (4, 1, 1, 1): 4, (8, 8, 2, 2): 8}
"""Steps per round of each worker, and of all workers in the schedule to compare with."""
MOST = 5
"""All-Reduce's steps are allowed this many times."""


def train(task: str, steps: int | tuple[int, ...], seed: int, most: int) -> float | None:
    """Return the steps to the loss; None if it is not reached within `most`."""
    rate, target = tasks()[task]
    kind, _, optimizer = task.partition("/")
    network = Network(kind, FOUR, rate=rate, optimizer=optimizer, seed=seed)
    if steps == 1:
        return steps_to(target, network, network.together(), most)
    schedule = build("allreduce", FOUR, every=4)
    unequal = replace(schedule, strategy=replace(schedule.strategy, steps_per_round=steps))
    return steps_to(target, network, by_schedule(network, unequal), most)


def measure(task: str, seeds: int) -> dict[tuple[int, ...], float]:
    """Return for each pattern the logarithm of steps with unequal steps over steps with equal ones, mean of seeds."""
    found: dict[tuple[int, ...], list[float]] = {}
    for seed in range(seeds):
        base = train(task, 1, seed, 600)
        if base is None:
            continue
        equal = {every: train(task, every, seed, int(MOST * base)) for every in set(PATTERNS.values())}
        for pattern, every in PATTERNS.items():
            taken = train(task, pattern, seed, int(MOST * base))
            if taken and equal[every]:
                found.setdefault(pattern, []).append(float(np.log(taken / equal[every])))
    return {pattern: fmean(logs) for pattern, logs in found.items()}


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    seeds = arguments.parse_args().seeds
    kit.one_thread()
    ratios = {task: measure(task, seeds) for task in sorted(tasks())}
    progress = {pattern: fmean(pattern) / max(pattern) for pattern in PATTERNS}
    points = [(-np.log(progress[pattern]), log) for one in ratios.values() for pattern, log in one.items()]
    exponent = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    off = [abs(np.expm1(y - exponent * x)) for x, y in points]
    rows = [[task, *(f"{np.exp(one[p]):.2f}" if p in one else "" for p in PATTERNS)] for task, one in ratios.items()]
    mean = {p: np.exp(fmean(one[p] for one in ratios.values() if p in one)) for p in PATTERNS}
    rows.append(["geometric mean", *(f"{mean[p]:.2f}" for p in PATTERNS)])
    rows.append(["1 / progress", *(f"{1 / progress[p]:.2f}" for p in PATTERNS)])
    about = (
        f"`{kit.command('planner.unequal_steps')}`, commit {kit.commit()}. Steps over those of the same schedule with "
        f"equal steps; columns are the steps per round of four workers. Fitted: progress to the power of "
        f"-{exponent:.2f}, within {np.median(off):.0%} (median) and {np.quantile(off, 0.9):.0%} (9 of 10). Empty: a "
        "run did not reach its loss."
    )
    header = ("task", *(", ".join(map(str, pattern)) for pattern in PATTERNS))
    kit.write(kit.RESULTS / "unequal_steps.md", "Steps where slow workers take fewer", about, kit.table(header, rows))


if __name__ == "__main__":
    main()
