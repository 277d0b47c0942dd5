"""What the standard library and installed packages say about themselves: the text that the lab's models read.

The packages are this project's dependencies, so that every machine which can run its tests has the same text;
`constraints.txt` fixes their versions, Python's own words differ a little from one version to the next.
"""

from __future__ import annotations

import ast
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

LIBRARY = ""
"""The package that stands for the standard library."""
FOREIGN = {"tests", "test", "idlelib", "site-packages", "lib2to3", "dist-packages"}
SAID = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'|#([^\n]*)', re.DOTALL)
READ = (LIBRARY, "torch", "numpy", "scipy", "sympy", "networkx", "sklearn", "matplotlib", "pandas")


def home(package: str) -> Path:
    if package == LIBRARY:
        return Path(os.__file__).parent
    spec = find_spec(package)
    assert spec is not None, f"{package} belongs to this project's dependencies"
    assert spec.origin is not None
    return Path(spec.origin).parent


def sources(package: str, left_out: set[str] = FOREIGN) -> Iterator[str]:
    """The text of its files, in the order of their names."""
    top = home(package)
    for path in sorted(top.rglob("*.py")):
        if left_out.isdisjoint(path.relative_to(top).parts):
            yield path.read_text(encoding="utf-8", errors="ignore")


def docstrings(package: str) -> Iterator[str]:
    """What its modules, classes and functions say about themselves; empty where they say nothing."""
    for source in sources(package):
        try:
            tree = ast.parse(source)
        except SyntaxError:  # a file that shows one, or is written for another Python
            continue
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield ast.get_docstring(part) or ""


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def balanced(said: Sequence[Sequence[str]]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """As many texts of each package, in a fixed random order, and the number of each one's package."""
    rng = np.random.default_rng(0)
    least = min(map(len, said))
    chosen = [texts[place] for texts in said for place in rng.permutation(len(texts))[:least]]
    labels = np.repeat(np.arange(len(said), dtype=np.int64), least)
    order = rng.permutation(len(chosen))
    return [chosen[place] for place in order], labels[order]


def text(packages: Sequence[str] = READ, rows: int = 40_000) -> npt.NDArray[np.int32]:
    """Words of docstrings and comments in their order, as rows of a table, shape (count,).

    Frequent words come first, as tokenizers number them; row 0 is for all others.
    """
    said = [word for package in packages for word in _spoken(package)]
    row_of = {word: row for row, (word, _) in enumerate(Counter(said).most_common(rows - 1), 1)}
    return np.array([row_of.get(word, 0) for word in said], dtype=np.int32)


def _spoken(package: str) -> Iterator[str]:
    for source in sources(package, {"tests", "test", "site-packages"}):
        yield from words_of(" ".join("".join(each) for each in SAID.findall(source)))


DOCSTRINGS_OF = ("", "numpy", "scipy", "networkx")
"""The first is the standard library."""
PLACES = 4096
"""Places of the hash table of words; place 0 is padding."""
LEAST, MOST = 6, 256
"""Words of a docstring; longer ones are cut off."""
EMBEDDED, HIDDEN = 32, 48
AT_ONCE = 64
"""Docstrings that are evaluated together, in the order of their lengths."""


def docstring_samples() -> tuple[np.ndarray, np.ndarray]:
    """Words, shape (count, 256), filled up with zeros, and labels, shape (count,); as many of each package."""
    texts, labels = balanced([_texts(package) for package in DOCSTRINGS_OF])
    rows = np.zeros((len(texts), MOST), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        words = [zlib.crc32(word.encode()) % (PLACES - 1) + 1 for word in text.split()[:MOST]]
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
        self.words = nn.Embedding(PLACES, EMBEDDED)
        self.reads = nn.GRU(EMBEDDED, HIDDEN, batch_first=True)
        self.judges = nn.Linear(HIDDEN, len(DOCSTRINGS_OF))

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
        scores = torch.empty(len(words), len(DOCSTRINGS_OF))
        for part in torch.argsort((words > 0).sum(1)).split(AT_ONCE):
            scores[part] = self(words[part])
        return scores


PARAGRAPHS_OF = ("scipy", "sklearn")
FEATURES = 1 << 17
"""Places of the hash table; place 0 is kept for "no word"."""
LEAST_WORDS = 12
MOST_FEATURES = 128


def paragraph_samples(packages: tuple[str, str] = PARAGRAPHS_OF) -> tuple[np.ndarray, np.ndarray]:
    """Features, shape (count, 128), filled up with zeros, and labels, shape (count,); as many of either package."""
    said = [_paragraphs(package) for package in packages]
    both = set(said[0]) & set(said[1])
    texts, labels = balanced([[text for text in one if text not in both] for one in said])
    return np.stack([_features(text) for text in texts]), labels


def _paragraphs(package: str) -> list[str]:
    """Every paragraph of its docstrings, each once, as words with one space."""
    said = (words_of(text) for whole in docstrings(package) for text in re.split(r"\n\s*\n", whole))
    return list(dict.fromkeys(" ".join(words) for words in said if len(words) >= LEAST_WORDS))


def _features(text: str) -> np.ndarray:
    """The places of a paragraph's words and pairs of words, shape (128,); those beyond are left out."""
    words = text.split()
    grams = [*words, *(f"{a} {b}" for a, b in pairwise(words))]
    places = dict.fromkeys(zlib.crc32(gram.encode()) % (FEATURES - 1) + 1 for gram in grams)
    row = np.zeros(MOST_FEATURES, dtype=np.int32)
    row[: len(places)] = list(places)[:MOST_FEATURES]
    return row
