"""Sparse text to classify: whose documentation a paragraph comes from, SciPy's or scikit-learn's.

Both packages are installed with this project's tests. A paragraph is the set of words and pairs of words in it, each
hashed to one of 131,071 places; most of a sample's 51 features (mean) are rare, as in the web pages of Hop's paper.
"""

from __future__ import annotations

import re
import zlib
from itertools import pairwise

import numpy as np

from benchmarks.lab.prose import balanced, docstrings, words_of

PACKAGES = ("scipy", "sklearn")
FEATURES = 1 << 17
"""Places of the hash table; place 0 is kept for "no word"."""
LEAST_WORDS = 12
MOST_FEATURES = 128


def samples(packages: tuple[str, str] = PACKAGES) -> tuple[np.ndarray, np.ndarray]:
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
