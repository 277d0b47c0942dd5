"""Edge lists: two ranks a line, and a weight if all lines have one; `#` starts a comment.

What networkx writes by itself is read too: `0 1 {}` and `0 1 {'weight': 0.25}`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preduce.schedulers.imports.base import exact, from_edges
from preduce.topo.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from preduce.schedulers.imports.base import Imported


_ATTRIBUTES = re.compile(r"\{(?:[^{}]*['\"]weight['\"]\s*:\s*([^,{}\s]+))?[^{}]*\}\s*$")
"""The dictionary of edge attributes that networkx writes; its weight, if it has one, is group 1."""


def lines_of(data: bytes, source: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, words) of every line that says something."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError("document", f"is not UTF-8 text (byte {error.start})", source) from None
    for number, line in enumerate(text.splitlines(), start=1):
        plain = _ATTRIBUTES.sub(lambda found: found[1] or "", line.split("#", 1)[0])
        words = plain.replace(",", " ").split()
        if words:
            yield number, words


def rank(word: str, number: int, source: str) -> int:
    """A rank written in decimal."""
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        raise DocumentError(f"line {number}", f"{word!r} is not a rank; ranks are whole numbers from 0", source)
    return int(word)


def read(data: bytes, source: str, *, directed: bool = False) -> Imported:
    """Lines `a b` or `a b weight`, undirected unless `directed`; ranks are 0..the largest one named.

    Raises:
        DocumentError: a line that is neither.
        ScheduleError: a weight that is no share.
    """
    pairs: list[tuple[int, int]] = []
    weights: list[Fraction] = []
    for number, words in lines_of(data, source):
        if len(words) not in (2, 3):
            raise DocumentError(
                f"line {number}", f"has {len(words)} words; an edge has two ranks and perhaps a weight", source
            )
        if pairs and (len(words) == 3) != bool(weights):
            raise DocumentError(f"line {number}", "give all edges a weight, or none", source)
        pairs.append((rank(words[0], number, source), rank(words[1], number, source)))
        if len(words) == 3:
            weights.append(exact(words[2], f"line {number}"))
    if not pairs:
        raise DocumentError("document", "has no edges", source)
    return from_edges(1 + max(map(max, pairs)), pairs, weights or None, directed=directed)
