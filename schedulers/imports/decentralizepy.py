"""decentralizepy's graph files: first line n, then edges (`.edges`) or the neighbours of rank 0, 1, … (`.adj`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.imports.base import from_edges
from preduce.schedulers.imports.edge_list import lines_of, rank
from preduce.topo.errors import DocumentError

if TYPE_CHECKING:
    from preduce.schedulers.imports.base import Imported


def read_edges(data: bytes, source: str) -> Imported:
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


def read_adjacency(data: bytes, source: str) -> Imported:
    """`n`, then one line of neighbours for each rank.

    Raises:
        DocumentError: another form, or a rank that is not below n.
    """
    count, lines = _header(data, source)
    if len(lines) != count:
        raise DocumentError(
            "document", f"lists the neighbours of {len(lines)} workers; its first line says {count}", source
        )
    pairs = [(i, _below(word, number, count, source)) for i, (number, words) in enumerate(lines) for word in words]
    return from_edges(count, pairs, None, directed=False)


def _header(data: bytes, source: str) -> tuple[int, list[tuple[int, list[str]]]]:
    lines = list(lines_of(data, source))
    if not lines or len(lines[0][1]) != 1:
        raise DocumentError("line 1", "is not the number of workers, which stands alone in the first line", source)
    return rank(lines[0][1][0], 1, source), lines[1:]


def _below(word: str, number: int, count: int, source: str) -> int:
    value = rank(word, number, source)
    if value >= count:
        raise DocumentError(f"line {number}", f"rank {value} is out of range; ranks are 0..{count - 1}", source)
    return value
