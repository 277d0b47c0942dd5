"""Sequences whose lengths vary as they are: whose documentation a docstring is, read word by word by a recurrent model.

The text is what the standard library, NumPy, SciPy and NetworkX, which this project depends on, say about themselves. A
batch is a run of a worker's docstrings in the order of their lengths, so that little of it is padding, and a step takes
as long as its longest docstring has words: that is how the videos of eager-SGD's paper come (UCF101: clips of 29 to
1,776 frames in buckets of similar length).
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import nn

from benchmarks.lab.prose import balanced, docstrings, words_of

PACKAGES = ("", "numpy", "scipy", "networkx")
"""The first is the standard library."""
WORDS = 4096
"""Places of the hash table of words; place 0 is padding."""
LEAST, MOST = 6, 256
"""Words of a docstring; longer ones are cut off."""
FEATURES, HIDDEN = 32, 48
AT_ONCE = 64
"""Docstrings that are evaluated together, in the order of their lengths."""


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Words, shape (count, 256), filled up with zeros, and labels, shape (count,); as many of each package."""
    texts, labels = balanced([_texts(package) for package in PACKAGES])
    rows = np.zeros((len(texts), MOST), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        words = [zlib.crc32(word.encode()) % (WORDS - 1) + 1 for word in text.split()[:MOST]]
        row[: len(words)] = words
    return rows, labels


def _texts(package: str) -> list[str]:
    """Its docstrings of several words, each once, as words with one space."""
    said = (words_of(text) for text in docstrings(package))
    return list(dict.fromkeys(" ".join(words) for words in said if len(words) >= LEAST))


def longest(words: torch.Tensor) -> int:
    """Words of the longest docstring of a batch, shape (count, 256)."""
    return int((words > 0).sum(1).max())


class Reader(nn.Module):
    """Embeds words, reads them in order with a GRU, and judges by the most that it thought: 143 thousand numbers.

    The padding behind the longest docstring is not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, FEATURES)
        self.reads = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.judges = nn.Linear(HIDDEN, len(PACKAGES))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores, shape (count, packages), from words, shape (count, 256)."""
        if not self.training and len(words) > AT_ONCE:
            return self._in_parts(words)
        words = words[:, : longest(words)]
        there = (words > 0).unsqueeze(2)  # (count, longest, 1)
        thoughts, _ = self.reads(self.words(words))  # (count, longest, HIDDEN)
        most = thoughts.masked_fill(~there, -1.0).amax(1)  # a GRU's numbers lie above −1
        scores: torch.Tensor = self.judges(most)
        return scores

    def _in_parts(self, words: torch.Tensor) -> torch.Tensor:
        scores = torch.empty(len(words), len(PACKAGES))
        for part in torch.argsort((words > 0).sum(1)).split(AT_ONCE):
            scores[part] = self(words[part])
        return scores
