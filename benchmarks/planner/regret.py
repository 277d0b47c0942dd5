"""The recommendation's regret on jobs that nobody chose: its true time to a loss over the best trained one's.

    python -m benchmarks.planner.regret --number 30 [--first 0] [--seed 0] [--resume]

A job is drawn from (seed, number): the cluster's shape, links, speeds and jitter, how data are spread, and a task, one
of the five kinds of networks under SGD, momentum or Adam at All-Reduce's best rate. The planner is asked without a
pilot and does not know the task. Trained in one process, two seeds each, are its recommendation, that in lockstep
alone, the best few by their predicted times, also at the lowest and the highest price of consensus distance of any
task, the best late one and All-Reduce in every step. A true time is trained steps times the planner's seconds of a
step. Kinds that run by a protocol are not trained here.

Beside it, for each job: by how much the recommendation's predicted time rises where an input (link, computing, bytes)
is known 5 % wrong, and by how much its true time rises when what is late is allowed besides lockstep. Writes
benchmarks/results/regret.json after every job, and regret.md.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import compact, kit
from benchmarks.steps_to_loss.lateness import RESULT, steps_of
from partreduce import Job, plan
from partreduce.planner.job import Data
from partreduce.planner.lateness import Lateness
from partreduce.planner.measuring import measure
from partreduce.planner.recommend import permitted
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.strategies.axes import Form

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partreduce.types import Option

SHAPES = ("2x4", "4x2", "1x8", "8x1", "3x3")
LEAST, MOST, SEEDS, DIVERGED = 0.013, 0.504, 2, 5.0
"""The prices of consensus distance where it costs least and most; seeds; the ratio of what does not get there."""
EFFORT = 3.0
KEPT = ("median", "90th percentile", "worst")
Row = dict[str, Any]


def tasks() -> dict[str, tuple[float, float]]:
    """Best rate and target of each that was calibrated."""
    rows = json.loads(RESULT.read_text())["rows"]
    return {row["task"]: (row["rate"], row["target"]) for row in rows}


def draw(seed: int, number: int) -> tuple[Job, str]:
    """A job and its task."""
    rng = np.random.default_rng([seed, number])
    cluster = Cluster.parse(str(rng.choice(SHAPES)))
    slow = ((int(rng.integers(cluster.num_workers)), float(rng.choice([1.5, 2.0, 4.0]))),) if rng.random() < 0.3 else ()
    hardware = Hardware(
        inside=Link.of_bandwidth(10 ** rng.uniform(8, 10), 1e-5),
        nic=Link.of_bandwidth(10 ** rng.uniform(6.3, 8.7), float(rng.choice([0.0, 1e-4, 1e-3]))),
        model_bytes=2_000_000,
        compute=0.05,
        slowdown=slow,
        jitter=float(rng.choice([0.0, 0.0, 0.1, 0.3])),
    )
    data = Data.PER_WORKER if rng.random() < 0.15 else Data.SHUFFLED
    job = Job(cluster=replace(cluster, hardware=hardware), data=data, gap=False, quorum=False, effort=EFFORT)
    return job, str(rng.choice(sorted(tasks())))


def rivals(options: Sequence[Option], job: Job) -> Iterator[Option]:
    """What might be best, whatever the task."""
    able = [one for one in permitted(options, job) if np.isfinite(one.time) and one.facts is None]
    able = [one for one in able if one.lateness is not Lateness.PIPELINE]

    def at(option: Option, price: float) -> float:
        spread = float(option.consensus_distance)
        return option.step_seconds * (option.steps_ratio + (price - option.model.a) * spread)

    yield from sorted(able, key=lambda one: one.time)[:2]
    for price in (LEAST, MOST):
        yield min(able, key=lambda one: at(one, price))
    yield min((one for one in able if not one.late), key=lambda one: at(one, LEAST))
    late = [one for one in able if one.late]
    yield from [min(late, key=lambda one: one.time)] if late else []
    yield min((one for one in able if one.is_plain and one.pace == 1 and not one.late), key=lambda one: one.time)


def trained(option: Option, task: str, base: Sequence[float], mode: str) -> float:
    """Steps over All-Reduce's, the mean over the seeds."""
    rate, target = tasks()[task]
    found = []
    for seed, steps in enumerate(base):
        most = int(DIVERGED * steps)
        taken = steps_of(task, option.schedule, rate=rate, target=target, most=most, seed=seed, mode=mode)
        found.append(DIVERGED if taken is None else taken / steps)
    return float(np.mean(found))


def misjudged(job: Job, chosen: Option) -> float:
    """How many times as long, as predicted for the true job, what is recommended takes if an input is 5 % wrong."""
    hardware, worst = job.hardware, 1.0
    for wrong in (0.95, 1.05):
        for changed in (
            {"nic": Link(hardware.nic.latency, hardware.nic.seconds_per_byte / wrong)},
            {"compute": hardware.compute * wrong},
            {"model_bytes": int(hardware.model_bytes * wrong)},
        ):
            other = replace(job, cluster=replace(job.cluster, hardware=replace(hardware, **changed)))
            found = plan(replace(other, effort=EFFORT)).recommendation
            form = found.schedule.strategy.how.form
            worst = max(worst, measure(found.schedule, job, form=Form(form)).time / chosen.time)
    return worst


def judged(seed: int, number: int, *, sensitivity: bool) -> Row:
    """A job's row."""
    job, task = draw(seed, number)
    mode = "shuffled" if job.data is Data.SHUFFLED else "per-worker"
    planned, calm = plan(job), plan(replace(job, when=Lateness.LOCKSTEP)).recommendation
    rate, target = tasks()[task]
    everyone = build("allreduce", job.cluster.shape())
    goal: dict[str, Any] = {"rate": rate, "target": target, "mode": mode}
    base = [steps_of(task, everyone, **goal, most=600, seed=one) or 600.0 for one in range(SEEDS)]
    times: dict[str, float] = {}
    waits: dict[str, bool] = {}
    known: dict[object, float] = {}
    for option in [planned.recommendation, calm, *rivals(planned.options, job)]:
        strategy = option.schedule.strategy
        key = replace(strategy, how=type(strategy.how)())
        if key not in known:
            known[key] = 1.0 if strategy.averages_gradients else trained(option, task, base, mode)
        times[option.name] = known[key] * option.step_seconds
        waits[option.name] = not option.late
    chosen = planned.recommendation
    best = min(times, key=lambda name: times[name])
    row: Row = {"number": number, "cluster": str(job.cluster), "task": task, "data": mode}
    row |= {"nic": job.hardware.nic.seconds_per_byte, "jitter": job.hardware.jitter, "slow": len(job.hardware.slowdown)}
    row |= {"recommended": chosen.name, "best": best, "regret": times[chosen.name] / times[best]}
    row |= {"regret in lockstep": times[chosen.name] / min(times[name] for name in times if waits[name])}
    row |= {"reached": times[chosen.name] < 0.99 * DIVERGED * chosen.step_seconds}
    row |= {"predicted": chosen.steps_ratio, "measured": times[chosen.name] / chosen.step_seconds}
    row |= {"with late": times[chosen.name] / times[calm.name]}
    return row | ({"5 % wrong": misjudged(job, chosen)} if sensitivity else {})


def page(rows: Sequence[Row]) -> str:
    """The table of jobs."""
    columns = ("number", "cluster", "task", "data", "recommended", "best", "regret")
    cells = [[f"{row[c]:.2f}" if c == "regret" else row[c] for c in columns] for row in rows]
    return kit.table(columns, cells)


def summary(rows: Sequence[Row]) -> str:
    """The numbers."""
    said = []
    for name in ("regret", "regret in lockstep", "with late", "5 % wrong"):
        values = [row[name] for row in rows if name in row]
        if values:
            three = np.median(values), np.quantile(values, 0.9), max(values)
            words = ", ".join(f"{word} {value:.3f}" for word, value in zip(KEPT, three, strict=True))
            said.append(f"{name} ({len(values)} jobs): {words}")
    missed = [row["number"] for row in rows if not row["reached"]]
    return "; ".join([*said, f"recommendations that did not reach their loss: {missed or 'none'}"]) + "."


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--number", type=int, default=30)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--sensitive", type=int, default=0, help="before this number the inputs are changed by 5 %%")
    arguments.add_argument("--resume", action="store_true", help="keep the rows of an earlier run")
    arguments.add_argument("--output", type=Path, default=kit.RESULTS / "regret.json")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    path = chosen.output
    rows = json.loads(path.read_text())["rows"] if chosen.resume and path.exists() else []
    for number in range(chosen.first, chosen.first + chosen.number):
        if number in {row["number"] for row in rows}:
            continue
        rows.append(judged(chosen.seed, number, sensitivity=number < chosen.sensitive))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        path.write_text(compact.text({"rows": rows}))
    about = f"`{kit.command('planner.regret')}`; no pilot, effort {EFFORT:g}, {SEEDS} seeds, {len(rows)} jobs."
    kit.write(path, "Regret on random jobs", about, summary(rows), page(rows))


if __name__ == "__main__":
    main()
