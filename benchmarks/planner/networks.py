"""Small networks of different kinds, and three optimizers, for sixteen workers in one process.

What they learn is the lab's: digits by convolution or by two plain layers, the next letter of English text from the
letters before it at once or one after another, and whose documentation a paragraph comes from by an embedding of its
words. All are small, so that a step of all workers takes milliseconds.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector

from benchmarks.lab.tasks import Samples, evaluated, samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from partreduce.topo.cluster import Cluster

BATCH = 16
LETTERS_SEEN, WORDS, EVALUATED = 8, 2048, 1024


class Recurrent(nn.Module):
    """Elman's network: one letter after another."""

    def __init__(self, letters: int, hidden: int = 48) -> None:
        super().__init__()
        self.embedding, self.into = nn.Embedding(letters, 12), nn.Linear(12, hidden)
        self.again, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, letters)
        self.hidden = hidden

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Scores of the next letter, (batch, letters), from places (batch, length)."""
        said, state = self.into(self.embedding(places)), torch.zeros(self.hidden)
        for step in said.unbind(1):
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
        """Scores of both packages, (batch, 2), from places of words (batch, most); 0 is none."""
        present = (places > 0).float()[..., None]
        return self.layers((self.embedding(places % WORDS) * present).sum(1) / present.sum(1).sqrt())


class Convolution(nn.Module):
    """Two layers of 3x3 patches with a pool between them, as products: for each worker's own that is the fastest."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(9, 8), nn.Linear(72, 12), nn.Linear(192, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores, (batch, 10), of images (batch, 1, 8, 8)."""
        seen = self.first(_patches(images)).relu().unflatten(1, (4, 2)).unflatten(3, (4, 2)).amax((2, 4))
        return self.out(self.second(_patches(seen.movedim(3, 1))).relu().flatten(1))


def _patches(images: torch.Tensor) -> torch.Tensor:
    """(batch, rows, columns, 9 * channels) of images (batch, channels, rows, columns), zero outside."""
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
"""The lab's task whose samples it learns, and the network by the number of letters, if it reads letters."""


class Network:
    """All workers' models of one kind, (workers, parameters), trained as a rehearsal of the lab is."""

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
        self._evaluated = evaluated(self._samples, EVALUATED)
        self._of_all = vmap(grad(self._loss))

    def _shards(self, *, shuffled: bool) -> list[npt.NDArray[np.int64]]:
        """The sample indices of every worker: dealt at random, or sorted by label over workers."""
        labels = self._samples.labels.numpy()
        order = self._rng.permutation(len(labels)) if shuffled else np.argsort(labels, kind="stable")
        return np.array_split(order, self.count)

    def _loss(self, at: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        parts = at.split([size for _, size in self.named])
        named = {name: part.view(shape) for part, (name, shape) in zip(parts, self._shapes.items(), strict=True)}
        return nn.functional.cross_entropy(functional_call(self._module, named, (inputs,)), labels)

    def gradients(self) -> torch.Tensor:
        """Each worker's next one, at its own model."""
        picks = torch.from_numpy(np.stack([own[self._rng.integers(0, len(own), BATCH)] for own in self._own]))
        return self._of_all(self.models, self._samples.inputs[picks], self._samples.labels[picks])

    def take(self, counts: Sequence[int]) -> None:
        """A step of each worker by itself, but for those who take none at this instant."""
        self.models -= self._change.of(self.gradients(), torch.tensor(counts)[:, None] > 0)

    def together(self, lag: int = 0) -> Callable[[int], None]:
        """The steps of All-Reduce of gradients, which come `lag` steps late."""
        on_their_way: deque[torch.Tensor] = deque()

        def advance(_: int) -> None:
            on_their_way.append(self.gradients().mean(0))
            if len(on_their_way) > lag:
                self.models -= self._change.of(on_their_way.popleft())

        return advance

    def loss(self, model: torch.Tensor) -> float:
        """Over the samples that count."""
        with torch.no_grad():
            return float(self._loss(model, self._evaluated.inputs, self._evaluated.labels))


class Change:
    """What an optimizer subtracts, by torch's formulas: plain SGD, momentum of 0.9, or Adam; a row for each worker."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self.rate = name, rate
        self._steps, self._first, self._second = torch.zeros(3)

    def of(self, gradients: torch.Tensor, mine: torch.Tensor | None = None) -> torch.Tensor:
        """One step, of the shape of the gradients, of those whose step it is; nothing of the others."""
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
