"""A learner: all workers of a long run in one process, with a falling rate, and what they tell right in the end."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi

import numpy as np
import torch

from benchmarks.steps_to_loss.networks import BATCH, Network
from partreduce.topo.cluster import Cluster


class Learner(Network):
    """As the planner's small networks, under plain SGD; the rate falls from `highest` to nothing along half a cosine.

    `done` is how many of the `most` steps each worker has taken, on average; whoever advances it says so.
    """

    def __init__(self, *, kind: str, held_out: int, cluster: Cluster, highest: float, most: int, seed: int) -> None:
        self.highest, self.most, self.done = highest, most, 0.0
        super().__init__(kind, cluster, rate=highest, seed=seed, held_out=held_out)
        self._draws = [np.random.default_rng((seed, rank)) for rank in range(self.count)]

    @property
    def rate(self) -> float:
        """The rate of now."""
        return self.highest * (1 + cos(pi * min(1.0, self.done / self.most))) / 2

    @rate.setter
    def rate(self, highest: float) -> None:
        self.highest = highest

    @property
    def inputs(self) -> torch.Tensor:
        """What is trained with, (samples, …)."""
        return self._samples.inputs

    def gradient(self, rank: int, at: torch.Tensor) -> torch.Tensor:
        """A worker's next gradient, at any parameters."""
        picks = self._picks(rank)
        return self._slope(at, self._samples.inputs[picks], self._samples.labels[picks])

    def slope(self, at: torch.Tensor) -> torch.Tensor:
        """The gradient of the loss over all that is trained with."""
        return self._slope(at, self._samples.inputs, self._samples.labels)

    def _slope(self, at: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            model = at.detach().requires_grad_()
            return torch.autograd.grad(self._loss(model, inputs, labels), model)[0]

    def gradients(self) -> torch.Tensor:
        """Each worker's next one, at its own model."""
        picks = torch.stack([self._picks(rank) for rank in range(self.count)])
        return self._of_all(self.models, self._samples.inputs[picks], self._samples.labels[picks])

    def step(self, rank: int) -> None:
        self.models[rank] -= self.rate * self.gradient(rank, self.models[rank])

    def take(self, counts: Sequence[int]) -> None:
        """A step of each worker by itself."""
        assert set(counts) == {1}, "schedules of long runs have one number of steps per round"
        self.models -= self.rate * self.gradients()

    def held_out(self, model: torch.Tensor) -> tuple[float, float]:
        """Loss, and share told right, of samples that nobody trained with."""
        inputs, labels = self._held_out.inputs, self._held_out.labels
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(model, self._module.parameters())
            scores = self._module(inputs)
            loss = torch.nn.functional.cross_entropy(scores, labels)
            return float(loss), float((scores.argmax(1) == labels).float().mean())

    def _picks(self, rank: int) -> torch.Tensor:
        own = self._own[rank]
        return torch.from_numpy(own[self._draws[rank].integers(0, len(own), BATCH)])
