"""The planner's task: scikit-learn's digits by one hidden layer, sixteen workers for little more than one.

It is trained as a rehearsal of the lab is (`benchmarks.lab.rehearse`), without a clock, on data dealt in three ways.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from partreduce.topo.cluster import Cluster

    Ints = npt.NDArray[np.int64]

MODES = ("shuffled", "per-worker", "per-node")
"""How samples are dealt: at random, or sorted by label over workers, or over nodes."""
HIDDEN, BATCH = 64, 16
SHAPES = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
LENGTHS = [int(np.prod(shape)) for shape in SHAPES]


class Perceptron:
    """All workers' models, shape (workers, parameters)."""

    def __init__(self, cluster: Cluster, mode: str, rate: float, seed: int) -> None:
        self.pixels, self.labels = _digits()
        self.rate, self.count = rate, cluster.num_workers
        self._rng = np.random.default_rng(seed)
        self._own = shards(self.labels.numpy(), cluster, mode, self._rng)
        drawn = [
            self._rng.normal(0, shape[0] ** -0.5, shape) if len(shape) > 1 else np.zeros(shape) for shape in SHAPES
        ]
        start = torch.from_numpy(np.concatenate([part.ravel() for part in drawn]).astype(np.float32))
        self.models = start.repeat(self.count, 1)

    def take(self, counts: Sequence[int]) -> None:
        """A step of every worker by itself: schedules here have one pace."""
        assert set(counts) == {1}, "all workers have one pace"
        picks = np.stack([own[self._rng.integers(0, len(own), BATCH)] for own in self._own])  # (workers, batch)
        models = self.models.detach().requires_grad_()
        logits = _logits(models, self.pixels[picks])
        loss = cross_entropy(logits.flatten(0, 1), self.labels[picks].flatten(), reduction="sum") / BATCH
        self.models -= self.rate * torch.autograd.grad(loss, models)[0]

    def loss(self, model: torch.Tensor) -> float:
        """Over all samples."""
        return float(cross_entropy(_logits(model[None], self.pixels[None])[0], self.labels))


def _logits(models: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Of each worker's samples, shape (workers, samples, 64), by its own model."""
    parts = models.split(LENGTHS, dim=1)
    w1, b1, w2, b2 = (part.view(len(models), *shape) for part, shape in zip(parts, SHAPES, strict=True))
    return torch.baddbmm(b2[:, None], torch.baddbmm(b1[:, None], pixels, w1).relu(), w2)


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels scaled to 0..1 and labels of the training part."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))[:1500]
    return torch.from_numpy(bunch.data[order] / 16.0).float(), torch.from_numpy(bunch.target[order])


def shards(labels: Ints, cluster: Cluster, mode: str, rng: np.random.Generator) -> list[Ints]:
    """The sample indices of every worker."""
    n, count = cluster.num_workers, len(labels)
    if mode == "shuffled":
        return np.array_split(rng.permutation(count), n)
    by_label = np.argsort(labels, kind="stable")
    if mode == "per-worker":
        return np.array_split(by_label, n)
    result: list[Ints] = [np.empty(0, dtype=np.int64)] * n
    for node, part in enumerate(np.array_split(by_label, cluster.num_nodes)):
        workers = cluster.workers_of(node)
        for worker, shard in zip(workers, np.array_split(rng.permutation(part), len(workers)), strict=True):
            result[worker] = shard
    return result
