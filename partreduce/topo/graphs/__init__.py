"""Graphs over the workers, as arrays of edges. `named` builds families of graphs, `weights` their mixing weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from partreduce.topo.errors import ScheduleError
from partreduce.topo.fields import Arrays

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Graph(Arrays):
    """A directed graph over the workers without self-loops; an undirected edge is stored in both directions.

    Worker `targets[e]` receives from worker `sources[e]`; edges are sorted by target, then source. Build one with
    `directed` or `undirected`.
    """

    num_workers: int
    sources: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]

    @classmethod
    def directed(cls, num_workers: int, sources: npt.ArrayLike, targets: npt.ArrayLike) -> Graph:
        """Build a graph from edges `sources[e]` → `targets[e]`; raise ScheduleError for ranks out of range.

        Self-loops and duplicates are dropped. O(edges log edges).
        """
        src = np.asarray(sources, dtype=np.int64).reshape(-1)
        dst = np.asarray(targets, dtype=np.int64).reshape(-1)
        wrong = (src < 0) | (src >= num_workers) | (dst < 0) | (dst >= num_workers)
        if wrong.any():
            e = int(wrong.argmax())
            raise ScheduleError(f"edge {src[e]}→{dst[e]}: ranks are 0..{num_workers - 1}")
        keys = np.unique((dst * num_workers + src)[src != dst])
        return cls(num_workers, (keys % num_workers).astype(np.int32), (keys // num_workers).astype(np.int32))

    @classmethod
    def undirected(cls, num_workers: int, ends: npt.ArrayLike, others: npt.ArrayLike) -> Graph:
        """Build a graph from undirected edges between `ends[e]` and `others[e]`.

        Self-loops and duplicates are dropped.
        """
        a = np.asarray(ends, dtype=np.int64).reshape(-1)
        b = np.asarray(others, dtype=np.int64).reshape(-1)
        return cls.directed(num_workers, np.concatenate([a, b]), np.concatenate([b, a]))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def is_undirected(self) -> bool:
        """Whether every edge is present in both directions."""
        n = np.int64(self.num_workers)
        return np.array_equal(self.targets * n + self.sources, np.sort(self.sources * n + self.targets))

    def in_degrees(self) -> npt.NDArray[np.int64]:
        """Return the number of in-neighbors of each worker, shape (num_workers,)."""
        return np.bincount(self.targets, minlength=self.num_workers)

    def adjacency(self) -> npt.NDArray[np.float64]:
        """Return the dense 0/1 adjacency matrix: [target, source] = 1 for an edge, shape (num_workers, num_workers)."""
        matrix = np.zeros((self.num_workers, self.num_workers))
        matrix[self.targets, self.sources] = 1.0
        return matrix

    def components(self) -> npt.NDArray[np.int32]:
        """Return the index of each worker's strongly connected component, shape (num_workers,). O(edges)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        ones = np.ones(len(self), dtype=np.int8)
        matrix = coo_array((ones, (self.sources, self.targets)), shape=(self.num_workers, self.num_workers))
        labels: npt.NDArray[np.int32] = connected_components(matrix.tocsr(), directed=True, connection="strong")[1]
        return labels

    @property
    def is_connected(self) -> bool:
        """Whether the graph is strongly connected."""
        return self.num_workers <= 1 or not self.components().any()

    def require_connected(self) -> None:
        """Raise ScheduleError if the graph is not strongly connected: its workers could not reach consensus."""
        labels = self.components()
        apart = np.flatnonzero(labels != labels[0])
        if len(apart):
            raise ScheduleError(
                f"graph: workers 0 and {int(apart[0])} do not reach each other ({int(labels.max()) + 1} parts); "
                "add edges until every worker reaches every other"
            )

    def require_undirected(self, purpose: str) -> None:
        """Raise ScheduleError "… `purpose` need an undirected graph" if an edge has no reverse."""
        if self.is_undirected:
            return
        n = np.int64(self.num_workers)
        missing = np.flatnonzero(~np.isin(self.sources * n + self.targets, self.targets * n + self.sources))
        e = int(missing[0])
        raise ScheduleError(
            f"edge {self.sources[e]}→{self.targets[e]}: has no reverse, and {purpose} need an undirected graph; "
            "add the reverse edges or use uniform weights"
        )
