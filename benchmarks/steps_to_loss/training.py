"""Sixteen workers in one process, without a clock: what a schedule costs in *steps*. The definition, nothing shared.

A task is a network of one array of parameters; an axis in front of it is the worker. Nothing here knows about time: a
step of the schedule is one gradient step of every worker and the averaging of that step (pace counts steps of a round).
What is late is applied as the run-time applies it: x ← Wx + what the round's steps added, and gradients of a pipeline
some steps after they were taken. Codecs round means of gradients, and of what parameters are off the last mean of all.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.lab.rehearse import Rehearsal
from benchmarks.lab.tasks import read_data, write_data
from benchmarks.steps_to_loss.coding import coded_mean
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.strategies import Codec, Pipeline

if TYPE_CHECKING:
    from benchmarks.lab.tasks import Samples
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule

Floats = npt.NDArray[np.float32]
MODES = ("shuffled", "per-worker", "per-node")
"""How samples are dealt: at random, or sorted by label over workers, or over nodes."""
HIDDEN, BATCH = 64, 16
SHAPES = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
CUTS = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]


class Task(Protocol):
    """A network, and everybody's samples."""

    def start(self) -> Floats:
        """The parameters that every worker begins with, shape (count,)."""

    def gradients(self, models: Floats) -> Floats:
        """Each worker's next gradient at its own model, shape (workers, count)."""

    def loss(self, at: Floats) -> float:
        """Over all samples that count."""

    def slope(self, at: Floats) -> Floats:
        """The gradient of that loss."""


class Perceptron:
    """The planner's task: scikit-learn's digits by one hidden layer, 16 workers for little more than one."""

    def __init__(self, cluster: Cluster, mode: str, seed: int) -> None:
        self.pixels, self.labels = _digits()
        self.rng = np.random.default_rng(seed)
        self._own = shards(self.labels, cluster, mode, self.rng)

    def start(self) -> Floats:
        parts = [self.rng.normal(0, shape[0] ** -0.5, shape) if len(shape) > 1 else np.zeros(shape) for shape in SHAPES]
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    def gradients(self, models: Floats, workers: slice = slice(None)) -> Floats:
        picks = np.stack([own[self.rng.integers(0, len(own), BATCH)] for own in self._own[workers]])
        return self._gradients(models, picks)

    def _gradients(self, models: Floats, picks: npt.NDArray[np.int64]) -> Floats:
        pixels, labels = self.pixels[picks], self.labels[picks]
        w1, b1, w2, b2 = _parts(models)
        hidden = np.maximum(pixels @ w1 + b1[:, None], 0)
        logits = hidden @ w2 + b2[:, None]
        error = np.exp(logits - logits.max(axis=-1, keepdims=True))
        error /= error.sum(axis=-1, keepdims=True)
        np.put_along_axis(error, labels[..., None], np.take_along_axis(error, labels[..., None], -1) - 1, -1)
        error /= pixels.shape[1]
        back = (error @ w2.swapaxes(1, 2)) * (hidden > 0)
        found = [pixels.swapaxes(1, 2) @ back, back.sum(axis=1), hidden.swapaxes(1, 2) @ error, error.sum(axis=1)]
        return np.concatenate([part.reshape(len(models), -1) for part in found], axis=1)

    def loss(self, at: Floats) -> float:
        w1, b1, w2, b2 = (part[0] for part in _parts(at[None]))
        logits = np.maximum(self.pixels @ w1 + b1, 0) @ w2 + b2
        top = logits.max(axis=1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
        return float((log_sum - logits[np.arange(len(logits)), self.labels]).mean())

    def slope(self, at: Floats) -> Floats:
        return self._gradients(at[None], np.arange(len(self.labels))[None])[0]


def _parts(models: Floats) -> list[Floats]:
    pieces = np.split(models, CUTS, axis=1)
    return [part.reshape(len(models), *shape) for part, shape in zip(pieces, SHAPES, strict=True)]


@cache
def _digits() -> tuple[Floats, npt.NDArray[np.int64]]:
    """Pixels scaled to 0..1 and labels of the training part."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))[:1500]
    return (bunch.data[order] / 16.0).astype(np.float32), bunch.target[order]


def shards(
    labels: npt.NDArray[np.int64], cluster: Cluster, mode: str, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """The sample indices of every worker."""
    n, count = cluster.num_workers, len(labels)
    if mode == "shuffled":
        return np.array_split(rng.permutation(count), n)
    by_label = np.argsort(labels, kind="stable")
    if mode == "per-worker":
        return np.array_split(by_label, n)
    result: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * n
    for node, part in enumerate(np.array_split(by_label, cluster.num_nodes)):
        workers = cluster.workers_of(node)
        for worker, shard in zip(workers, np.array_split(rng.permutation(part), len(workers)), strict=True):
            result[worker] = shard
    return result


class Lab:
    """One of the lab's networks, on shuffled data."""

    def __init__(self, task: str, cluster: Cluster, seed: int) -> None:
        samples = samples_of(task)
        self._rehearsal = Rehearsal(samples, task=task, data="shuffled", cluster=cluster, rate=0.0, seed=seed)

    def start(self) -> Floats:
        return np.asarray(self._rehearsal.models[0].numpy().copy())

    def gradients(self, models: Floats) -> Floats:
        found = [self._rehearsal.gradient(rank, torch.from_numpy(model)) for rank, model in enumerate(models)]
        return np.asarray(torch.stack(found).numpy())

    def loss(self, at: Floats) -> float:
        return self._rehearsal.loss(torch.from_numpy(at))

    def slope(self, at: Floats) -> Floats:
        return np.asarray(self._rehearsal.slope(torch.from_numpy(at)).numpy())


@cache
def samples_of(task: str) -> Samples:
    with TemporaryDirectory() as folder:
        write_data(task, Path(folder) / "data.npz")
        return read_data(Path(folder) / "data.npz")


class Corrections:
    """The run-time's drift correction (runtime/strategies/drift_correction.py), for all workers at once; α = 0: none.

    Whenever all workers meet, `guarded` corrections shrink to what predicts the gradients there.
    """

    def __init__(self, alpha: float, shape: tuple[int, ...], *, guarded: bool) -> None:
        self.alpha, self.guarded, self.trust = alpha, guarded, 1.0
        self.values = np.zeros(shape, dtype=np.float32)
        self.agreement = self.size = 0.0

    def compare(self, gradients: Floats, fresh: npt.NDArray[np.bool_]) -> None:
        """`fresh`: who takes the first step after a mean."""
        if self.alpha and fresh.any():
            self.agreement += float(np.vdot(gradients[fresh], self.values[fresh]))
            self.size += float(np.vdot(self.values[fresh], self.values[fresh]))

    def all_met(self) -> None:
        if self.guarded and self.size > 0:
            kept = min(max(self.agreement / self.size, 0.0), 1.0)
            self.values *= np.float32(kept)
            self.trust = max(self.trust / 2, 1 / 64) if kept < 0.5 else min(self.trust * 1.2, 1.0)
        self.agreement = self.size = 0.0


class Rule:
    """What an optimizer subtracts, by torch's formulas: plain SGD, momentum of 0.9, or Adam; a row for each worker."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self.rate, self._steps = name, np.float32(rate), 0
        self._first = self._second = np.float32(0.0)

    def change(self, gradients: Floats) -> Floats:
        """One step, of the shape of the gradients."""
        self._steps += 1
        if self.name == "sgd":
            return self.rate * gradients
        if self.name == "momentum":
            self._first = np.float32(0.9) * self._first + gradients
            return self.rate * self._first
        self._first = np.float32(0.9) * self._first + np.float32(0.1) * gradients
        self._second = np.float32(0.999) * self._second + np.float32(0.001) * gradients**2
        size = np.sqrt(self._second / np.float32(1 - 0.999**self._steps)) + np.float32(1e-8)
        return self.rate / np.float32(1 - 0.9**self._steps) * self._first / size


class Workers:
    """All workers' models, (workers, count), and what a schedule does with their gradients."""

    def __init__(
        self,
        schedule: Schedule,
        task: Task,
        *,
        rate: float,
        alpha: float = 0.0,
        guarded: bool = True,
        optimizer: str = "sgd",
    ) -> None:
        self.schedule, self.task, self.rate = schedule, task, np.float32(rate)
        self._rule = Rule(optimizer, rate)
        paces = set(schedule.paces().tolist())
        if len(paces) != 1:
            raise ValueError("all workers are to have one pace")
        (self.pace,) = paces
        start = task.start()
        self.models = np.repeat(start[None], schedule.num_workers, axis=0)
        self.corrections = Corrections(alpha, self.models.shape, guarded=guarded)
        self._common, self._began = start.copy(), self.models.copy()
        self._since, self._late, self._done = np.zeros(len(self.models)), deque[Floats](), 0
        by_matrices = schedule.strategy.how.codec is Codec.NONE and not alpha
        self._mixing = [mixing_matrix(schedule.phase(t)).astype(np.float32) for t in range(schedule.period)]
        self._mixing = self._mixing if by_matrices else []

    def step(self) -> None:
        """One step of everybody."""
        strategy, corrections = self.schedule.strategy, self.corrections
        gradients = self.task.gradients(self.models)
        if strategy.averages_gradients:
            self._apply(coded_mean(gradients, strategy.how))
        else:
            corrections.compare(gradients, self._since == 0)
            self.models -= self._rule.change(gradients - corrections.values)
            self._since += self.rate
            if (self._done + 1) % self.pace == 0:
                self._average(self._done // self.pace % self.schedule.period)
        self._done += 1

    def _apply(self, mean: Floats) -> None:
        """Gradients in the order in which they come; in a pipeline the first of them are zero."""
        when = self.schedule.strategy.when
        if isinstance(when, Pipeline) and self._done >= when.warm_up:
            self._late.append(mean)
            mean = self._late.popleft() if len(self._late) > when.lag else np.zeros_like(mean)
        self.models -= self._rule.change(mean)

    def _average(self, phase: int) -> None:
        if self.schedule.strategy.mixes_late:
            self.models += self._mixing[phase] @ self._began - self._began
        elif self._mixing:
            self.models = self._mixing[phase] @ self.models
        else:
            self._by_groups(phase)
        self._began = self.models.copy()

    def _by_groups(self, phase: int) -> None:
        how, corrections, models = self.schedule.strategy.how, self.corrections, self.models
        for group in self.schedule.phase(phase):
            members = list(group.members)
            everybody = len(members) == len(models)
            if everybody:
                corrections.all_met()
            if how.codec is Codec.NONE:
                mean = models[members].mean(axis=0)
            else:
                mean = self._common + coded_mean(models[members] - self._common, how)
            change = mean - models[members]
            if corrections.alpha:
                strength = corrections.alpha * corrections.trust / self._since[members].mean()
                corrections.values[members] += np.float32(strength) * change
            models[members] += np.float32(group.relax) * change
            self._since[members] = 0
            if everybody:
                self._common = mean.copy()


def steps_to(target: float, workers: Workers, *, most: int, every: int = 5) -> float | None:
    """Steps until the mean model's loss, linear between two looks, falls to the target; None if it does not."""
    task = workers.task
    before = task.loss(workers.models.mean(axis=0))
    for step in range(1, most + 1):
        workers.step()
        if step % every:
            continue
        loss = task.loss(workers.models.mean(axis=0))
        if not np.isfinite(loss):
            return None
        if loss <= target:
            return round(step - every + every * (before - target) / (before - loss), 2)
        before = loss
    return None
