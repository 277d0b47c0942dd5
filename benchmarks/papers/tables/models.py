"""What the lab's workers train beside Parallax's tables: a language model with two of them.

A batch is a function of (seed, step, worker), so that every way of exchanging tables sees the same, and so does
one device that takes all workers' batches at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

WORDS = 40_000
"""Rows of a table: the most frequent words, and row 0 for all others."""
BEFORE = 3
"""Words that stand before the one to be told."""
COLUMNS = 128
HIDDEN = 96
DRAWN = 256
"""Words that a target is told apart from, the same for all workers of a step, as on one device."""
BATCH = 200
HELD_OUT = 50
"""Every so many places of the text are never trained on."""
JUDGED = 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step of one worker reads: rows of the tables, shapes as its model wants them, and what it is to say."""

    inputs: torch.Tensor
    labels: torch.Tensor
    drawn: torch.Tensor


class Language(nn.Module):
    """The next word from the three before it; loss by words drawn as often as their rank says (sampled softmax).

    `encoder` and `decoder` are the tables, (40,000, 128) each; the rest are 49,376 numbers, 0.2 MB: about half
    as many as a worker's touched rows have.
    """

    def __init__(self, *, sparse: bool, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Embedding(WORDS, COLUMNS, sparse=sparse)
        self.decoder = nn.Embedding(WORDS, COLUMNS, sparse=sparse)
        with torch.no_grad():
            self.encoder.weight.mul_(0.1)
            self.decoder.weight.mul_(0.1)
        self.inner = nn.Sequential(nn.Linear(BEFORE * COLUMNS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, COLUMNS))

    def tables(self) -> dict[str, nn.Parameter]:
        """By the names of their parameters in the model."""
        return {"encoder.weight": self.encoder.weight, "decoder.weight": self.decoder.weight}

    def dense(self) -> list[nn.Parameter]:
        return list(self.inner.parameters())

    def touched(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The distinct rows of each table that a batch reads, ascending: words before, and words that may come next."""
        after = torch.cat([batch.labels, batch.drawn])
        return {"encoder.weight": batch.inputs.unique(), "decoder.weight": after.unique()}

    def forward(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch: cross-entropy of the target among the words drawn for the step."""
        before = self.encoder(batch.inputs).flatten(1)  # (count, 3 * 128)
        guess = self.inner(before)  # (count, 128)
        rows = self.decoder(torch.cat([batch.labels, batch.drawn]))  # (count + drawn, 128)
        count = len(batch.labels)
        right = (guess * rows[:count]).sum(1, keepdim=True) - _log_share(batch.labels)[:, None]
        wrong = guess @ rows[count:].T - _log_share(batch.drawn)  # (count, drawn)
        wrong = wrong.masked_fill(batch.drawn == batch.labels[:, None], -1e9)
        return functional.cross_entropy(torch.cat([right, wrong], 1), torch.zeros(count, dtype=torch.long))


def _log_share(words: torch.Tensor) -> torch.Tensor:
    """How likely a word is to be drawn, in logarithms: ln((k + 2) / (k + 1)) / ln(words + 1) for the k-th."""
    return torch.log(torch.log1p(1 / (words + 1.0)) / np.log(WORDS + 1.0))


class LanguageData:
    """Batches of the text."""

    def __init__(self, codes: np.ndarray) -> None:
        self.codes = codes

    def batch(self, seed: int, step: int, worker: int, size: int = BATCH) -> Batch:
        """Windows at random places of the text that are not held out."""
        draw = np.random.default_rng((seed, step, worker))
        places = draw.integers(0, (len(self.codes) - BEFORE - 1) // HELD_OUT, size) * HELD_OUT
        return self._at(places + draw.integers(1, HELD_OUT, size), _drawn((seed, step), DRAWN))

    def judged(self, worker: int, size: int) -> Batch:
        draw = np.random.default_rng((7, worker))
        places = draw.integers(0, (len(self.codes) - BEFORE - 1) // HELD_OUT, size) * HELD_OUT
        return self._at(places, _drawn((7,), JUDGED))

    def _at(self, places: np.ndarray, drawn: np.ndarray) -> Batch:
        windows = self.codes[places[:, None] + np.arange(BEFORE + 1)].astype(np.int64)  # (count, 4)
        return Batch(torch.from_numpy(windows[:, :-1]), torch.from_numpy(windows[:, -1]), torch.from_numpy(drawn))


def _drawn(seed: tuple[int, ...], count: int) -> np.ndarray:
    """Words by their rank, the k-th as often as `_log_share` says, each once."""
    draw = np.random.default_rng(seed).random(2 * count)
    return np.unique(np.exp(draw * np.log(WORDS + 1.0)).astype(np.int64) - 1)[:count]
