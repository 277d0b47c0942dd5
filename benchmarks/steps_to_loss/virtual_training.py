"""Trains n virtual workers in lockstep on scikit-learn's digits, all in NumPy: what a schedule costs in *steps*.

One array axis is the worker, so 16 workers cost little more than one. Nothing here knows about time: a step of the
schedule is one gradient step of every worker followed by the averaging of that step (pace counts steps of a round).
An overlapped schedule averages what the round began with: x ← Wx + what the round's steps added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.mixing import mixing_matrix

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce.topo.schedule import Schedule

HIDDEN = 64
BATCH = 16


@dataclass(frozen=True)
class Data:
    """Pixels scaled to 0..1 and one-hot labels of the training part."""

    pixels: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]


def load_digits() -> Data:
    from sklearn.datasets import load_digits as load

    bunch = load()
    order = np.random.default_rng(0).permutation(len(bunch.target))[:1500]
    return Data(bunch.data[order] / 16.0, bunch.target[order])


def shards(data: Data, schedule: Schedule, mode: str, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """The sample indices of every worker: `shuffled`, `per-worker` or `per-node` (sorted by label)."""
    n, count = schedule.num_workers, len(data.labels)
    if mode == "shuffled":
        return np.array_split(rng.permutation(count), n)
    by_label = np.argsort(data.labels, kind="stable")
    if mode == "per-worker":
        return np.array_split(by_label, n)
    result: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * n
    for node, part in enumerate(np.array_split(by_label, schedule.cluster.num_nodes)):
        workers = schedule.cluster.workers_of(node)
        for worker, shard in zip(workers, np.array_split(rng.permutation(part), len(workers)), strict=True):
            result[worker] = shard
    return result


def steps_to_loss(
    schedule: Schedule, data: Data, mode: str, *, seed: int, rate: float = 0.4, target: float = 0.15, most: int = 3000
) -> int | None:
    """Steps until the mean model's training loss is below `target`, checked every 5 steps; None if `most` is passed."""
    rng = np.random.default_rng(seed)
    own = shards(data, schedule, mode, rng)
    n = schedule.num_workers
    one = [
        rng.normal(0, 64**-0.5, (64, HIDDEN)),
        np.zeros(HIDDEN),
        rng.normal(0, HIDDEN**-0.5, (HIDDEN, 10)),
        np.zeros(10),
    ]
    weights = [np.repeat(part[None], n, axis=0) for part in one]
    mixing = [mixing_matrix(schedule.phase(t)) for t in range(schedule.period)]
    averages_gradients = schedule.strategy.averages_gradients
    paces = schedule.paces()
    if len(set(paces.tolist())) != 1:
        raise ValueError("the sweep is for one pace")
    pace = int(paces[0])
    began = weights
    for step in range(most):
        picks = np.stack([shard[rng.integers(0, len(shard), BATCH)] for shard in own])
        gradients = gradients_of(weights, data.pixels[picks], data.labels[picks])
        if averages_gradients:
            gradients = [np.broadcast_to(g.mean(axis=0), g.shape) for g in gradients]
        weights = [part - rate * gradient for part, gradient in zip(weights, gradients, strict=True)]
        if not averages_gradients and (step + 1) % pace == 0:
            w = mixing[(step // pace) % schedule.period]
            if schedule.strategy.overlap:
                change = w - np.eye(n)
                weights = [x + np.tensordot(change, b, axes=(1, 0)) for x, b in zip(weights, began, strict=True)]
            else:
                weights = [np.tensordot(w, part, axes=(1, 0)) for part in weights]
            began = weights
        if (step + 1) % 5 == 0 and loss_of([part.mean(axis=0) for part in weights], data) < target:
            return step + 1
    return None


def gradients_of(
    weights: list[npt.NDArray[np.float64]], pixels: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.float64]]:
    w1, b1, w2, b2 = weights
    hidden = np.maximum(pixels @ w1 + b1[:, None], 0)
    logits = hidden @ w2 + b2[:, None]
    logits -= logits.max(axis=-1, keepdims=True)
    error = np.exp(logits)
    error /= error.sum(axis=-1, keepdims=True)
    np.put_along_axis(error, labels[..., None], np.take_along_axis(error, labels[..., None], -1) - 1, -1)
    error /= pixels.shape[1]
    back = (error @ w2.swapaxes(1, 2)) * (hidden > 0)
    return [pixels.swapaxes(1, 2) @ back, back.sum(axis=1), hidden.swapaxes(1, 2) @ error, error.sum(axis=1)]


def loss_of(model: list[npt.NDArray[np.float64]], data: Data) -> float:
    w1, b1, w2, b2 = model
    logits = np.maximum(data.pixels @ w1 + b1, 0) @ w2 + b2
    top = logits.max(axis=1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    return float((log_sum - logits[np.arange(len(logits)), data.labels]).mean())
