"""Checks the planner's steps model on neighbours that keep a gap, whose averaging is decided while they run.

    python -m benchmarks.steps_to_loss.gaps [--seeds 3] [--mode per-worker]

Every setting runs in virtual time under two slowdowns of Hop's paper (a step takes 6 times as long with probability
1/n; one worker always takes 4 times as long), and the same reduces train `training.Perceptron`: each worker
computes its gradient when it enters a step and averages what the protocol object gave it. Asked is whether the
figures that the replay measures on noise (`runtime.virtual_time.replay`) predict the steps: the steps model's steps
ratio, divided by the progress of a step where that is below 1. Written to benchmarks/results/steps_to_loss_gaps.json.
Some five minutes; on sorted data four times as long.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import compact
from benchmarks.steps_to_loss.training import Perceptron, Workers, steps_to
from partreduce.planner.steps_model import FITTED
from partreduce.runtime.virtual_time.carrying import Carrying
from partreduce.runtime.virtual_time.case import Case
from partreduce.runtime.virtual_time.gaps import run_gaps
from partreduce.runtime.virtual_time.replay import Replay
from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.figures.late_distance import late_distance_like
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Gap, Skip
from partreduce.topo.strategies.axes import Form
from partreduce.topo.strategies.gap import Order, Reducing, Weights
from partreduce.topo.timing.compute import ComputeTimes, RandomSlowdown

CLUSTER = Cluster.parse("4x4")
TARGET, RATE, EVERY = 0.15, 0.4, 5
STEPS = {"shuffled": 400, "per-worker": 1600}
"""Steps of a run, as many as the slowest setting needs."""
RANDOM = ComputeTimes(base=1.0, jitter=0.02, disturbance=RandomSlowdown(6.0))
SLOW = ComputeTimes(base=1.0, jitter=0.02, slowdown=((5, 4.0),))
BESIDE_5 = tuple(int(worker in (4, 6, 13)) for worker in range(16))
"""The neighbours of worker 5 in the ring-based graph."""
SETTINGS: tuple[tuple[str, str, ComputeTimes, Gap], ...] = (
    ("random", "ring-based", RANDOM, Gap()),
    ("random", "ring-based", RANDOM, Gap(max_ig=6, backup=1)),
    ("random", "ring-based", RANDOM, Gap(staleness=5)),
    ("random", "ring-based", RANDOM, Gap(staleness=5, reduce=Reducing.NEWEST)),
    ("random", "ring-based", RANDOM, Gap(staleness=5, weights=Weights.ITERATION)),
    ("random", "ring-based", RANDOM, Gap(max_ig=6, staleness=5, backup=1)),
    ("random", "clustered", RANDOM, Gap(max_ig=6, backup=1)),
    ("random", "clustered", RANDOM, Gap(staleness=5)),
    ("slow", "ring-based", SLOW, Gap(max_ig=6, backup=1)),
    ("slow", "ring-based", SLOW, Gap(max_ig=5, backup=BESIDE_5, skip=Skip(limit=4))),
    ("slow", "ring-based", SLOW, Gap(max_ig=5, staleness=4, backup=BESIDE_5, skip=Skip(limit=4))),
    ("slow", "ring-based", SLOW, Gap(max_ig=8, staleness=5, skip=Skip(limit=8))),
)
RESULT = Path(__file__).parents[1] / "results" / "steps_to_loss_gaps.json"


class Training(Carrying):
    """Every worker trains the digits' network with the updates that it is told to average."""

    def __init__(self, schedule: Schedule, mode: str, seed: int) -> None:
        gap = schedule.strategy.when
        assert isinstance(gap, Gap)
        self.task = Perceptron(schedule.cluster, mode, seed)
        super().__init__(
            schedule.strategy.graphs[0], gap, np.repeat(self.task.start()[None], schedule.num_workers, axis=0)
        )
        self.checked, self.reached = 0, float("nan")
        for worker in range(schedule.num_workers):
            self._compute(worker)

    def _compute(self, worker: int) -> None:
        one = slice(worker, worker + 1)
        self.update[worker] = -RATE * self.task.gradients(self.now[one], one)[0]

    def enters(self, worker: int, step: int) -> None:
        super().enters(worker, step)
        if not np.isnan(self.reached):
            return
        self._compute(worker)
        passed = sum(self.step) / len(self.step)  # skipped steps count
        if passed >= (self.checked + 1) * EVERY:
            self.checked += 1
            if self.task.loss(self.now.mean(axis=0)) < TARGET:
                self.reached = passed


def run(schedule: Schedule, times: ComputeTimes, steps: int, seed: int, listener: Training | Replay) -> float:
    """Seconds of a step."""
    case = Case(schedule, Hardware(), times, steps, seed, model_bytes=1, form=Form.RING)
    timeline = run_gaps(case, listeners=(listener,))
    return timeline.per_step(warm_up=steps // 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mode", choices=tuple(STEPS), action="append", help="default: shuffled")
    parser.add_argument("--first", type=int, default=len(SETTINGS), help="so many settings only")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    started, rows = time.time(), []
    base = Schedule("allreduce", CLUSTER, AllReduce())
    for mode in options.mode or ["shuffled"]:
        reference = [
            steps_to(TARGET, Workers(base, Perceptron(CLUSTER, mode, seed), rate=RATE), most=3000)
            for seed in range(options.seeds)
        ]
        for kind, graph, times, setting in SETTINGS[: options.first]:
            for order in Order:
                gap = replace(setting, order=order)
                built = registry.build(graph, CLUSTER)
                schedule = replace(built, strategy=replace(built.strategy, when=gap))
                replay = Replay(schedule.strategy.graphs[0], gap)
                seconds = run(schedule, times, 120, 0, replay)
                found = replay.replayed(CLUSTER.node_of())
                ratios = []
                for seed, steps in enumerate(reference):
                    training = Training(schedule, mode, seed)
                    run(schedule, times, STEPS[mode], seed, training)
                    ratios.append(training.reached / (steps or np.nan))
                pushed = 0.0 if mode == "shuffled" else found.drift_worker
                spread, share = found.consensus_distance, 1 - 1 / CLUSTER.num_workers
                late = late_distance_like(spread, 1, share) if order is Order.PARALLEL else 0.0
                model = FITTED.steps_ratio(spread, pushed, late=late)
                rows.append(
                    {
                        "data": mode, "slowdown": kind, "graph": graph, "order": str(order), "staleness": gap.staleness,
                        "backup": "beside 5" if gap.backup == BESIDE_5 else gap.backup, "reduce": str(gap.reduce),
                        "weights": str(gap.weights), "skip": gap.skip is not None, "step": round(seconds, 3),
                        "consensus_distance": round(found.consensus_distance, 3), "drift": round(pushed, 2),
                        "progress": round(found.progress, 3), "gradients": round(found.gradients, 1),
                        "predicted": round(model / min(1.0, found.progress), 3),
                        "steps_ratio": round(float(np.median(ratios)), 3),
                        "spread": [round(float(min(ratios)), 3), round(float(max(ratios)), 3)],
                    }
                )  # fmt: skip
                print(rows[-1], file=sys.stderr, flush=True)
    errors = {}
    for mode in options.mode or ["shuffled"]:
        for order in Order:
            mine = [row for row in rows if row["data"] == mode and row["order"] == str(order)]
            # A larger learning rate in effect is no error of the prediction, which does not count on it.
            off = [max(row["predicted"], 1e-9) / row["steps_ratio"] - 1 for row in mine if row["progress"] <= 1.02]
            errors[f"{mode}, {order}"] = {
                "settings": len(off),
                "median": round(float(np.median(np.abs(off))), 3),
                "worst": round(float(np.abs(off).max()), 3),
                "too few steps predicted, at the most": round(float(-min(off)), 3),
            }
    result = {
        "command": "python -m benchmarks.steps_to_loss.gaps " + " ".join(sys.argv[1:]),
        "seconds": round(time.time() - started, 1),
        "relative error where a step brings the mean no further than lockstep": errors,
        "rows": rows,
    }
    options.output.write_text(compact.text(result))
    print(compact.text(errors))


if __name__ == "__main__":
    main()
