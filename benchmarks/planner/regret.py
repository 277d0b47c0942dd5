"""The recommendation's regret on jobs that nobody chose: its true time to a loss over the best trained one's.

    python -m benchmarks.planner.regret --number 30 [--first 0] [--seed 0] [--resume] [--pilot]
    python -m benchmarks.planner.regret --inputs --number 20 [--seed 0]

A job is drawn from (seed, number): the cluster's shape, links, speeds and jitter, how data are spread, and a task, one
of the five kinds of networks under SGD, momentum or Adam at All-Reduce's best rate. The planner is asked without a
pilot and knows the optimizer, as a user would, not the network. Trained in one process, at that rate and with the same
seeds, are its recommendation; what it would be if the planner had never seen this network (`held out`); that in
synchronous alone, and without outer steps; what is fastest at the prices of the job's own network, and of each of the
optimizer's tasks, with and without delay; All-Reduce in every step; and with --pilot what is recommended by the
probes of a pilot, and after its run-off, which trained with other seeds. A true time is trained steps times the
planner's seconds of a step. A rival that takes half as long again as the recommendation with the first seeds is not
trained with the others. Outer steps train at the share of the rate that they are recommended with; kinds that run by a
protocol are not trained here.

The least of several measured times is too small by their noise. So the best is chosen by one half of the seeds and
compared on the other half (`fair`, both ways round, the geometric mean), and the regret that this best itself has
there is the noise (`floor`): a planner that knew everything but the draws of the other half would have it. Of every
two options that were trained the ratio of their times is compared with the interval that the planner states for it.

With --inputs nothing is trained: by how much the time of the recommendation, predicted for the true job, exceeds that
of what would have been recommended, where one input (link, latency, computing, bytes, slowdown) is known 5 % wrong.
Writes benchmarks/results/regret.json after every job, and regret.md; with --inputs inputs.json and inputs.md. Steps
that stand in regret.json are not trained again, also where --resume is not said: to judge a changed rule takes minutes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks import compact, kit
from benchmarks.lab.rehearse import by_schedule
from benchmarks.steps_to_loss.delay import RESULT, steps_of
from benchmarks.steps_to_loss.networks import Network
from partreduce import PlanRequest
from partreduce.planner.calibration import trained_sha256
from partreduce.planner.gain import gain, regrets
from partreduce.planner.job import Data
from partreduce.planner.measuring import measure
from partreduce.planner.plan import plan
from partreduce.planner.recommend import permitted, recommend
from partreduce.planner.run_off import RunOff
from partreduce.planner.steps_model import TASKS, Optimizer
from partreduce.runtime.pilot.job import Curve, probes, reference
from partreduce.runtime.pilot.run import is_harder
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partreduce.types import CandidateSchedule

SHAPES = ("2x4", "4x2", "1x8", "8x1", "3x3")
SEEDS, DIVERGED = 6, 5.0
"""Seeds, of which each half judges the other's best; the ratio of what does not get there."""
PILOT_STEPS, PILOT_SEEDS, PILOT_EVERY = 60, range(100, 104), 3
"""Of a pilot as `partreduce measure` makes it."""
FIRST, BEHIND = 2, 1.5
"""Seeds after which a rival is given up that takes so many times as long as the recommendation."""
EFFORT, BRIEF = 3.0, 0.5
"""Efforts of a plan that is trained, and of one that is only compared."""
JUDGED = ("own prices", "probes", "run-off")
"""Recommendations by better prices, the last two there with --pilot only."""
KEPT = ("median", "90th percentile", "worst")
Row = dict[str, Any]


def tasks() -> dict[str, tuple[float, float]]:
    """Best rate and target of each that was calibrated."""
    rows = json.loads(RESULT.read_text())["rows"]
    return {row["task"]: (row["rate"], row["target"]) for row in rows}


def draw(seed: int, number: int) -> tuple[PlanRequest, str]:
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
    task = str(rng.choice(sorted(tasks())))
    about = {"data": data, "optimizer": Optimizer(task.partition("/")[2]), "effort": EFFORT}
    return PlanRequest(cluster=replace(cluster, hardware=hardware), gap=False, quorum=False, **about), task


def able(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[CandidateSchedule]:
    """What is trained here: no protocols, but outer steps."""
    return [one for one in permitted(options, job) if np.isfinite(one.time) and (one.facts is None or is_outer(one))]


def is_outer(option: CandidateSchedule) -> bool:
    return option.facts is not None and bool(option.facts.by_task)


def rivals(options: Sequence[CandidateSchedule], job: PlanRequest) -> Iterator[CandidateSchedule]:
    """What might be best, whichever of the optimizer's tasks it is."""
    usual = job.steps_model
    for some in (options, [one for one in options if not one.late]):
        yield min(some, key=lambda one: one.time)
        for case in usual.cases:
            yield min(some, key=lambda one: one.time_in(case, usual, delay=True))
    yield min(
        (one for one in options if one.is_plain and one.steps_per_round == 1 and not one.late), key=lambda one: one.time
    )


def held_out(options: Sequence[CandidateSchedule], job: PlanRequest, task: str) -> CandidateSchedule:
    """The recommendation of a planner that was calibrated without the task's network."""
    assert job.optimizer is not None
    kinds, kind = list(TASKS[job.optimizer]), task.partition("/")[0]

    def unknown(option: CandidateSchedule) -> CandidateSchedule:
        """With the steps ratios of the other networks, where these are its prices."""
        if option.facts is None or not option.facts.by_task:
            return option
        by_task = tuple(r for name, r in zip(kinds, option.facts.by_task, strict=True) if name != kind)
        mean = float(np.exp(np.mean(np.log(by_task))))
        return replace(option, steps_ratio=mean, facts=replace(option.facts, by_task=by_task))

    given, others = list(map(unknown, options)), {name: TASKS[job.optimizer][name] for name in kinds if name != kind}
    with patch.dict(TASKS, {job.optimizer: others}):
        chosen = recommend(given, job)
    return next(option for option, one in zip(options, given, strict=True) if one is chosen)


class Trainer:
    """Trains schedules on a job's task; `known` are the steps of each task, spread of data, schedule and seed."""

    def __init__(self, task: str, mode: str, everyone: Schedule, known: dict[str, float]) -> None:
        self.task, self.mode, self.known, self.most = task, mode, known, 600
        self.base = self.steps(everyone, SEEDS)
        self.most = int(DIVERGED * np.mean(self.base))

    def steps(self, schedule: Schedule, seeds: int, share: float = 1.0) -> list[float]:
        """Of each seed, at a share of the rate; those of what does not get there are the most that are taken."""
        rate, target = tasks()[self.task]
        given: dict[str, Any] = {"rate": share * rate, "target": target, "most": self.most, "mode": self.mode}
        found = []
        for seed in range(seeds):
            key = f"{self.task} {self.mode} {trained_sha256(schedule)[:12]} {seed}" + (
                f" {share:g}" if share != 1 else ""
            )
            if key not in self.known:
                self.known[key] = steps_of(self.task, schedule, seed=seed, **given) or float(self.most)
            found.append(self.known[key])
        return found

    def seconds(self, option: CandidateSchedule, seeds: int = SEEDS) -> list[float]:
        """Until the loss, of each seed."""
        share = option.facts.rate if option.facts else 1.0
        return [round(steps * option.step_seconds, 4) for steps in self.steps(option.schedule, seeds, share)]


def piloted(job: PlanRequest, task: str, mode: str) -> tuple[CandidateSchedule, CandidateSchedule]:
    """What is recommended with the probes of a pilot, and after its run-off."""
    run_off, curves = RunOff(job, steps=PILOT_STEPS), list[Curve]()
    compared = [reference(job.cluster), *probes(job.cluster, steps=PILOT_STEPS, data=job.data)]
    while compared:
        for seed, schedule in product(PILOT_SEEDS, compared):
            if not any(is_harder(schedule, curve.schedule) for curve in curves if not curve.is_stable):
                curves.append(curve_of(schedule, task, mode, seed))
        compared = run_off.next(curves)
    given = replace(job, pilot=run_off.pilot(curves))
    first, last = (recommend(able(planned.options, given), given) for planned in (run_off.plans[0], run_off.plans[-1]))
    return first, last


def curve_of(schedule: Schedule, task: str, mode: str, seed: int) -> Curve:
    """The mean model's loss in a run of a pilot."""
    kind, _, optimizer = task.partition("/")
    network = Network(kind, schedule.cluster, rate=tasks()[task][0], optimizer=optimizer, seed=seed, mode=mode)
    strategy = schedule.strategy
    advance = network.together(strategy.sync.lag) if strategy.averages_gradients else by_schedule(network, schedule)
    losses = []
    for step in range(PILOT_STEPS + 1):
        if step % PILOT_EVERY == 0:
            losses.append(network.loss(network.models.mean(0)))
        advance(step)
    return Curve(schedule, seed, PILOT_EVERY, tuple(losses))


def covered(options: Sequence[CandidateSchedule], seconds: dict[str, list[float]], job: PlanRequest) -> list[bool]:
    """Of every two options whether the measured ratio of their times lies in the stated interval."""
    found = []
    for one, other in combinations(options, 2):
        told, ratio = gain(one, other, job.data), np.mean(seconds[other.name]) / np.mean(seconds[one.name])
        found.append(bool(told.low <= ratio <= told.high))
    return found


def judged(seed: int, number: int, known: dict[str, float], *, pilot: bool) -> Row:
    """A job's row, with the seconds of every option that was trained with every seed."""
    job, task = draw(seed, number)
    mode = "shuffled" if job.data is Data.SHUFFLED else "per-worker"
    options = able(plan(job).options, job)
    own = replace(job.steps_model, tasks=(TASKS[job.optimizer or Optimizer.SGD][task.partition("/")[0]],)).cases[0]
    asked = {
        "recommended": recommend(options, job),
        "held out": held_out(options, job, task),
        "synchronous": recommend([one for one in options if not one.late], job),
        "no outer": recommend([one for one in options if not is_outer(one)], job),
        "own prices": min(options, key=lambda one: one.time_in(own, job.steps_model, delay=True)),
    }
    if pilot:
        asked["probes"], asked["run-off"] = piloted(job, task, mode)
    chosen = asked["recommended"]
    trainer = Trainer(task, mode, build("allreduce", job.cluster.shape()), known)
    seconds = {option.name: trainer.seconds(option) for option in asked.values()}
    hopeless = BEHIND * sum(seconds[chosen.name][:FIRST])
    for option in rivals(options, job):
        if option.name not in seconds and sum(trainer.seconds(option, FIRST)) <= hopeless:
            seconds[option.name] = trainer.seconds(option)
    pairs = covered([one for one in options if one.name in seconds], seconds, job)
    ratio = float(np.mean(seconds[chosen.name]) / chosen.step_seconds / np.mean(trainer.base))
    return {
        "number": number,
        "cluster": str(job.cluster),
        "task": task,
        "data": mode,
        "nic": job.hardware.nic.seconds_per_byte,
        "jitter": job.hardware.jitter,
        "slow": len(job.hardware.slowdown),
        **{words: option.name for words, option in asked.items()},
        "predicted": chosen.steps_ratio,
        "measured": ratio,
        "reached": ratio < 0.99 * DIVERGED,
        "pairs": len(pairs),
        "covered": sum(pairs),
        "seconds": seconds,
    }


def ratios(row: Row) -> dict[str, float]:
    """A row's ratios, each over the least mean time of the trained ones, and over that chosen by other seeds."""
    taken = {name: np.array(found) for name, found in row["seconds"].items()}
    chosen, best = row["recommended"], min(taken, key=lambda name: taken[name].mean())
    fair, floor = [], []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - half.start, None, 2)
        known = min(taken, key=lambda name: taken[name][other].mean())
        here = {name: found[half].mean() for name, found in taken.items()}
        fair.append(np.log(here[chosen] / here[known]))
        floor.append(np.log(here[known] / min(here.values())))
    mean = {name: found.mean() for name, found in taken.items()}
    return {
        "regret": mean[chosen] / mean[best],
        "fair": float(np.exp(np.mean(fair))),
        "floor": float(np.exp(np.mean(floor))),
        **{words: mean[row[words]] / mean[best] for words in (*JUDGED, "held out") if words in row},
        "with late": mean[chosen] / mean[row["synchronous"]],
        **({"with outer": mean[chosen] / mean[row["no outer"]]} if "no outer" in row else {}),
    }


def page(rows: Sequence[Row]) -> str:
    """The table of jobs."""
    cells, words = [], ("regret", "fair", *JUDGED)
    for row in rows:
        taken = {name: float(np.mean(found)) for name, found in row["seconds"].items()}
        best, found = min(taken, key=lambda name: taken[name]), ratios(row)
        told = [f"{found[name]:.2f}" if name in found else "" for name in words]
        cells.append([row[c] for c in ("number", "cluster", "task", "data", "recommended")] + [best, *told])
    return kit.table(("number", "cluster", "task", "data", "recommended", "best", *words), cells)


def summary(rows: Sequence[Row]) -> str:
    """The numbers."""
    found = [ratios(row) for row in rows]
    cells = []
    for name in {name: None for one in found for name in one}:
        values = [one[name] for one in found if name in one]
        three = np.median(values), np.quantile(values, 0.9), max(values)
        cells.append([name, len(values), *(f"{value:.3f}" for value in three)])
    missed = [row["number"] for row in rows if not row["reached"]]
    table, (held, pairs) = kit.table(("", "jobs", *KEPT), cells), covers(rows)
    return (
        f"{table}\nRecommendations that did not reach their loss: {missed or 'none'}. The stated intervals hold "
        f"{held} of {pairs} ratios of two times."
    )


def covers(rows: Sequence[Row]) -> tuple[int, int]:
    """Ratios of two times that lie in their interval, and all."""
    return sum(row["covered"] for row in rows), sum(row["pairs"] for row in rows)


def changes(hardware: Hardware) -> Iterator[tuple[str, Hardware]]:
    """The hardware with each input 5 % less, and 5 % more."""
    for wrong in (0.95, 1.05):
        for name in ("nic", "inside"):
            link: Link = getattr(hardware, name)
            slower: dict[str, Any] = {name: replace(link, seconds_per_byte=link.seconds_per_byte / wrong)}
            yield f"{name} bandwidth", replace(hardware, **slower)
            if link.latency:
                later: dict[str, Any] = {name: replace(link, latency=link.latency * wrong)}
                yield f"{name} latency", replace(hardware, **later)
        yield "compute", replace(hardware, compute=(hardware.compute or 0.0) * wrong)
        yield "model bytes", replace(hardware, model_bytes=int((hardware.model_bytes or 0) * wrong))
        if hardware.slowdown:
            factors = tuple((worker, max(1.0, factor * wrong)) for worker, factor in hardware.slowdown)
            yield "slowdown", replace(hardware, slowdown=factors)


def misjudged(seed: int, number: int) -> list[Row]:
    """By how much longer, as predicted for the true job, what is recommended takes if an input is 5 % wrong.

    At shared prices, and in the worst-case regret over the optimizer's tasks, which is what the rule minimizes.
    """
    job = replace(draw(seed, number)[0], effort=BRIEF)
    planned, rows = plan(job), []
    chosen, allowed = planned.recommendation, permitted(planned.options, job)
    usual = regrets([chosen, *allowed], job)[0]
    for name, hardware in changes(job.hardware):
        found = plan(replace(job, cluster=replace(job.cluster, hardware=hardware))).recommendation
        true = found_again(found, planned.options, job)
        worse = regrets([true, *allowed], job)[0] / usual
        row = {"number": number, "input": name, "recommended": found.name}
        rows.append(row | {"longer": true.time / chosen.time, "regret": worse})
    return rows


def found_again(option: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule:
    """What was planned for a job that is not quite this one, with its seconds on this one."""
    same = (
        one for one in options if (one.schedule.strategy, one.algorithm) == (option.schedule.strategy, option.algorithm)
    )
    if known := next(same, None):
        return known
    measured = measure(option.schedule, job, algorithm=option.algorithm)
    # What has facts has its steps from them, not from metrics.
    return replace(option, step_seconds=measured.step_seconds) if option.facts else measured


def inputs_page(rows: Sequence[Row]) -> str:
    """For each input by how much longer the recommendation takes where it is 5 % wrong."""
    cells = []
    for name in sorted({row["input"] for row in rows}):
        own = [row for row in rows if row["input"] == name]
        told = [f"{max(row[what] for row in own):.3f}" for what in ("longer", "regret")]
        within = [f"{sum(row[what] <= 1.02 for row in own)} of {len(own)}" for what in ("longer", "regret")]
        cells.append([name, told[0], within[0], told[1], within[1]])
    head = ("input", "longer at most", "by at most 2 %", "worst-case regret more at most", "by at most 2 %")
    return kit.table(head, cells)


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--number", type=int, default=30)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--inputs", action="store_true", help="change the inputs by 5 %% instead of training")
    arguments.add_argument("--pilot", action="store_true", help="recommend by a pilot, too, and after a run-off")
    arguments.add_argument("--resume", action="store_true", help="keep the rows of an earlier run")
    arguments.add_argument("--output", type=Path)
    chosen = arguments.parse_args()
    kit.one_thread()
    path = chosen.output or kit.RESULTS / ("inputs.json" if chosen.inputs else "regret.json")
    stored = json.loads(path.read_text()) if path.exists() else {}
    rows, known = stored["rows"] if chosen.resume and stored else [], stored.get("steps", {})
    for number in range(chosen.first, chosen.first + chosen.number):
        if number in {row["number"] for row in rows}:
            continue
        rows += (
            misjudged(chosen.seed, number)
            if chosen.inputs
            else [judged(chosen.seed, number, known, pilot=chosen.pilot)]
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        path.write_text(compact.text({"rows": rows, **({"steps": known} if known else {})}))
    about = f"`{kit.command('planner.regret')}`; no pilot"
    if chosen.inputs:
        kit.write(path, "Inputs that are 5 % wrong", f"{about}, effort {BRIEF:g}.", inputs_page(rows))
    else:
        about += f", effort {EFFORT:g}, {SEEDS} seeds."
        kit.write(path, "Regret on random jobs", about, summary(rows), page(rows))


if __name__ == "__main__":
    main()
