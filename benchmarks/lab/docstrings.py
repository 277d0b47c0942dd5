"""Sequences whose lengths vary as they are: whose documentation a docstring is, read word by word by a recurrent model.

The text is what the standard library, NumPy, SciPy and NetworkX, which this project depends on, say about themselves. A
batch is a run of a worker's docstrings in the order of their lengths, so that little of it is padding, and a step takes
as long as its longest docstring has words: that is how the videos of eager-SGD's paper come (UCF101: clips of 29 to
1,776 frames in buckets of similar length).
"""

from __future__ import annotations

import ast
import os
import re
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

PACKAGES = ("", "numpy", "scipy", "networkx")
"""The first is the standard library."""
WORDS = 4096
"""Places of the hash table of words; place 0 is padding."""
LEAST, MOST = 6, 256
"""Words of a docstring; longer ones are cut off."""
FOREIGN = {"tests", "test", "idlelib", "site-packages", "lib2to3", "dist-packages"}
FEATURES, HIDDEN = 32, 48
AT_ONCE = 64
"""Docstrings that are evaluated together, in the order of their lengths."""


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Words, shape (count, 256), filled up with zeros, and labels, shape (count,); as many of each package."""
    rng = np.random.default_rng(0)
    texts = [list(dict.fromkeys(_docstrings(package))) for package in PACKAGES]
    least = min(len(said) for said in texts)
    chosen = [said[place] for said in texts for place in rng.permutation(len(said))[:least]]
    labels = np.repeat(np.arange(len(PACKAGES), dtype=np.int64), least)
    order = rng.permutation(len(chosen))
    rows = np.zeros((len(chosen), MOST), dtype=np.int32)
    for row, place in enumerate(order):
        words = [zlib.crc32(word.encode()) % (WORDS - 1) + 1 for word in chosen[place].split()[:MOST]]
        rows[row, : len(words)] = words
    return rows, labels[order]


def _docstrings(package: str) -> Iterator[str]:
    """What its modules, classes and functions say about themselves, as words with one space."""
    home = Path(os.__file__).parent if not package else _home(package)
    for path in sorted(home.rglob("*.py")):
        if FOREIGN & set(path.parts[len(home.parts) :]):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        except SyntaxError:  # a file that shows one, or is written for another Python
            continue
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef | ast.ClassDef | ast.Module):
                words = re.findall(r"[a-z]+", (ast.get_docstring(part) or "").lower())
                if len(words) >= LEAST:
                    yield " ".join(words)


def _home(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"{package} belongs to this project's dependencies"
    assert spec.origin is not None
    return Path(spec.origin).parent


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
