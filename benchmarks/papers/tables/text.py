"""Real words in their order: what the standard library and installed packages say about themselves.

Words are those of docstrings and comments, in the order of the packages here and of their files' names. The packages
are this project's dependencies, so that every machine which can run its tests has the same text; `constraints.txt`
fixes their versions, Python's own words differ a little from one version to the next.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

PACKAGES = ("os", "torch", "numpy", "scipy", "sympy", "networkx", "sklearn", "matplotlib", "pandas")
"""Where words come from; `os` stands for the standard library, in whose folder it lies."""
WORDS = 40_000
"""Rows of a table: the most frequent words, and row 0 for all others."""
SAID = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'|#([^\n]*)', re.DOTALL)
WORD = re.compile(r"[a-z]+")
LEFT_OUT = frozenset({"tests", "test", "site-packages"})


def text(packages: Sequence[str] = PACKAGES, rows: int = WORDS) -> npt.NDArray[np.int32]:
    """All words as rows of a table, shape (count,); frequent words come first, as tokenizers number them."""
    said = [word for package in packages for word in _words(package)]
    counted = Counter(said)
    row_of = {word: row for row, (word, _) in enumerate(counted.most_common(rows - 1), 1)}
    return np.array([row_of.get(word, 0) for word in said], dtype=np.int32)


def _words(package: str) -> Iterator[str]:
    spec = find_spec(package)
    assert spec is not None, f"{package} belongs to this project's tests"
    home = Path(os.__file__).parent if package == "os" else Path(str(spec.origin)).parent
    for path in sorted(home.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(home).parts):
            parts = SAID.findall(path.read_text(encoding="utf-8", errors="ignore"))
            yield from WORD.findall(" ".join("".join(each) for each in parts).lower())
