"""Measure the recommendation's regret on random jobs: its true time to a loss over that of the best trained schedule.

    python -m benchmarks.planner.regret --number 30 [--seed 0] [--seeds 6] [--thorough]

A job is drawn from (seed, number): the cluster's shape, links, speeds and jitter, how data are spread, and a task, one
of the five kinds of networks under SGD, momentum or Adam at All-Reduce's best rate. The planner is asked without a
pilot and knows the optimizer, as a user would, not the network. Trained in one process, at that rate and with the same
seeds, are its recommendation; that in synchronous alone, and without outer steps; what is fastest at the prices of the
job's own network, and of each of the optimizer's tasks, with and without delay; and All-Reduce in every step. A true
time is trained steps times the planner's seconds of a step. A rival that takes half as long again as the recommendation
with the first seeds is not trained with the others. Outer steps train at the share of the rate that they are
recommended with; kinds that run by a protocol are not trained here.

The least of several measured times is too small by their noise. So the best is chosen by one half of the seeds and
compared on the other half (`fair`, both ways round, the geometric mean), and the regret that this best itself has
there is the noise (`floor`): a planner that knew everything but the draws of the other half would have it. Of every
two options that were trained the ratio of their times is compared with the interval that the planner states for it.

Writes benchmarks/results/regret.json after every job, and regret.md. Steps that stand in regret.json are not trained
again: to judge a changed rule takes minutes.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector

from benchmarks import kit
from benchmarks.lab.tasks import Samples, evaluation_samples, samples_of
from benchmarks.planner.training import by_schedule, by_turns, steps_to
from partreduce import PlanRequest
from partreduce.planner.calibration import trained_sha256
from partreduce.planner.job import EFFORTS, Data
from partreduce.planner.plan import plan
from partreduce.planner.recommend import allowed_options, gain, is_outer, recommend, simplest
from partreduce.planner.steps_model import TASKS, Optimizer
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from partreduce.types import CandidateSchedule


BATCH = 16
LETTERS_SEEN, WORDS, EVALUATED = 8, 2048, 1024


class Recurrent(nn.Module):
    """Elman's network, which reads one letter after another."""

    def __init__(self, letters: int, hidden: int = 48) -> None:
        super().__init__()
        self.embedding, self.into = nn.Embedding(letters, 12), nn.Linear(12, hidden)
        self.again, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, letters)
        self.hidden = hidden

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Return scores of the next letter, (batch, letters), from letters (batch, length)."""
        inputs, state = self.into(self.embedding(places)), torch.zeros(self.hidden)
        for step in inputs.unbind(1):
            state = torch.tanh(step + self.again(state))
        return self.out(state)


class Bag(nn.Module):
    """The mean of a paragraph's words, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = (
            nn.Embedding(WORDS, 12),
            nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2)),
        )

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Return scores of both packages, (batch, 2), from places of words (batch, most); 0 is none."""
        present = (places > 0).float()[..., None]
        return self.layers((self.embedding(places % WORDS) * present).sum(1) / present.sum(1).sqrt())


class Convolution(nn.Module):
    """Two layers of 3x3 patches with a pool between them, as matrix products, which are fastest under vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(9, 8), nn.Linear(72, 12), nn.Linear(192, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores, (batch, 10), of images (batch, 1, 8, 8)."""
        seen = self.first(_patches(images)).relu().unflatten(1, (4, 2)).unflatten(3, (4, 2)).amax((2, 4))
        return self.out(self.second(_patches(seen.movedim(3, 1))).relu().flatten(1))


def _patches(images: torch.Tensor) -> torch.Tensor:
    """Return (batch, rows, columns, 9 * channels) of images (batch, channels, rows, columns), zero outside."""
    rows, columns = images.shape[2:]
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    shifted = [padded[:, :, i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return torch.cat(shifted, dim=1).movedim(1, 3)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _text(letters: int) -> nn.Module:
    layers = [nn.Embedding(letters, 12), nn.Flatten(), nn.Linear(12 * LETTERS_SEEN, 96), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(96, letters))


KINDS: dict[str, tuple[str, Callable[[int], nn.Module]]] = {
    "convolution": ("digits", lambda _: Convolution()),
    "perceptron": ("digits", lambda _: _perceptron()),
    "recurrent": ("text", Recurrent),
    "text": ("text", _text),
    "embedding": ("svm", lambda _: Bag()),
}
"""By kind of network, the lab's task with its samples, and a function of the number of letters that makes it."""


class Network:
    """All workers' models of one kind, shape (workers, parameters), trained as in a rehearsal of the lab."""

    def __init__(
        self, kind: str, cluster: Cluster, *, rate: float, optimizer: str = "sgd", seed: int = 0, shuffled: bool = True
    ) -> None:
        self.rate, self.count, self._samples = rate, cluster.num_workers, _samples(kind)
        self._rng, self._change = np.random.default_rng(seed), Change(optimizer, rate)
        torch.manual_seed(seed)
        self._module = KINDS[kind][1](int(self._samples.inputs.max()) + 1)
        self._shapes = {name: part.shape for name, part in self._module.named_parameters()}
        self.named = [(name, shape.numel()) for name, shape in self._shapes.items()]
        self.models = parameters_to_vector(self._module.parameters()).detach().repeat(self.count, 1)
        self._own = self._shards(shuffled=shuffled)
        self._evaluated = evaluation_samples(self._samples, EVALUATED)
        self._of_all = vmap(grad(self._loss))

    def _shards(self, *, shuffled: bool) -> list[npt.NDArray[np.int64]]:
        """Return the sample indices of every worker: dealt at random, or sorted by label over workers."""
        labels = self._samples.labels.numpy()
        order = self._rng.permutation(len(labels)) if shuffled else np.argsort(labels, kind="stable")
        return np.array_split(order, self.count)

    def _loss(self, at: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        parts = at.split([size for _, size in self.named])
        named = {name: part.view(shape) for part, (name, shape) in zip(parts, self._shapes.items(), strict=True)}
        return nn.functional.cross_entropy(functional_call(self._module, named, (inputs,)), labels)

    def gradients(self) -> torch.Tensor:
        """Return each worker's next gradient, at its own model."""
        picks = torch.from_numpy(np.stack([own[self._rng.integers(0, len(own), BATCH)] for own in self._own]))
        return self._of_all(self.models, self._samples.inputs[picks], self._samples.labels[picks])

    def take(self, counts: Sequence[int]) -> None:
        """Let every worker with a count above 0 take a step by itself."""
        self.models -= self._change.of(self.gradients(), torch.tensor(counts)[:, None] > 0)

    def together(self, lag: int = 0) -> Callable[[int], None]:
        """Return a function that takes steps of All-Reduce of gradients, which are `lag` steps late."""
        on_their_way: deque[torch.Tensor] = deque()

        def advance(_: int) -> None:
            on_their_way.append(self.gradients().mean(0))
            if len(on_their_way) > lag:
                self.models -= self._change.of(on_their_way.popleft())

        return advance

    def loss(self, model: torch.Tensor) -> float:
        with torch.no_grad():
            return float(self._loss(model, self._evaluated.inputs, self._evaluated.labels))


class Change:
    """The optimizer by torch's formulas: plain SGD, momentum of 0.9, or Adam; a row for each worker."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self.rate = name, rate
        self._steps, self._first, self._second = torch.zeros(3)

    def of(self, gradients: torch.Tensor, mine: torch.Tensor | None = None) -> torch.Tensor:
        """Return what to subtract from the models, shape of the gradients; zero for workers not in the mask `mine`."""
        mine = torch.tensor(data=True) if mine is None else mine
        self._steps = self._steps + mine.float()
        decay = 0.9 if self.name != "sgd" else 0.0
        gained = 0.1 if self.name == "adam" else 1.0
        self._first = torch.where(mine, decay * self._first + gained * gradients, self._first)
        if self.name != "adam":
            return torch.where(mine, self.rate * self._first, 0.0)
        self._second = torch.where(mine, 0.999 * self._second + 0.001 * gradients**2, self._second)
        size = (self._second / (1 - 0.999**self._steps)).sqrt() + 1e-8
        return torch.where(mine, self.rate / (1 - 0.9**self._steps) * self._first / size, 0.0)


@cache
def _samples(kind: str) -> Samples:
    data = KINDS[kind][0]
    stored = samples_of(data)
    inputs = stored.inputs[:, -LETTERS_SEEN:] if data == "text" else stored.inputs
    return Samples(inputs if inputs.is_floating_point() else inputs.int(), stored.labels)


SHAPES = ("2x4", "4x2", "1x8", "8x1", "3x3")
SEEDS, DIVERGED = 6, 5.0
"""Seeds, of which each half chooses the best for the other; the steps ratio if the loss is not reached."""
FIRST, BEHIND = 2, 1.5
"""A rival that takes `BEHIND` times as long as the recommendation with the `FIRST` seeds is not trained further."""
ASKED = ("not told", "simple", "thorough", "own prices")
"""Other answers that are compared with the recommendation."""
KEPT = ("median", "90th percentile", "worst")
Row = dict[str, Any]


def tasks() -> dict[str, tuple[float, float]]:
    """Return the best rate and the target loss of each calibrated task."""
    rows = json.loads((kit.RESULTS / "steps_to_loss_lateness.json").read_text())["rows"]
    return {row["task"]: (row["rate"], row["target"]) for row in rows}


def draw(seed: int, number: int) -> tuple[PlanRequest, str]:
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
    about = {"data": data, "optimizer": Optimizer(task.partition("/")[2]), "effort": EFFORTS["quick"]}
    return PlanRequest(cluster=replace(cluster, hardware=hardware), gap=False, quorum=False, **about), task


def able(options: Sequence[CandidateSchedule], job: PlanRequest) -> list[CandidateSchedule]:
    """Return the candidates that can be trained here: without protocols, outer steps included."""
    return [
        one for one in allowed_options(options, job) if np.isfinite(one.time) and (one.facts is None or is_outer(one))
    ]


def label(option: CandidateSchedule) -> str:
    """Return a candidate's key: its name, with the rate for outer steps."""
    share = option.facts.rate if option.facts else 1.0
    return option.name if share == 1 else f"{option.name} at {share:g} of the rate"


def rivals(options: Sequence[CandidateSchedule], job: PlanRequest) -> Iterator[CandidateSchedule]:
    """Yield the candidates that may be best on some of the optimizer's tasks."""
    usual = job.steps_model
    for some in (options, [one for one in options if not one.late]):
        yield min(some, key=lambda one: one.time)
        for case in usual.cases:
            yield min(some, key=lambda one: one.time_in(case, usual, delay=True))
    yield min(
        (one for one in options if one.is_plain and one.steps_per_round == 1 and not one.late), key=lambda one: one.time
    )


class Trainer:
    """Trains schedules on a job's task; `known` holds the steps of each task, spread of data, schedule and seed."""

    def __init__(self, task: str, mode: str, everyone: Schedule, known: dict[str, float], seeds: int) -> None:
        self.task, self.mode, self.known, self.most, self.seeds = task, mode, known, 600, seeds
        self.base = self.steps(everyone, seeds)
        self.most = int(DIVERGED * np.mean(self.base))

    def steps(self, schedule: Schedule, seeds: int, share: float = 1.0) -> list[float]:
        """Return the steps of each seed at a share of the rate; the most allowed if the loss is not reached."""
        found = []
        for seed in range(seeds):
            key = f"{self.task} {self.mode} {trained_sha256(schedule)[:12]} {seed}" + (
                f" {share:g}" if share != 1 else ""
            )
            if key not in self.known:
                self.known[key] = self._trained(schedule, seed, share) or float(self.most)
            found.append(self.known[key])
        return found

    def _trained(self, schedule: Schedule, seed: int, share: float) -> float | None:
        """Return the steps to the loss; None if it is not reached."""
        (rate, target), (kind, _, optimizer) = tasks()[self.task], self.task.partition("/")
        given: dict[str, Any] = {"rate": share * rate, "optimizer": optimizer, "seed": seed}
        network = Network(kind, schedule.cluster, shuffled=self.mode == "shuffled", **given)
        strategy = schedule.strategy
        if strategy.takes_turns or not strategy.payload.outer.is_plain:
            advance = by_turns(network, schedule)
        elif strategy.averages_gradients:
            advance = network.together(strategy.sync.lag)
        else:
            advance = by_schedule(network, schedule)
        return steps_to(target, network, advance, self.most)

    def seconds(self, option: CandidateSchedule, seeds: int | None = None) -> list[float]:
        """Return each seed's predicted seconds to the loss."""
        share = option.facts.rate if option.facts else 1.0
        found = self.steps(option.schedule, seeds or self.seeds, share)
        return [round(steps * option.step_seconds, 4) for steps in found]


def in_intervals(options: Sequence[CandidateSchedule], seconds: dict[str, list[float]], job: PlanRequest) -> list[bool]:
    """Return for every two options whether the measured ratio of their times is in the stated interval."""
    found = []
    for one, other in combinations(options, 2):
        predicted, ratio = gain(one, other, job.data), np.mean(seconds[label(other)]) / np.mean(seconds[label(one)])
        found.append(bool(predicted.low <= ratio <= predicted.high))
    return found


def judge(seed: int, number: int, known: dict[str, float], seeds: int = SEEDS, *, thorough: bool = False) -> Row:
    """Return a job's row, with the seconds of every option that was trained with every seed."""
    job, task = draw(seed, number)
    mode = "shuffled" if job.data is Data.SHUFFLED else "per-worker"
    options = able(plan(job).options, job)
    own = replace(job.steps_model, tasks=(TASKS[job.optimizer or Optimizer.SGD][task.partition("/")[0]],)).cases[0]
    assumed = replace(job, optimizer=Optimizer.ADAM)
    request = {
        "recommended": recommend(options, job),
        "not told": recommend(options if assumed == job else able(plan(assumed).options, assumed), assumed),
        "simple": simplest(options, job) or options[0],
        "synchronous": recommend([one for one in options if not one.late], job),
        "no outer": recommend([one for one in options if not is_outer(one)], job),
        "own prices": min(options, key=lambda one: one.time_in(own, job.steps_model, delay=True)),
    }
    if thorough:
        searching = replace(job, effort=EFFORTS["thorough"])
        request["thorough"] = recommend(able(plan(searching).options, searching), searching)
    chosen = request["recommended"]
    trainer = Trainer(task, mode, build("allreduce", job.cluster.shape()), known, seeds)
    seconds = {label(option): trainer.seconds(option) for option in request.values()}
    hopeless = BEHIND * sum(seconds[label(chosen)][:FIRST])
    for option in rivals(options, job):
        if label(option) not in seconds and sum(trainer.seconds(option, min(FIRST, seeds))) <= hopeless:
            seconds[label(option)] = trainer.seconds(option)
    pairs = in_intervals([one for one in options if label(one) in seconds], seconds, job)
    ratio = float(np.mean(seconds[label(chosen)]) / chosen.step_seconds / np.mean(trainer.base))
    return {
        "number": number,
        "cluster": str(job.cluster),
        "task": task,
        "data": mode,
        **{words: label(option) for words, option in request.items()},
        "reached": ratio < 0.99 * DIVERGED,
        "pairs": len(pairs),
        "covered": sum(pairs),
        "seconds": seconds,
    }


def ratios(row: Row) -> dict[str, float]:
    """Return a row's ratios, over the least mean time of the trained options, and over the best by other seeds."""
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
        **{words: mean[row[words]] / mean[best] for words in ASKED if words in row},
        "with late": mean[chosen] / mean[row["synchronous"]],
        **({"with outer": mean[chosen] / mean[row["no outer"]]} if "no outer" in row else {}),
    }


def page(rows: Sequence[Row]) -> str:
    cells, words = [], ("regret", "fair", *ASKED)
    for row in rows:
        taken = {name: float(np.mean(found)) for name, found in row["seconds"].items()}
        best, found = min(taken, key=lambda name: taken[name]), ratios(row)
        predicted = [f"{found[name]:.2f}" if name in found else "" for name in words]
        cells.append([row[c] for c in ("number", "cluster", "task", "data", "recommended")] + [best, *predicted])
    return kit.table(("number", "cluster", "task", "data", "recommended", "best", *words), cells)


def summary(rows: Sequence[Row]) -> str:
    found = [ratios(row) for row in rows]
    cells = []
    for name in {name: None for one in found for name in one}:
        values = [one[name] for one in found if name in one]
        three = np.median(values), np.quantile(values, 0.9), max(values)
        cells.append([name, len(values), *(f"{value:.3f}" for value in three)])
    missed = [row["number"] for row in rows if not row["reached"]]
    held, pairs = (sum(row[key] for row in rows) for key in ("covered", "pairs"))
    return (
        f"{kit.table(('', 'jobs', *KEPT), cells)}\nRecommendations that did not reach their loss: {missed or 'none'}. "
        f"The stated intervals hold {held} of {pairs} ratios of two times."
    )


def main() -> None:
    arguments = kit.parser(__doc__)
    arguments.add_argument("--number", type=int, default=30)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--seeds", type=int, default=SEEDS)
    arguments.add_argument("--thorough", action="store_true")
    arguments.add_argument("--output", type=Path, default=kit.RESULTS / "regret.json")
    chosen = arguments.parse_args()
    kit.one_thread()
    known: dict[str, float] = json.loads(chosen.output.read_text())["steps"] if chosen.output.exists() else {}
    rows: list[Row] = []
    for number in range(chosen.number):
        rows.append(judge(chosen.seed, number, known, chosen.seeds, thorough=chosen.thorough))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        chosen.output.write_text(kit.compact({"rows": rows, "steps": known}))
    about = f"`{kit.command('planner.regret')}`; no pilot, {chosen.seeds} seeds, commit {kit.commit()}."
    kit.write(chosen.output, "Regret on random jobs", about, summary(rows), page(rows))


if __name__ == "__main__":
    main()
