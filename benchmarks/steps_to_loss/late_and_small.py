"""Measures the price in steps of gradients that come late, and of numbers that are rounded on their way.

    python -m benchmarks.steps_to_loss.late_and_small [--seeds 8] [--seeds-lab 4] [--variants "…;…"] [--resume]

Three tasks, 16 workers on 4 nodes, shuffled data, plain SGD: the planner's task (a multilayer perceptron on digits,
`training.py`), and the lab's two networks (`benchmarks/lab/tasks.py`). Each is trained to a loss by All-Reduce in
lockstep, in a pipeline of width 2 and 3, with and without warm-up, with parameters late by a round (of 1 step and of
5), and with each codec; and by node-then-all 23, whose parameters travel as differences to the last mean of all, with
each codec. At each learning rate the *steps ratio* of a run is its steps over those of All-Reduce in lockstep with
the same seed (of node-then-all's codecs, over node-then-all's). `h` is the learning rate times the largest curvature
of the loss, which a pipeline of width 2 needs below 1 and lockstep below 2 (docs/theory/pipeline.md).

Writes benchmarks/results/late_and_small.json and .md. About half an hour on a quiet core, most of it for the lab's.
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
from benchmarks.steps_to_loss.training import Lab, Perceptron, Task, Workers, steps_to
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.strategies import Codec, How, Late, Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partreduce.topo.schedule import Schedule

CLUSTER = Cluster.parse("4x4")
EVERY = 4
"""Steps between two looks at the loss; between them it is taken for linear."""
WARM_UP = 16
POWER_STEPS = 12
NUDGE = 1e-3


def curvatures(task: Task, rate: float, steps: list[int]) -> dict[str, float]:
    """The curvature of the loss that is largest in magnitude, on All-Reduce's way in lockstep, by power iteration."""
    at, found = task.start(), {}
    rng = np.random.default_rng(0)
    for step in range(max(steps) + 1):
        if step in steps:
            direction = rng.normal(size=at.shape).astype(np.float32)
            largest = 0.0
            for _ in range(POWER_STEPS):
                direction /= np.linalg.norm(direction)
                nudge = np.float32(NUDGE * np.linalg.norm(at) / 10)
                bend = (task.slope(at + nudge * direction) - task.slope(at - nudge * direction)) / (2 * nudge)
                largest = float(bend @ direction)
                direction = bend
            found[str(step)] = round(largest, 3)
        gradients = task.gradients(np.repeat(at[None], CLUSTER.num_workers, axis=0))
        at = at - np.float32(rate) * gradients.mean(axis=0)
    return found


def variants() -> Iterator[tuple[str, str, Schedule]]:
    """What is trained: its name, whose steps it is compared with, and the schedule."""
    everyone = build("allreduce", CLUSTER)

    def with_(schedule: Schedule, **changes: object) -> Schedule:
        return replace(schedule, strategy=replace(schedule.strategy, **changes), certificate=None)  # type: ignore[arg-type]

    yield "lockstep", "lockstep", everyone
    yield "pipeline", "lockstep", with_(everyone, when=Pipeline())
    yield "pipeline, warm-up", "lockstep", with_(everyone, when=Pipeline(warm_up=WARM_UP))
    yield "pipeline of 3", "lockstep", with_(everyone, when=Pipeline(width=3))
    yield "parameters late", "lockstep", with_(everyone, when=Late())
    yield "parameters every 5", "lockstep", with_(everyone, pace=5)
    yield "parameters late every 5", "lockstep", with_(everyone, pace=5, when=Late())
    codecs = {
        "float16": How(codec=Codec.FLOAT16),
        "bfloat16": How(codec=Codec.BFLOAT16),
        "int8": How(codec=Codec.INT8),
    }
    for name, how in codecs.items():
        yield name, "lockstep", with_(everyone, how=how)
    yield "pipeline, int8", "pipeline", with_(everyone, when=Pipeline(), how=codecs["int8"])
    rare = build("node-then-all", CLUSTER, node_rounds=23)
    yield "node-then-all 23", "lockstep", rare
    for name, how in codecs.items():
        yield f"node-then-all 23, {name}", "node-then-all 23", with_(rare, how=how)


TASKS = {
    "perceptron, digits": (0.15, (0.4, 0.2, 0.1), 3000),
    "lab, digits": (0.1, (0.4, 0.2), 400),
    "lab, text": (2.6, (0.8, 0.4, 0.2), 400),
}
"""Target, learning rates, and the most steps."""


def measured(name: str, seeds: int, wanted: list[str], known: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Every variant at every rate of a task, but for those that are known."""
    target, rates, most = TASKS[name]

    def task(seed: int) -> Task:
        lab = name.removeprefix("lab, ")
        return Perceptron(CLUSTER, "shuffled", seed) if lab == name else Lab(lab, CLUSTER, seed)

    for rate in rates:
        earlier = [row for row in known if row["task"] == name and row["rate"] == rate]
        steps: dict[str, list[float | None]] = {
            str(row["variant"]): row["steps"] for row in earlier if "variant" in row
        }  # type: ignore[misc]
        for variant, beside, schedule in variants():
            if variant in steps or (wanted and variant not in wanted):
                continue
            steps[variant] = [
                steps_to(target, Workers(schedule, task(seed), rate=rate), most=most, every=EVERY)
                for seed in range(seeds)
            ]
            ratios = [a / b for a, b in zip(steps[variant], steps[beside], strict=False) if a and b]
            row: dict[str, object] = {"task": name, "rate": rate, "variant": variant, "beside": beside}
            row |= {"steps": steps[variant], "reached": len(ratios)}
            if ratios:
                row |= {"steps_ratio": round(float(np.mean(ratios)), 4), "low": round(min(ratios), 4)}
                row |= {"high": round(max(ratios), 4)}
            if len(ratios) > 1:
                row |= {"error": round(float(np.std(ratios, ddof=1) / np.sqrt(len(ratios))), 4)}
            yield row
        usual = [value for value in steps["lockstep"] if value is not None]
        if usual and not any("curvature at step" in row for row in earlier):
            middle = int(np.mean(usual))
            largest = curvatures(task(0), rate, [0, middle // 4, middle // 2, middle])
            yield {"task": name, "rate": rate, "curvature at step": largest}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a page's tables, one a task and rate."""
    said = []
    for name, (target, rates, _) in TASKS.items():
        for rate in rates:
            mine = [row for row in rows if row["task"] == name and row["rate"] == rate]
            if not mine:
                continue
            said.append(f"\n## {name}, rate {rate:g}, to a loss of {target:g}\n")
            for row in mine:
                if bends := row.get("curvature at step"):
                    products = ", ".join(f"{rate * value:.2f} at step {step}" for step, value in bends.items())
                    said.append(f"h, the rate times the largest curvature on the way in lockstep: {products}.\n")
            said.append(kit.table(HEAD, [_cells(row) for row in mine if "variant" in row]))
    return "\n".join(said)


HEAD = ("variant", "beside", "steps", "steps ratio", "lowest to highest", "standard error")


def _cells(row: dict[str, Any]) -> list[str]:
    steps, first = [value for value in row["steps"] if value is not None], [row["variant"], row["beside"]]
    if len(steps) < len(row["steps"]):
        return [*first, f"{len(steps)} of {len(row['steps'])} runs reached it", "", "", ""]
    ratio = [f"{row['steps_ratio']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}", f"{row.get('error', 0.0):.3f}"]
    return [*first, f"{np.mean(steps):.1f}", *ratio]


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=8)
    arguments.add_argument("--seeds-lab", type=int, default=4)
    arguments.add_argument("--variants", default="", help="names separated by semicolons; all by default")
    arguments.add_argument("--resume", action="store_true", help="keep the output's rows and measure what it lacks")
    arguments.add_argument("--output", type=Path, default=kit.RESULTS / "late_and_small.json")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # its set-up costs more than it saves at this size
    commands, rows = [kit.command("steps_to_loss.late_and_small")], []
    if chosen.resume:
        before = json.loads(chosen.output.read_text())
        commands, rows = [*before["commands"], *commands], before["rows"]
    wanted = chosen.variants.split(";") if chosen.variants else []
    for name in TASKS:
        seeds = chosen.seeds_lab if name.startswith("lab") else chosen.seeds
        for row in measured(name, seeds, wanted, list(rows)):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            chosen.output.write_text(compact.text({"commands": commands, "rows": rows}))
    about = f"`{'`; `'.join(commands)}`; 4x4 workers, shuffled data, plain SGD. What is missing was not measured."
    kit.write(chosen.output, "Late and small: the price in steps", about, table(rows))


if __name__ == "__main__":
    main()
