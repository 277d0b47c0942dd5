"""The tasks of the lab's workers: models, samples, and computing that takes a fixed time.

Digits by a convolutional network or by one of many equal layers, English text letter by letter, the package whose
documentation a paragraph (linear model) or docstring (recurrent model) comes from, or a plane. Gates between layers let
computing take a fixed time. Texts are those of the standard library and of this project's dependencies, whose versions
`constraints.txt` fixes.
"""

from __future__ import annotations

import ast
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.lab.setting import Job


class Clock:
    """The timetable of the running step."""

    def __init__(self) -> None:
        self._begun, self._seconds = 0.0, 0.0

    def begin(self, seconds: float) -> float:
        """Begin a step of so many seconds; return the present time."""
        self._begun, self._seconds = time.monotonic(), seconds
        return self._begun

    def until(self, share: float) -> None:
        """Sleep until this share of the step's time has passed."""
        if self._seconds:
            left = self._begun + share * self._seconds - time.monotonic()
            if left > 0:
                time.sleep(left)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, clock: Clock, forward: float, backward: float) -> torch.Tensor:
        ctx.clock, ctx.backward_share = clock, backward
        clock.until(forward)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        ctx.clock.until(ctx.backward_share)
        return gradient, None, None, None


class Gate(nn.Module):
    """Passes values on unchanged, but not before a share of the step's time has passed."""

    def __init__(self, clock: Clock, forward_share: float, backward_share: float) -> None:
        super().__init__()
        self.clock, self.forward_share, self.backward_share = clock, forward_share, backward_share

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return tensor
        passed: torch.Tensor = _Pass.apply(tensor, self.clock, self.forward_share, self.backward_share)
        return passed


CONTEXT = 32
TEXT_BYTES = 200_000
EVALUATED = 2048
SEQUENCES = 512
"""Docstrings over which losses are reported; few, because a recurrent model is slow."""
HELD_OUT = {"images": 360, "hyperplane": 1024, "docstrings": 1024}
"""Held-out samples by task; `images` are digits, classified by two plain layers."""
PLANE, POINTS, NOISE = 512, 8192, 0.1
"""A hyperplane's number of coefficients, its points including held-out ones, and the noise relative to their spread.

The paper's hyperplane has 8,192 coefficients and 32,768 points.
"""


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs and labels (count,), over which `loss_of` is computed; `held_out` are more of them."""

    inputs: torch.Tensor
    labels: torch.Tensor
    held_out: Samples | None = None

    def __len__(self) -> int:
        return len(self.labels)


@cache
def samples_of(task: str) -> Samples:
    return _split_held_out(task, *_make_samples(task))


def write_data(task: str, path: Path) -> None:
    """Store a task's samples in one file, so that workers need no scikit-learn."""
    inputs, labels = _make_samples(task)
    np.savez(path, task=task, inputs=inputs, labels=labels)


def read_data(path: str | Path) -> Samples:
    with np.load(path) as content:
        return _split_held_out(str(content["task"]), content["inputs"], content["labels"])


def _make_samples(task: str) -> tuple[np.ndarray, np.ndarray]:
    makers = {
        "text": _text,
        "svm": paragraph_samples,
        "docstrings": docstring_samples,
        "hyperplane": _hyperplane,
    }
    return makers.get(task, _digits)()


def _split_held_out(task: str, inputs: np.ndarray, labels: np.ndarray) -> Samples:
    everything, used = Samples(torch.from_numpy(inputs), torch.from_numpy(labels)), len(labels) - HELD_OUT.get(task, 0)
    if used == len(labels):
        return everything
    kept = Samples(everything.inputs[used:], everything.labels[used:])
    return Samples(everything.inputs[:used], everything.labels[:used], kept)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images[order] / 16.0 - 0.3) / 0.38
    return images.astype(np.float32)[:, None], data.target[order].astype(np.int64)


def _hyperplane() -> tuple[np.ndarray, np.ndarray]:
    """Return points, shape (count, 512), and their noisy heights over a plane through zero."""
    rng = np.random.default_rng(0)
    slopes = rng.standard_normal(PLANE)
    points = rng.standard_normal((POINTS, PLANE)).astype(np.float32)
    heights = points @ (slopes / np.linalg.norm(slopes)) + NOISE * rng.standard_normal(POINTS)
    return points, heights.astype(np.float32)


def _text() -> tuple[np.ndarray, np.ndarray]:
    """Return the characters before every place of a text, and the character itself.

    The text consists of the docstrings of the standard library's modules, in the order of their names.
    """
    text = _library_text()
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(character) for character in text], dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)
    return windows[:, :-1].copy(), windows[:, -1].copy()


def _library_text() -> str:
    parts, size = [], 0
    for path in sorted(home(LIBRARY).glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8", errors="ignore"))) or ""
        plain = "".join(c for c in docstring.lower() if c.isascii() and (c.isalpha() or c in " .,\n"))
        parts.append(plain)
        size += len(plain)
        if size > TEXT_BYTES:
            break
    return "\n".join(parts)


LIBRARY = ""
"""The package name that stands for the standard library."""
FOREIGN = {"tests", "test", "idlelib", "site-packages", "lib2to3", "dist-packages"}


def home(package: str) -> Path:
    if package == LIBRARY:
        return Path(os.__file__).parent
    spec = find_spec(package)
    assert spec is not None, f"{package} belongs to this project's dependencies"
    assert spec.origin is not None
    return Path(spec.origin).parent


def docstrings(package: str) -> Iterator[str]:
    """Yield the docstrings of a package's modules, classes and functions, in the order of its files; "" for none."""
    top = home(package)
    for path in sorted(top.rglob("*.py")):
        if not FOREIGN.isdisjoint(path.relative_to(top).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        except SyntaxError:  # a file that shows one, or is written for another Python
            continue
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield ast.get_docstring(part) or ""


def texts_of(package: str, least: int, *, by_paragraph: bool = False) -> list[str]:
    """Return a package's docstrings, or their paragraphs, of at least so many words, each once, with single spaces."""
    parts = (re.split(r"\n\s*\n", whole) if by_paragraph else [whole] for whole in docstrings(package))
    paragraphs = (re.findall(r"[a-z]+", text.lower()) for texts in parts for text in texts)
    return list(dict.fromkeys(" ".join(words) for words in paragraphs if len(words) >= least))


def hash_words(words: Iterable[str], table: int, most: int, *, once: bool = False) -> np.ndarray:
    """Return the places of words in a hash table, shape (most,), padded with zeros; further words are left out."""
    places = [zlib.crc32(word.encode()) % (table - 1) + 1 for word in words]
    kept = (list(dict.fromkeys(places)) if once else places)[:most]
    return np.array(kept + [0] * (most - len(kept)), dtype=np.int32)


def balance(classes: Sequence[Sequence[str]]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return as many texts of each package, in a fixed random order, and the index of each one's package."""
    rng = np.random.default_rng(0)
    least = min(map(len, classes))
    chosen = [texts[place] for texts in classes for place in rng.permutation(len(texts))[:least]]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), least)
    order = rng.permutation(len(chosen))
    return [chosen[place] for place in order], labels[order]


DOCSTRINGS_OF = ("", "numpy", "scipy", "networkx")
"""The packages; the first is the standard library."""
PLACES = 4096
"""Places in the hash table of words; place 0 is padding."""
LEAST, MOST = 6, 256
"""Fewest and most words of a docstring; longer ones are cut."""
EMBEDDED, HIDDEN = 32, 48
AT_ONCE = 64
"""Docstrings that are evaluated together, sorted by length."""


def docstring_samples() -> tuple[np.ndarray, np.ndarray]:
    """Return words, shape (count, 256), padded with zeros, and labels, shape (count,); as many of each package."""
    texts, labels = balance([texts_of(package, LEAST) for package in DOCSTRINGS_OF])
    return np.stack([hash_words(text.split(), PLACES, MOST) for text in texts]), labels


def longest(words: torch.Tensor) -> int:
    return int((words > 0).sum(1).max())


class Reader(nn.Module):
    """Embeds words, reads them with a GRU, and classifies by the maximum of its outputs: 143 thousand parameters.

    The padding behind the longest docstring is not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(PLACES, EMBEDDED)
        self.reads = nn.GRU(EMBEDDED, HIDDEN, batch_first=True)
        self.judges = nn.Linear(HIDDEN, len(DOCSTRINGS_OF))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores, shape (count, packages), of words, shape (count, 256)."""
        if not self.training and len(words) > AT_ONCE:
            return self._in_parts(words)
        words = words[:, : longest(words)]
        there = (words > 0).unsqueeze(2)  # (count, longest, 1)
        thoughts, _ = self.reads(self.words(words))  # (count, longest, HIDDEN)
        most = thoughts.masked_fill(~there, -1.0).amax(1)  # a GRU's numbers lie above −1
        scores: torch.Tensor = self.judges(most)
        return scores

    def _in_parts(self, words: torch.Tensor) -> torch.Tensor:
        scores = torch.empty(len(words), len(DOCSTRINGS_OF))
        for part in torch.argsort((words > 0).sum(1)).split(AT_ONCE):
            scores[part] = self(words[part])
        return scores


PARAGRAPHS_OF = ("scipy", "sklearn")
FEATURES = 1 << 17
"""Places in the hash table; place 0 means "no word"."""
LEAST_WORDS = 12
MOST_FEATURES = 128


def paragraph_samples() -> tuple[np.ndarray, np.ndarray]:
    """Return places of words and of pairs of words, shape (count, 128), padded with zeros, and labels, shape (count,).

    There are as many paragraphs of either package.
    """
    classes = [texts_of(package, LEAST_WORDS, by_paragraph=True) for package in PARAGRAPHS_OF]
    both = set(classes[0]) & set(classes[1])
    texts, labels = balance([[text for text in one if text not in both] for one in classes])
    listed = [[*words, *map(" ".join, pairwise(words))] for words in map(str.split, texts)]
    return np.stack([hash_words(words, FEATURES, MOST_FEATURES, once=True) for words in listed]), labels


def make_model(task: str, samples: Samples, clock: Clock, seed: int) -> nn.Module:
    """Return the task's network: 548,074 parameters (2.19 MB) for digits, 545,546 in ten layers, 516,360 for text.

    Digits and text have one layer with nearly all parameters; the network of ten layers is for gradients that are sent
    layer by layer. A support vector machine (131,073 parameters, 0.52 MB) starts at zero: its loss is convex.
    """
    torch.manual_seed(seed)
    layers: list[list[nn.Module]]
    if task == "ten layers":
        layers = [
            [nn.Flatten(), nn.Linear(64, 256), nn.ReLU()],
            *([nn.Linear(256, 256), nn.ReLU()] for _ in range(8)),
            [nn.Linear(256, 10)],
        ]
    elif task == "images":
        layers = [[nn.Flatten(), nn.Linear(64, 256), nn.ReLU()], [nn.Linear(256, 10)]]
    elif task == "digits":
        layers = [
            [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()],
            [nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()],
            [nn.Linear(256, 2048), nn.ReLU()],
            [nn.Linear(2048, 10)],
        ]
    elif task == "svm":
        layers = [[SparseLinear(FEATURES)]]
    elif task == "docstrings":
        layers = [[Reader()]]
    elif task == "hyperplane":
        layers = [[nn.Linear(PLANE, 1), nn.Flatten(0)]]
    else:
        letters = int(samples.inputs.max()) + 1
        layers = [
            [nn.Embedding(letters, 16), nn.Flatten()],
            [nn.Linear(16 * CONTEXT, 950), nn.ReLU()],
            [nn.Linear(950, letters)],
        ]
    return nn.Sequential(*_with_gates(layers, clock))


def loss_of(task: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy; for a hyperplane the mean squared error."""
    if task == "hyperplane":
        return nn.functional.mse_loss(outputs, labels)
    return nn.functional.cross_entropy(outputs, labels)


def accuracy(model: nn.Module, samples: Samples) -> float:
    with torch.no_grad():
        return float((model(samples.inputs).argmax(1) == samples.labels).float().mean())


class SparseLinear(nn.Module):
    """A linear model of sparse features; cross-entropy over (0, its value) is the log loss of Hop's SVM.

    A sample's features have equal values whose squares sum to 1.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Return scores of both classes, shape (count, 2), of places of features, shape (count, most); 0 is none."""
        present = (places > 0).float()
        each = present / present.sum(1, keepdim=True).sqrt()
        score = nn.functional.embedding_bag(places, self.weight, per_sample_weights=each, mode="sum") + self.bias
        return torch.cat([torch.zeros_like(score), score], dim=1)


def _with_gates(layers: list[list[nn.Module]], clock: Clock) -> list[nn.Module]:
    """Return the layers with gates: a third of a step for forward and two thirds for backward, spread evenly."""
    count, modules = len(layers), []
    for index, layer in enumerate(layers):
        forward = (index + 1) / count / 3
        backward = 1 / 3 + 2 / 3 * (count - 1 - index) / count
        modules += [*layer, Gate(clock, forward, backward)]
    return modules


def evaluation_samples(samples: Samples, most: int = EVALUATED) -> Samples:
    """Return the training samples over which losses are reported: all digits, a fixed draw of the text."""
    if len(samples) <= most:
        return samples
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))[:most]
    return Samples(samples.inputs[order], samples.labels[order])


class Batches:
    """One worker's batches, drawn from its shard: every n-th sample of a shuffled order.

    A batch of docstrings is a run in the order of lengths, and its step's length is proportional to its longest
    docstring.
    """

    def __init__(self, job: Job, rank: int, samples: Samples) -> None:
        self._size, self._samples, self._by_length = job.setting.batch, samples, job.setting.task == "docstrings"
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(job.seed))
        self._places = order[rank :: job.num_workers]
        self._generator = torch.Generator().manual_seed(1000 * job.seed + rank)
        if self._by_length:
            words = (samples.inputs[self._places] > 0).sum(1)
            order = torch.argsort(words, stable=True)
            self._places = self._places[order]
            self._mean = float(words[order][self._size - 1 :].float().mean())

    def draw(self) -> tuple[torch.Tensor, float]:
        """Return indices of the next batch, shape (batch,), and its step's length relative to the mean."""
        if not self._by_length:
            return self._places[torch.randint(len(self._places), (self._size,), generator=self._generator)], 1.0
        first = int(torch.randint(len(self._places) - self._size + 1, (), generator=self._generator))
        batch = self._places[first : first + self._size]
        return batch, longest(self._samples.inputs[batch]) / self._mean
