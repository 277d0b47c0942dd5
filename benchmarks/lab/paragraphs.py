"""Sparse text to classify: whose documentation a paragraph comes from, SciPy's or scikit-learn's.

Both packages are installed with this project's tests. A paragraph is the set of words and pairs of words in it, each
hashed to one of 131,071 places; most of a sample's 51 features (mean) are rare, as in the web pages of Hop's paper.
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

PACKAGES = ("scipy", "sklearn")
FEATURES = 1 << 17
"""Places of the hash table; place 0 is kept for "no word"."""
LEAST_WORDS = 12
MOST_FEATURES = 128


def samples(packages: tuple[str, str] = PACKAGES) -> tuple[np.ndarray, np.ndarray]:
    """Features, shape (count, 128), filled up with zeros, and labels, shape (count,); as many of either package."""
    rng = np.random.default_rng(0)
    texts = [list(dict.fromkeys(_paragraphs(package))) for package in packages]
    both = set(texts[0]) & set(texts[1])
    texts = [[text for text in said if text not in both] for said in texts]
    least = min(len(said) for said in texts)
    chosen = [said[place] for said in texts for place in rng.permutation(len(said))[:least]]
    labels = np.repeat(np.arange(2, dtype=np.int64), least)
    order = rng.permutation(len(chosen))
    return np.stack([_features(chosen[place]) for place in order]), labels[order]


def _paragraphs(package: str) -> Iterator[str]:
    """Every paragraph of what its modules, classes and functions say about themselves, as words with one space."""
    spec = find_spec(package)
    assert spec is not None, f"{package} belongs to this project's tests"
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "tests" in path.parts:
            continue
        for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(part, ast.FunctionDef | ast.ClassDef | ast.Module):
                for text in re.split(r"\n\s*\n", ast.get_docstring(part) or ""):
                    words = re.findall(r"[a-z]+", text.lower())
                    if len(words) >= LEAST_WORDS:
                        yield " ".join(words)


def _features(text: str) -> np.ndarray:
    """The places of a paragraph's words and pairs of words, shape (128,); those beyond are left out."""
    words = text.split()
    grams = [*words, *(f"{a} {b}" for a, b in pairwise(words))]
    places = dict.fromkeys(zlib.crc32(gram.encode()) % (FEATURES - 1) + 1 for gram in grams)
    row = np.zeros(MOST_FEATURES, dtype=np.int32)
    row[: len(places)] = list(places)[:MOST_FEATURES]
    return row
