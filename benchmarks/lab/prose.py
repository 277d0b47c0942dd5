"""What the standard library and installed packages say about themselves: the text that the lab's models read.

The packages are this project's dependencies, so that every machine which can run its tests has the same text;
`constraints.txt` fixes their versions, Python's own words differ a little from one version to the next.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

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
