"""Codecs for parameters: is it harmless to round what workers added since all were equal, and what if one does not?

    python -m benchmarks.codecs_of_parameters              # about 9 minutes of one core
    python -m benchmarks.codecs_of_parameters --quick      # one seed, few steps
    python -m benchmarks.codecs_of_parameters --only 0     # one case of three; its rows are kept
    python -m benchmarks.codecs_of_parameters --redraw     # table and picture from the rows of all cases

Sixteen workers train the lab's digits network in one process, without a clock, under node-then-all and under a
recommendation of the planner (benchmarks/results/lab-nodes.json), at learning rates of the lab's grid, with its
batches. Means of groups are exact, or coded with the run-time's own kernels and in its order of stages (flat form; 16
bits are added one after the other, where a ring begins at another member for each part): of differences to the last
mean over all, as the run-time does, and of parameters themselves, which it refuses. Writes the table and the picture of
benchmarks/results/codecs-parameters.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.func import functional_call, grad, vmap

from benchmarks.lab.gates import Gate
from benchmarks.lab.rehearse import Rehearsal
from benchmarks.lab.setting import TARGETS
from benchmarks.lab.tasks import read_data, write_data
from partreduce.runtime.codecs.eight_bits import EightBits
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.codec_numbers import int8_bytes
from partreduce.topo.document.schedule import schedule_of
from partreduce.topo.strategies.axes import How

if TYPE_CHECKING:
    from benchmarks.lab.tasks import Samples
    from partreduce.topo.schedule import Schedule

RESULTS = Path(__file__).parent / "results"
CLUSTER = Cluster.regular(4, 4)
EVERY = 8
STEPS = 96
TARGET = TARGETS["digits"]
SIXTEEN = {"float16": torch.float16, "bfloat16": torch.bfloat16}
BLOCK = How().block


HEAD = """# Codecs of parameters: steps and losses

`python -m benchmarks.codecs_of_parameters`: digits, 16 workers on 4 nodes in one process, batch 16, lockstep, a mean
after each step; median of three seeds [lowest, highest]. "float16", "bfloat16" and "int8" round what was added since
the last mean over all, which is what the run-time does; "int8 of parameters" rounds parameters themselves, which it
refuses.
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a group's sum rounds: `codec` of differences to the reference, or of parameters themselves."""

    codec: str = "none"
    of_parameters: bool = False

    @property
    def name(self) -> str:
        """As the table has it."""
        if self.codec == "none":
            return "float32"
        return f"{self.codec} of parameters" if self.of_parameters else self.codec


CODECS = ("float16", "bfloat16", "int8")
ROUNDED = Variant("int8", of_parameters=True)
VARIANTS = (*(Variant(codec) for codec in ("none", *CODECS)), ROUNDED)
FEW = (Variant(), Variant("int8"), ROUNDED)


class Workers(Rehearsal):
    """The lab's workers, whose gradients are taken together."""

    def __init__(self, samples: Samples, rate: float, seed: int) -> None:
        super().__init__(samples, task="digits", data="shuffled", cluster=CLUSTER, rate=rate, seed=seed)
        network = torch.nn.Sequential(*(layer for layer in self._model if not isinstance(layer, Gate)))
        names, shapes = zip(*((name, part.shape) for name, part in network.named_parameters()), strict=True)
        sizes = [shape.numel() for shape in shapes]

        def loss(model: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            parts = (part.view(shape) for part, shape in zip(model.split(sizes), shapes, strict=True))
            outputs = functional_call(network, dict(zip(names, parts, strict=True)), (inputs,))
            return torch.nn.functional.cross_entropy(outputs, labels)

        self._gradients = vmap(grad(loss))

    def step_all(self) -> None:
        """One step of every worker, with the batches that `Rehearsal.step` draws."""
        batches = []
        for places, generator in zip(self._places, self._generators, strict=True):
            batches.append(places[torch.randint(len(places), (self.batch,), generator=generator)])
        chosen = torch.stack(batches)  # [workers, batch]
        with torch.no_grad():
            self.models -= self.rate * self._gradients(
                self.models, self.samples.inputs[chosen], self.samples.labels[chosen]
            )


class Means:
    """Means over groups as a variant has them; keeps the reference."""

    def __init__(self, variant: Variant, start: torch.Tensor) -> None:
        self.variant, self.reference = variant, start.clone()
        self._int8 = EightBits(BLOCK)

    def over(self, rows: torch.Tensor, *, everybody: bool) -> torch.Tensor:
        """The mean of rows [members, parameters]."""
        if self.variant.codec == "none":
            return rows.mean(0)
        if self.variant.of_parameters:
            return self._sum(rows / len(rows))
        mean = self.reference + self._sum((rows - self.reference) / len(rows))
        if everybody:
            self.reference = mean
        return mean

    def _sum(self, shares: torch.Tensor) -> torch.Tensor:
        dtype = SIXTEEN.get(self.variant.codec)
        if dtype is None:
            return self._sum_in_eight_bits(shares)
        short = shares.to(dtype)
        total = short[0].clone()
        for share in short[1:]:
            total += share
        return total.float()

    def _sum_in_eight_bits(self, shares: torch.Tensor) -> torch.Tensor:
        """Quantise, add in float32 in order of places, quantise the sum; shards are whole blocks and need no loop."""
        total, part = torch.zeros(shares.shape[1]), torch.empty(shares.shape[1])
        code = torch.empty(int8_bytes(len(total), BLOCK), dtype=torch.uint8)
        for values in (*shares, None):
            self._int8.encode(total if values is None else values, code)
            self._int8.decode(code, part)
            if values is not None:
                total += part
        return part


@dataclass(frozen=True, slots=True)
class Run:
    """The losses of the mean model of one training, every EVERY steps from step 0 on."""

    case: str
    variant: str
    seed: int
    losses: tuple[float, ...]

    @property
    def steps(self) -> float | None:
        """Steps to the target, interpolated between evaluations; None where it was not reached."""
        for index in range(1, len(self.losses)):
            before, after = self.losses[index - 1 : index + 1]
            if after <= TARGET:
                return EVERY * (index - 1 + (before - TARGET) / (before - after))
        return None


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared under one schedule at one learning rate."""

    name: str
    schedule: Schedule
    rate: float
    variants: tuple[Variant, ...]


def train(samples: Samples, case: Case, variant: Variant, seed: int, steps: int) -> Run:
    """One training in lockstep, a mean after each step."""
    workers = Workers(samples, case.rate, seed)
    means = Means(variant, workers.models[0])
    losses = [workers.loss(workers.models.mean(0))]
    for step in range(steps):
        workers.step_all()
        for group in case.schedule.phase(step):
            members = list(group.members)
            everybody = len(members) == CLUSTER.num_workers
            workers.models[members] = means.over(workers.models[members], everybody=everybody)
        if (step + 1) % EVERY == 0:
            losses.append(workers.loss(workers.models.mean(0)))
    return Run(case.name, variant.name, seed, tuple(losses))


def cases() -> list[Case]:
    """The lab's best rate under two schedules, and its smallest one, where updates are smaller against parameters."""
    nested = build("node-then-all", CLUSTER, node_rounds=3)
    recommended = json.loads((RESULTS / "lab-nodes.json").read_text())["recommendations"]["40mbit homogeneous"]
    return [
        Case("node-then-all 3, rate 0.4", nested, 0.4, VARIANTS),
        Case("planner's recommendation, rate 0.4", schedule_of(recommended), 0.4, FEW),
        Case("node-then-all 3, rate 0.1", nested, 0.1, FEW),
    ]


def table(runs: list[Run]) -> str:
    """One row for each case and variant, over seeds: steps to the target and the last loss, also beside float32's."""
    titles = ("case", "what is rounded", f"steps to loss {TARGET:g}", "less float32's, same seed")
    titles += (f"loss after {STEPS} steps", "over float32's, same seed")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    exact = {(run.case, run.seed): run for run in runs if run.variant == Variant().name}
    for key in dict.fromkeys((run.case, run.variant) for run in runs):
        mine = [run for run in runs if (run.case, run.variant) == key]
        pairs = [(run, exact[run.case, run.seed]) for run in mine]
        reached = [run.steps for run in mine if run.steps is not None]
        text = _spread(reached, ".1f") if len(reached) == len(mine) else f"{len(reached)} of {len(mine)} reach it"
        less = [run.steps - plain.steps for run, plain in pairs if run.steps is not None and plain.steps is not None]
        ratios = [run.losses[-1] / plain.losses[-1] for run, plain in pairs]
        beside = (_spread(less, "+.1f") if less else "–", _spread(ratios, ".2f"))
        if key[1] == Variant().name:
            beside = ("", "")
        last = _spread([run.losses[-1] for run in mine], ".4f")
        lines.append(f"| {key[0]} | {key[1]} | {text} | {beside[0]} | {last} | {beside[1]} |")
    return "\n".join(lines)


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


def draw(path: Path, runs: list[Run]) -> None:
    """Loss against steps, a panel for each schedule; lines are medians, bands the range over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(run.case for run in runs))
    figure, axes = plt.subplots(1, len(names), figsize=(7 * len(names), 4.5), layout="constrained", squeeze=False)
    colours = {variant.name: f"C{index}" for index, variant in enumerate(VARIANTS)}
    for axis, name in zip(axes[0], names, strict=True):
        for variant in VARIANTS:
            curves = [run.losses for run in runs if (run.case, run.variant) == (name, variant.name)]
            if not curves:
                continue
            ordered = [sorted(values) for values in zip(*curves, strict=True)]
            steps = [EVERY * index for index in range(len(ordered))]
            style = "--" if variant.of_parameters else "-"
            axis.plot(steps, [v[len(v) // 2] for v in ordered], style, color=colours[variant.name], label=variant.name)
            axis.fill_between(
                steps, [v[0] for v in ordered], [v[-1] for v in ordered], color=colours[variant.name], alpha=0.15, lw=0
            )
        axis.axhline(TARGET, color="#333333", linewidth=0.8)
        axis.set(xlabel="steps", ylabel="training loss of the mean model", title=name, yscale="log")
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main() -> None:
    """Run what was asked for, print the table, write it with its picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 24 steps, nothing written")
    parser.add_argument("--only", type=int, help="one of the cases")
    parser.add_argument("--redraw", action="store_true", help="compute nothing")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    seeds, steps = (1, 24) if chosen.quick else (chosen.seeds, STEPS)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_data("digits", Path(folder) / "data.npz")
        samples = read_data(Path(folder) / "data.npz")
    begun, runs = time.process_time(), []
    for index, case in enumerate(cases()):
        rows = RESULTS / "bench" / f"codecs-parameters-{index}.json"
        if chosen.redraw:
            runs += [Run(*row) for row in json.loads(rows.read_text())]
            continue
        if chosen.only not in (None, index):
            continue
        mine = []
        for variant, seed in itertools.product(case.variants, range(seeds)):
            mine.append(train(samples, case, variant, seed, steps))
            print(mine[-1], flush=True)
        runs += mine
        if not chosen.quick:
            rows.parent.mkdir(exist_ok=True)
            rows.write_text(json.dumps([astuple(run) for run in mine]))
    text = table(runs)
    print(f"{text}\n{time.process_time() - begun:.0f} CPU seconds")
    if chosen.quick or chosen.only is not None:
        return
    draw(RESULTS / "codecs-parameters.png", runs)
    (RESULTS / "codecs-parameters.md").write_text(f"{HEAD}\n{text}\n\n![Loss against steps](codecs-parameters.png)\n")


if __name__ == "__main__":
    main()
