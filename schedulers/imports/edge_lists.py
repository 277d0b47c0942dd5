"""Edges as lines of text.

`#` starts a comment. What networkx writes by itself is read too: `0 1 {}` and `0 1 {'weight': 0.25}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from partreduce.schedulers.imports.base import EdgeTable, Imported
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


def edge_table(data: bytes, source: str, *, directed: bool = False) -> EdgeTable:
    """Lines `a b` or `a b weight`, undirected unless `directed`; a and b are names of nodes.

    If all of them are whole numbers they are read as numbers, so that 01 is 1.

    Raises:
        DocumentError: a line that is neither, or no line at all.
    """
    edges: list[tuple[str, str]] = []
    weights: list[str | None] = []
    numbers: list[int] = []
    for number, words in lines_of(data, source):
        if len(words) not in (2, 3):
            count = "1 word" if len(words) == 1 else f"{len(words)} words"
            raise DocumentError(f"line {number}", f"has {count}; an edge is two nodes and perhaps a weight", source)
        edges.append((words[0], words[1]))
        weights.append(words[2] if len(words) == 3 else None)
        numbers.append(number)
    if not edges:
        raise DocumentError("document", "has no edges", source)

    def place(e: int) -> str:
        return f"line {numbers[e]}"

    names = list(dict.fromkeys(chain.from_iterable(edges)))
    if all(map(_is_rank, names)):
        number_of = {name: int(name) for name in names}
        numbered = [(number_of[a], number_of[b]) for a, b in edges]
        return EdgeTable(list(dict.fromkeys(number_of.values())), numbered, weights, directed, place)
    return EdgeTable(names, edges, weights, directed, place)


def read_edge_list(data: bytes, source: str, *, directed: bool = False) -> Imported:
    """An edge list between ranks, which are 0..the largest one named: a rank says where a worker runs.

    Raises:
        DocumentError: a line that is no edge, or a name that is no rank.
        ScheduleError: a weight that is no share.
    """
    table = edge_table(data, source, directed=directed)
    for e, ends in enumerate(table.edges):
        for name in ends:
            if not isinstance(name, int):
                _rank(str(name), table.place(e), source)  # refuses the first one that is no number
    largest = max(rank for rank in table.nodes if isinstance(rank, int))
    return replace(table, nodes=range(largest + 1)).weighted()


def _is_rank(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 9


def _rank(word: str, place: str, source: str) -> int:
    if not _is_rank(word):
        raise DocumentError(place, f"{word!r} is not a rank; ranks are whole numbers from 0", source)
    return int(word)
