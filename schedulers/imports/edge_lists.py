"""Edges as lines of text: plain edge lists, and decentralizepy's files, whose first line says how many workers.

`#` starts a comment. What networkx writes by itself is read too: `0 1 {}` and `0 1 {'weight': 0.25}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from partreduce.schedulers.imports.base import EdgeTable, Imported, from_edges
from partreduce.schedulers.imports.exact import say
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


def read_decentralizepy_edges(data: bytes, source: str) -> Imported:
    """`n`, then `a b` a line; every edge is undirected, whether it is listed once or in both directions.

    Raises:
        DocumentError: another form, or a rank that is not below n.
    """
    count, lines = _header(data, source)
    pairs = []
    for number, words in lines:
        if len(words) != 2:
            raise DocumentError(f"line {number}", f"has {len(words)} words; an edge has two ranks", source)
        pairs.append((_below(words[0], number, count, source), _below(words[1], number, count, source)))
    return from_edges(count, pairs, None, directed=False)


def read_decentralizepy_adjacency(data: bytes, source: str) -> Imported:
    """`n`, then one line for each rank: whom it sends to, as decentralizepy reads it; nobody need send back.

    Raises:
        DocumentError: another form, or a rank that is not below n.
    """
    count, lines = _header(data, source)
    if len(lines) != count:
        raise DocumentError(
            "document", f"lists the neighbours of {len(lines)} workers; its first line says {count}", source
        )
    pairs = [(i, _below(word, number, count, source)) for i, (number, words) in enumerate(lines) for word in words]
    listed = {(a, b) for a, b in pairs if a != b}
    one_way = sum((b, a) not in listed for a, b in listed)
    if one_way:
        say(f"{one_way} of {len(listed)} edges go one way: the list of a worker says whom it sends to")
    return from_edges(count, pairs, None, directed=True)


def _header(data: bytes, source: str) -> tuple[int, list[tuple[int, list[str]]]]:
    lines = list(lines_of(data, source))
    if not lines or len(lines[0][1]) != 1:
        raise DocumentError("line 1", "is not the number of workers, which stands alone in the first line", source)
    return _rank(lines[0][1][0], "line 1", source), lines[1:]


def _below(word: str, number: int, count: int, source: str) -> int:
    value = _rank(word, f"line {number}", source)
    if value >= count:
        raise DocumentError(f"line {number}", f"rank {value} is out of range; ranks are 0..{count - 1}", source)
    return value


def _is_rank(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 9


def _rank(word: str, place: str, source: str) -> int:
    if not _is_rank(word):
        raise DocumentError(place, f"{word!r} is not a rank; ranks are whole numbers from 0", source)
    return int(word)
