"""Measures the price in steps of gradients that come late, and of numbers that are rounded on their way.

    python -m benchmarks.steps_to_loss.late_and_small [--seeds 8] [--seeds-lab 4] [--variants "…;…"] [--resume]

Three tasks, 16 workers on 4 nodes, shuffled data, plain SGD: the planner's task (a multilayer perceptron on digits,
`virtual_training.py`), and the lab's two networks (`benchmarks/lab/tasks.py`). Each is trained to a loss by All-Reduce
in lockstep, in a pipeline of width 2 and 3, with and without warm-up, with parameters late by a round, and with each
codec; and by node-then-all 23, whose parameters travel as differences to the last mean of all, with each codec. At each
learning rate the *steps ratio* of a run is its steps over those of All-Reduce in lockstep with the same seed (of
node-then-all's codecs, over node-then-all's). `h` is the learning rate times the largest curvature of the loss, which a
pipeline of width 2 needs below 1 and lockstep below 2 (docs/theory/pipeline.md).

Writes benchmarks/results/late_and_small.json and .md. About half an hour on a quiet core, most of it for the lab's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from benchmarks import compact
from benchmarks.lab.rehearse import Rehearsal
from benchmarks.lab.tasks import read_data, write_data
from benchmarks.steps_to_loss import virtual_training
from benchmarks.steps_to_loss.coding import coded_mean
from benchmarks.steps_to_loss.fit import RESULT
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.strategies import Codec, How, Late, Pipeline, Rounding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from partreduce.topo.schedule import Schedule

    Floats = npt.NDArray[np.float32]

OUTPUT = RESULT.with_name("late_and_small.json")
CLUSTER = Cluster.parse("4x4")
EVERY = 4
"""Steps between two looks at the loss; between them it is taken for linear."""
WARM_UP = 16
POWER_STEPS = 12
NUDGE = 1e-3


class Task(Protocol):
    """A network in one process; parameters are one array (count,)."""

    def start(self) -> Floats:
        """The parameters that every worker begins with."""

    def gradient(self, worker: int, at: Floats) -> Floats:
        """A worker's next gradient."""

    def loss(self, at: Floats) -> float:
        """Over all samples that count."""

    def slope(self, at: Floats) -> Floats:
        """The gradient of that loss."""


class Perceptron:
    """The planner's task."""

    def __init__(self, seed: int) -> None:
        self._data = virtual_training.load_digits()
        self._rng = np.random.default_rng(seed)
        self._shards = virtual_training.shards(self._data, build("allreduce", CLUSTER), "shuffled", self._rng)
        self._shapes = [(64, virtual_training.HIDDEN), (virtual_training.HIDDEN,), (virtual_training.HIDDEN, 10), (10,)]

    def start(self) -> Floats:
        parts = [
            self._rng.normal(0, shape[0] ** -0.5, shape) if len(shape) > 1 else np.zeros(shape)
            for shape in self._shapes
        ]
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    def _parts(self, at: Floats) -> list[npt.NDArray[np.float64]]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(at.astype(float), ends), self._shapes, strict=True)]

    def _gradient(self, at: Floats, picks: npt.NDArray[np.int64]) -> Floats:
        weights = [part[None] for part in self._parts(at)]
        found = virtual_training.gradients_of(weights, self._data.pixels[picks][None], self._data.labels[picks][None])
        return np.concatenate([part.ravel() for part in found]).astype(np.float32)

    def gradient(self, worker: int, at: Floats) -> Floats:
        shard = self._shards[worker]
        return self._gradient(at, shard[self._rng.integers(0, len(shard), virtual_training.BATCH)])

    def loss(self, at: Floats) -> float:
        return virtual_training.loss_of(self._parts(at), self._data)

    def slope(self, at: Floats) -> Floats:
        return self._gradient(at, np.arange(len(self._data.labels)))


class Lab:
    """One of the lab's networks."""

    def __init__(self, task: str, samples: object, seed: int) -> None:
        self._rehearsal = Rehearsal(samples, task=task, data="shuffled", cluster=CLUSTER, rate=0.0, seed=seed)  # type: ignore[arg-type]

    def start(self) -> Floats:
        return self._rehearsal.models[0].numpy().copy()

    def gradient(self, worker: int, at: Floats) -> Floats:
        return self._rehearsal.gradient(worker, torch.from_numpy(at)).numpy()

    def loss(self, at: Floats) -> float:
        return self._rehearsal.loss(torch.from_numpy(at))

    def slope(self, at: Floats) -> Floats:
        rehearsal = self._rehearsal
        torch.nn.utils.vector_to_parameters(torch.from_numpy(at), rehearsal._parts)  # noqa: SLF001 - the same benchmark
        samples = rehearsal._evaluated  # noqa: SLF001 - as above
        loss = torch.nn.functional.cross_entropy(rehearsal._model(samples.inputs), samples.labels)  # noqa: SLF001
        found = torch.autograd.grad(loss, rehearsal._parts)  # noqa: SLF001
        return torch.cat([part.flatten() for part in found]).numpy()


@dataclass
class Workers:
    """All workers' parameters, and what a schedule does with their gradients; the definition, nothing shared."""

    schedule: Schedule
    rate: float
    models: Floats
    """(workers, count)"""
    rng: np.random.Generator
    _done: int = 0
    _late: deque[Floats] = field(default_factory=deque)
    _common: Floats | None = None
    """The last mean of all, which every worker knows: (count,)."""

    def step(self, task: Task) -> None:
        """One step of everybody."""
        strategy, how = self.schedule.strategy, self.schedule.strategy.how
        if strategy.averages_gradients:
            at = self.models[0]  # replicas are equal
            gradients = np.stack([task.gradient(worker, at) for worker in range(len(self.models))])
            self._apply(coded_mean(gradients, how, self.rng))
        else:
            began = self.models.copy() if strategy.mixes_late else None
            for worker in range(len(self.models)):
                self.models[worker] -= self.rate * task.gradient(worker, self.models[worker])
            self._average(began, how)
        self._done += 1

    def _apply(self, mean: Floats) -> None:
        """Gradients in the order in which they come; in a pipeline the first of them are zero."""
        when = self.schedule.strategy.when
        if isinstance(when, Pipeline) and self._done >= when.warm_up:
            self._late.append(mean)
            mean = self._late.popleft() if len(self._late) > when.lag else np.zeros_like(mean)
        self.models -= self.rate * mean

    def _average(self, began: Floats | None, how: How) -> None:
        if began is not None:
            everybody = mixing_matrix(self.schedule.phase(0)).astype(np.float32)
            self.models += everybody @ began - began
            return
        if self._common is None:
            self._common = np.zeros_like(self.models[0])  # before the first round of all, numbers travel as they are
        phase = self.schedule.phase(self._done % self.schedule.period)
        for group in phase:
            members = list(group.members)
            if how.codec is Codec.NONE:
                mean = self.models[members].mean(axis=0)
            else:
                mean = self._common + coded_mean(self.models[members] - self._common, how, self.rng)
            self.models[members] = mean
            if len(members) == len(self.models):
                self._common = mean.copy()


def steps_to(target: float, task: Task, schedule: Schedule, *, rate: float, most: int, seed: int) -> float | None:
    """Steps until the mean model's loss falls to the target; None if it does not."""
    start = task.start()
    models = np.repeat(start[None], CLUSTER.num_workers, axis=0)
    workers = Workers(schedule, rate, models, np.random.default_rng([seed, 1]))
    if not schedule.strategy.averages_gradients:
        workers._common = start.copy()  # noqa: SLF001 - all start equal
    before = task.loss(start)
    for step in range(1, most + 1):
        workers.step(task)
        if step % EVERY:
            continue
        loss = task.loss(workers.models.mean(axis=0))
        if not np.isfinite(loss):
            return None
        if loss <= target:
            return round(step - EVERY + EVERY * (before - target) / (before - loss), 2)
        before = loss
    return None


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
        gradients = [task.gradient(worker, at) for worker in range(CLUSTER.num_workers)]
        at = at - np.float32(rate) * np.mean(gradients, axis=0)
    return found


def variants() -> Iterator[tuple[str, str, Schedule]]:
    """What is trained: its name, whose steps it is compared with, and the schedule."""
    everyone = build("allreduce", CLUSTER)

    def with_(schedule: Schedule, **changes: object) -> Schedule:
        return replace(schedule, strategy=replace(schedule.strategy, **changes), certificate=None)  # type: ignore[arg-type]

    yield "lockstep", "lockstep", everyone
    yield "pipeline", "lockstep", with_(everyone, when=Pipeline())
    yield "pipeline, warm-up", "lockstep", with_(everyone, when=Pipeline(warm_up=WARM_UP))
    yield "pipeline of 3", "lockstep", with_(everyone, when=Pipeline(width=3, wider=True))
    yield "parameters late", "lockstep", with_(everyone, when=Late())
    codecs = {
        "float16": How(codec=Codec.FLOAT16),
        "bfloat16": How(codec=Codec.BFLOAT16),
        "int8": How(codec=Codec.INT8),
        "int8, stochastic": How(codec=Codec.INT8, rounding=Rounding.STOCHASTIC),
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
    "lab, digits": (0.1, (0.4, 0.2), 160),
    "lab, text": (2.6, (0.4, 0.2), 200),
}
"""Target, learning rates, and the most steps."""


def measured(
    name: str, samples: object, seeds: int, wanted: list[str], known: list[dict[str, object]]
) -> Iterator[dict[str, object]]:
    """Every variant at every rate of a task, but for those that are known."""
    target, rates, most = TASKS[name]

    def task(seed: int) -> Task:
        return Perceptron(seed) if name.startswith("perceptron") else Lab(name.split(", ")[1], samples, seed)

    for rate in rates:
        earlier = [row for row in known if row["task"] == name and row["rate"] == rate]
        steps: dict[str, list[float | None]] = {
            str(row["variant"]): row["steps"] for row in earlier if "variant" in row
        }  # type: ignore[misc]
        for variant, beside, schedule in variants():
            if variant in steps or (wanted and variant not in wanted):
                continue
            steps[variant] = [
                steps_to(target, task(seed), schedule, rate=rate, most=most, seed=seed) for seed in range(seeds)
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


def table(rows: list[dict[str, object]]) -> str:
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
                    products = ", ".join(f"{rate * value:.2f} at step {step}" for step, value in bends.items())  # type: ignore[attr-defined]
                    said.append(f"h, the rate times the largest curvature on the way in lockstep: {products}.\n")
            said += [
                "| variant | beside | steps | steps ratio | lowest to highest | standard error |",
                "|---|---|---|---|---|---|",
            ]
            for row in mine:
                if "variant" not in row:
                    continue
                steps = [value for value in row["steps"] if value is not None]  # type: ignore[attr-defined]
                if len(steps) < len(row["steps"]):  # type: ignore[arg-type]
                    reached = f"{len(steps)} of {len(row['steps'])} runs reached it"  # type: ignore[arg-type]
                    said.append(f"| {row['variant']} | {row['beside']} | {reached} | | | |")
                    continue
                said.append(
                    f"| {row['variant']} | {row['beside']} | {np.mean(steps):.1f} | {row['steps_ratio']:.3f} "
                    f"| {row['low']:.3f} to {row['high']:.3f} | {row['error']:.3f} |"
                )
    return "\n".join(said) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seeds-lab", type=int, default=4)
    parser.add_argument("--variants", default="", help="names separated by semicolons; all by default")
    parser.add_argument("--resume", action="store_true", help="keep the output's rows and measure what it lacks")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # its set-up costs more than it saves at this size
    commands, rows = [" ".join(["python -m benchmarks.steps_to_loss.late_and_small", *sys.argv[1:]])], []
    if options.resume:
        before = json.loads(options.output.read_text())
        commands, rows = [*before["commands"], *commands], before["rows"]
    wanted = options.variants.split(";") if options.variants else []
    for name in TASKS:
        samples = None
        if name.startswith("lab"):
            with tempfile.TemporaryDirectory() as folder:
                write_data(name.split(", ")[1], Path(folder) / "data.npz")
                samples = read_data(Path(folder) / "data.npz")
        seeds = options.seeds_lab if samples is not None else options.seeds
        for row in measured(name, samples, seeds, wanted, list(rows)):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            options.output.write_text(compact.text({"commands": commands, "rows": rows}))
    head = (
        f"# Late and small: the price in steps\n\n`{'`; `'.join(commands)}`; 4x4 workers, shuffled data, plain SGD. "
        "What is missing was not measured.\n"
    )
    options.output.with_suffix(".md").write_text(head + table(rows))


if __name__ == "__main__":
    main()
