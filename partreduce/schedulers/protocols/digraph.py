"""A directed graph as an immutable value, for protocols over a fixed graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partreduce.topo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partreduce.topo.graphs import Graph
    from partreduce.topo.round import Round


@dataclass(frozen=True, slots=True)
class Digraph:
    """A directed graph over workers 0..num_workers-1 without self-loops; edge (u, v) means that u sends to v.

    `sources[v]` are the workers that send to v, `targets[v]` those that v sends to; Hop's N_in(v) is `sources[v]` and v
    itself. Edges are sorted. Build one with `of`.
    """

    num_workers: int
    edges: tuple[tuple[int, int], ...]
    sources: tuple[tuple[int, ...], ...] = field(repr=False, compare=False)
    targets: tuple[tuple[int, ...], ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, num_workers: int, edges: Iterable[Sequence[int]]) -> Digraph:
        """Build a graph from (source, target) pairs in any order; self-loops and duplicates are dropped."""
        if num_workers < 1:
            raise InputError(f"graph: has {num_workers} workers; it needs at least 1")
        kept = sorted({(int(u), int(v)) for u, v in edges if u != v})
        for u, v in kept:
            if not (0 <= u < num_workers and 0 <= v < num_workers):
                raise InputError(f"edge {u}→{v}: ranks are 0..{num_workers - 1}")
        sources: list[list[int]] = [[] for _ in range(num_workers)]
        targets: list[list[int]] = [[] for _ in range(num_workers)]
        for u, v in kept:
            sources[v].append(u)
            targets[u].append(v)
        return cls(num_workers, tuple(kept), tuple(map(tuple, sources)), tuple(map(tuple, targets)))

    @classmethod
    def from_edges_of(cls, graph: Graph | Round) -> Digraph:
        """Build a graph from the edges of a `Graph` or a round, without their weights."""
        return cls.of(graph.num_workers, zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))

    @classmethod
    def undirected(cls, num_workers: int, edges: Iterable[Sequence[int]]) -> Digraph:
        """Build a graph from undirected edges, with both directions of each."""
        listed = [(int(u), int(v)) for u, v in edges]
        return cls.of(num_workers, listed + [(v, u) for u, v in listed])

    @property
    def is_symmetric(self) -> bool:
        return all(self.sources[v] == self.targets[v] for v in range(self.num_workers))
