"""Read edges from lines of text.

`#` starts a comment. What networkx writes by itself is read too: `0 1 {}` and `0 1 {'weight': 0.25}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from partreduce.schedulers.imports.base import EdgeTable, ImportedGraph
from partreduce.topo.document.reader import decode
from partreduce.topo.errors import DocumentError

_ATTRIBUTES = re.compile(r"\{(?:[^{}]*['\"]weight['\"]\s*:\s*([^,{}\s]+))?[^{}]*\}\s*$")
"""The dictionary of edge attributes that networkx writes; its weight, if it has one, is group 1."""


def lines_of(data: bytes, source: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, words) of every line that says something.

    Raises:
        DocumentError: no text, or other than UTF-8.
    """
    for number, line in enumerate(decode(data, source=source).splitlines(), start=1):
        plain = _ATTRIBUTES.sub(lambda match: match[1] or "", line.split("#", 1)[0])
        words = plain.replace(",", " ").split()
        if words:
            yield number, words


def read_edge_list(data: bytes, source: str, *, directed: bool = False) -> ImportedGraph:
    """Lines `a b` or `a b weight`, undirected unless `directed`, between ranks 0..the largest one named.

    A rank says where a worker runs, so a name that is none is refused; 01 is 1.

    Raises:
        DocumentError: a line that is no edge, a name that is no rank, or no line at all.
        ScheduleError: a weight that is no share.
    """
    edges: list[tuple[int, int]] = []
    weights: list[str | None] = []
    places: list[str] = []
    for number, words in lines_of(data, source):
        place = f"line {number}"
        if len(words) not in (2, 3):
            count = "1 word" if len(words) == 1 else f"{len(words)} words"
            raise DocumentError(place, f"has {count}; an edge is two nodes and perhaps a weight", source)
        edges.append((_rank(words[0], place, source), _rank(words[1], place, source)))
        weights.append(words[2] if len(words) == 3 else None)
        places.append(place)
    if not edges:
        raise DocumentError("document", "has no edges", source)
    nodes = range(max(max(edge) for edge in edges) + 1)
    return EdgeTable(nodes, edges, weights, directed, places.__getitem__).weighted()


def _rank(word: str, place: str, source: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        raise DocumentError(place, f"{word!r} is not a rank; ranks are whole numbers from 0", source)
    return int(word)
